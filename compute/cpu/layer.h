// A recurrent layer over a segment: pack the weights, sum the inputs of all steps, run the
// recurrence; backward, run it from the end, then make each weight's gradient for all steps.

// Rows of a dense input that go through the weights at a time, so that they stay in cache.
enum { INPUT_ROWS = 128 };

// Rows that a weight's gradient sums at a time: two blocks of so many fit the second-level cache,
// and each time costs a pass over the gradient.
enum { GRADIENT_ROWS = 1280 };

INLINE long least(long a, long b) { return a < b ? a : b; }

// GRU's n keeps its sides apart, the other gates sum them: forward, the recurrent side of gate g is
// summed into this tensor; backward, the input side's gradient is in it.
INLINE long apart(const struct layer *l, long g)
{
    return l->cell == GRU && g == 2 ? 3 : g;
}

// packed: [K*U][padded][BLOCK] from w: [K*H, cols]: columns become rows.
static void pack_gates(const struct layer *l, float *packed, const float *w, long cols,
                       long padded)
{
    for (long g = 0; g < l->K; g++)
        for (long u = 0; u < l->U; u++)
            transpose_to_block(packed + (g * l->U + u) * padded * BLOCK,
                               w + (g * l->H + u * BLOCK) * cols, columns_of(l->H, u), cols,
                               cols, padded);
}

// packed: [blocks of cols][K*U*BLOCK][BLOCK] from w: [K*H, cols]: rows stay rows.
static void pack_gates_back(const struct layer *l, float *packed, const float *w, long cols)
{
    long padded = l->U * BLOCK;
    for (long v = 0; v < blocks_of(cols); v++)
        for (long g = 0; g < l->K; g++) {
            float *dst = packed + (v * l->K + g) * padded * BLOCK;
            to_block(l->H, dst, w + g * l->H * cols + v * BLOCK, cols, columns_of(cols, v));
            memset(dst + l->H * BLOCK, 0, (padded - l->H) * BLOCK * sizeof *dst);
        }
}

// bias: [G*U][BLOCK]. Both biases of a gate go into its sum, but for GRU's n, whose recurrent one
// belongs to q.
static void pack_bias(struct layer *l, const float *bih, const float *bhh)
{
    for (long g = 0; g < l->G; g++)
        for (long j = 0; j < l->U * BLOCK; j++) {
            float *b = l->bias + g * l->U * BLOCK + j;
            if (j >= l->H)
                *b = 0;
            else if (l->cell == GRU && g >= 2)
                *b = g == 2 ? bih[2 * l->H + j] : bhh[2 * l->H + j];
            else
                *b = bih[g * l->H + j] + bhh[g * l->H + j];
        }
}

// Sets n rows to the bias of gate block i.
static void start_rows(const struct layer *l, float *restrict rows, long i, long n)
{
    const float *restrict bias = l->bias + i * BLOCK;
    for (long r = 0; r < n; r++)
        for (int j = 0; j < BLOCK; j++)
            rows[r * BLOCK + j] = bias[j];
}

// Readies the input side: for ids the table [K*U][D][BLOCK] of what each adds to the sums, biases
// included; for dense rows the sums of all steps.
static void input_sums(struct layer *l, const float *ih, const int32_t *ids, const float *x)
{
    long depth = ids ? l->D : l->X * BLOCK;
    pack_gates(l, l->input, ih, l->D, depth);
    for (long i = 0; ids && i < l->K * l->U; i++)
        for (long d = 0; d < l->D; d++)
            for (int j = 0; j < BLOCK; j++)
                l->input[(i * l->D + d) * BLOCK + j] += l->bias[i * BLOCK + j];
    if (ids)
        return;
    for (long v = 0; v < l->X; v++)
        to_block(l->N, l->x + v * l->S * BLOCK, x + v * BLOCK, l->D, columns_of(l->D, v));
    for (long n = 0; n < l->N; n += INPUT_ROWS) {
        long rows = least(INPUT_ROWS, l->N - n);
        for (long i = 0; i < l->K * l->U; i++) {
            float *sums = l->gates + (i * l->S + n) * BLOCK;
            start_rows(l, sums, i, rows);
            product(rows, sums, l->x + n * BLOCK, l->S * BLOCK, l->X,
                    l->input + i * depth * BLOCK);
        }
    }
}

// What step t's sums of block u start from, where input_sums has not set it.
static void start_step(struct layer *l, long t, long u, const int32_t *ids)
{
    if (l->cell == GRU)
        start_rows(l, gate_at(l, 3, u, t), 3 * l->U + u, l->B);
    for (long g = 0; ids && g < l->K; g++) {
        float *restrict sums = gate_at(l, g, u, t);
        const float *restrict table = l->input + (g * l->U + u) * l->D * BLOCK;
        for (long b = 0; b < l->B; b++)
            for (int j = 0; j < BLOCK; j += VW)
                store(sums + b * BLOCK + j, load(table + ids[t * l->B + b] * BLOCK + j));
    }
}

// Asks for a block's gates at step t and its state before step `state`, which lie in as many pages
// as there are tensors, where the processor does not see them coming. They arrive while a product
// runs.
static void prefetch_step(const struct layer *l, long t, long u, long state)
{
    for (long g = 0; g < l->G; g++)
        prefetch_rows(l->B, gate_at(l, g, u, t));
    prefetch_rows(l->B, state_at(l, l->cell == LSTM ? l->c : l->h, u, state));
}

// Adds W_hh's gate g of block u, times rows of state blocks, to gate tensor `to`.
INLINE void recurrent_sum(struct layer *l, long t, long u, long g, long to, const float *state)
{
    product(l->B, gate_at(l, to, u, t), state, l->S * BLOCK, l->U,
            l->hidden + (g * l->U + u) * l->U * BLOCK * BLOCK);
}

static void step_forward(struct layer *l, long t, const int32_t *ids)
{
    const float *h = state_at(l, l->h, 0, t);
    long early = l->cell == GRU_BEFORE ? 2 : l->K;
    for (long u = 0; u < l->U; u++) {
        start_step(l, t, u, ids);
        if (u + 1 < l->U)
            prefetch_step(l, t, u + 1, t + 1);
        else if (t + 1 < l->T)
            prefetch_step(l, t + 1, 0, t + 2);
        for (long g = 0; g < early; g++)
            recurrent_sum(l, t, u, g, apart(l, g), h);
        switch (l->cell) {
        case LSTM: lstm_step(l, t, u); break;
        case GRU: gru_step(l, t, u); break;
        case GRU_BEFORE: gru_before_step(l, t, u); break;
        default: rnn_step(l, t, u);
        }
    }
    for (long u = 0; l->cell == GRU_BEFORE && u < l->U; u++) {
        recurrent_sum(l, t, u, 2, 2, aux_at(l, 0, t));
        gru_before_finish(l, t, u);
    }
}

// Copies between a state [B, H] and its blocks before step t.
static void load_state(const struct layer *l, float *states, const float *from)
{
    for (long u = 0; u < l->U; u++)
        to_block(l->B, state_at(l, states, u, 0), from + u * BLOCK, l->H, columns_of(l->H, u));
}

static void save_states(const struct layer *l, float *to, float *states, long t, long rows)
{
    for (long u = 0; u < l->U; u++)
        from_block(rows, to + u * BLOCK, l->H, columns_of(l->H, u), state_at(l, states, u, t));
}

static void layer_forward(struct layer *l, const float *ih, const float *hh, const float *bih,
                          const float *bhh, const int32_t *ids, const float *x, const float *h0,
                          const float *c0, float *y, float *h, float *c)
{
    load_state(l, l->h, h0);
    if (l->cell == LSTM)
        load_state(l, l->c, c0);
    pack_bias(l, bih, bhh);
    input_sums(l, ih, ids, x);
    pack_gates(l, l->hidden, hh, l->H, l->U * BLOCK);
    for (long t = 0; t < l->T; t++)
        step_forward(l, t, ids);
    save_states(l, y, l->h, 1, l->N);
    save_states(l, h, l->h, l->T, l->B);
    if (l->cell == LSTM)
        save_states(l, c, l->c, l->T, l->B);
}

// dh of block u += W_hh's part of the gradient that gates g on hold at step t.
static void recurrent_gradient(struct layer *l, float *dh, long t, long u, long g, long gates)
{
    product(l->B, dh, gate_at(l, g, 0, t), l->S * BLOCK, gates * l->U,
            l->hidden_back + (u * l->K + g) * l->U * BLOCK * BLOCK);
}

static void step_backward(struct layer *l, long t, const float *dy)
{
    long through = l->cell == GRU_BEFORE ? 2 : l->K; // gates that h_t went into
    for (long u = 0; u < l->U; u++) {
        float *dh = carried(l, l->dh, u);
        prefetch_step(l, t, u, t);
        if (t + 1 < l->T)
            recurrent_gradient(l, dh, t + 1, u, 0, through);
        add_to_block(l->B, dh, dy + t * l->B * l->H + u * BLOCK, l->H, columns_of(l->H, u));
        switch (l->cell) {
        case LSTM: lstm_backstep(l, t, u); break;
        case GRU: gru_backstep(l, t, u); break;
        case GRU_BEFORE: gru_before_backstep(l, t, u); break;
        default: rnn_backstep(l, t, u);
        }
    }
    for (long u = 0; l->cell == GRU_BEFORE && u < l->U; u++) {
        memset(l->tile, 0, l->B * BLOCK * sizeof *l->tile);
        recurrent_gradient(l, l->tile, t, u, 2, 1);
        gru_before_backfinish(l, t, u, l->tile);
    }
}

// Sets a carried gradient from [B, H], or to zeros.
static void load_gradient(const struct layer *l, float *gradient, const float *from)
{
    if (!from) {
        memset(gradient, 0, l->U * l->B * BLOCK * sizeof *gradient);
        return;
    }
    for (long u = 0; u < l->U; u++)
        to_block(l->B, carried(l, gradient, u), from + u * BLOCK, l->H, columns_of(l->H, u));
}

static void save_gradient(const struct layer *l, float *to, float *gradient)
{
    for (long u = 0; u < l->U; u++)
        from_block(l->B, to + u * BLOCK, l->H, columns_of(l->H, u), carried(l, gradient, u));
}

// Rows n on of the gradients of W's rows for gate g, block u.
static void block_gradient(struct layer *l, long g, long u, long n, long rows,
                           const int32_t *ids, float *dih, float *dhh)
{
    long units = columns_of(l->H, u), first = g * l->H + u * BLOCK;
    const float *d = l->gates + ((g * l->U + u) * l->S + n) * BLOCK;
    int on_aux = l->cell == GRU_BEFORE && g == 2; // what W_hh multiplied
    const float *states = on_aux ? l->aux : l->h;
    for (long v = 0; v < l->U; v++)
        outer(dhh + first * l->H + v * BLOCK, l->H, units, columns_of(l->H, v), d,
              states + (v * l->S + n) * BLOCK, rows, n > 0);
    d = l->gates + ((apart(l, g) * l->U + u) * l->S + n) * BLOCK;
    if (!ids) {
        for (long v = 0; v < l->X; v++)
            outer(dih + first * l->D + v * BLOCK, l->D, units, columns_of(l->D, v), d,
                  l->x + (v * l->S + n) * BLOCK, rows, n > 0);
        return;
    }
    float *table = l->input + (g * l->U + u) * l->D * BLOCK;
    for (long r = 0; r < rows; r++)
        for (int j = 0; j < BLOCK; j += VW)
            add_to(table + ids[n + r] * BLOCK + j, load(d + r * BLOCK + j));
}

// Every weight's gradient, from the sums' gradients of all steps.
static void weight_gradients(struct layer *l, const int32_t *ids, float *dih, float *dhh,
                             float *dbih, float *dbhh)
{
    long chunks = (l->N + GRADIENT_ROWS - 1) / GRADIENT_ROWS;
    long chunk = (l->N + chunks - 1) / chunks;
    if (ids)
        memset(l->input, 0, l->K * l->U * l->D * BLOCK * sizeof *l->input);
    for (long n = 0; n < l->N; n += chunk)
        for (long g = 0; g < l->K; g++)
            for (long u = 0; u < l->U; u++)
                block_gradient(l, g, u, n, least(chunk, l->N - n), ids, dih, dhh);
    for (long g = 0; g < l->K; g++)
        for (long u = 0; u < l->U; u++) {
            long units = columns_of(l->H, u), first = g * l->H + u * BLOCK;
            long in = apart(l, g) * l->U + u;
            memcpy(dbhh + first, l->dbias + (g * l->U + u) * BLOCK, units * sizeof *dbhh);
            memcpy(dbih + first, l->dbias + in * BLOCK, units * sizeof *dbih);
            if (ids)
                transpose(dih + first * l->D, l->D, l->input + (g * l->U + u) * l->D * BLOCK,
                          BLOCK, l->D, units);
        }
}

// dx: [N, D], from the input side's gradients.
static void input_gradient(struct layer *l, const float *ih, float *dx)
{
    pack_gates_back(l, l->input_back, ih, l->D);
    for (long n = 0; n < l->N; n += INPUT_ROWS) {
        long rows = least(INPUT_ROWS, l->N - n);
        for (long v = 0; v < l->X; v++) {
            memset(l->tile, 0, rows * BLOCK * sizeof *l->tile);
            for (long g = 0; g < l->K; g++)
                product(rows, l->tile,
                        l->gates + (apart(l, g) * l->U * l->S + n) * BLOCK,
                        l->S * BLOCK, l->U,
                        l->input_back + (v * l->K + g) * l->U * BLOCK * BLOCK);
            from_block(rows, dx + n * l->D + v * BLOCK, l->D, columns_of(l->D, v), l->tile);
        }
    }
}

static void layer_backward(struct layer *l, const float *ih, const float *hh,
                           const int32_t *ids, const float *dy, const float *dh,
                           const float *dc, float *dih, float *dhh, float *dbih, float *dbhh,
                           float *dx, float *dh0, float *dc0)
{
    pack_gates_back(l, l->hidden_back, hh, l->H);
    memset(l->dbias, 0, l->G * l->U * BLOCK * sizeof *l->dbias);
    load_gradient(l, l->dh, dh);
    if (l->cell == LSTM)
        load_gradient(l, l->dc, dc);
    for (long t = l->T - 1; t >= 0; t--)
        step_backward(l, t, dy);
    if (dh0) {
        for (long u = 0; u < l->U; u++)
            recurrent_gradient(l, carried(l, l->dh, u), 0, u, 0,
                               l->cell == GRU_BEFORE ? 2 : l->K);
        save_gradient(l, dh0, l->dh);
    }
    if (dc0)
        save_gradient(l, dc0, l->dc);
    weight_gradients(l, ids, dih, dhh, dbih, dbhh);
    if (dx)
        input_gradient(l, ih, dx);
}
