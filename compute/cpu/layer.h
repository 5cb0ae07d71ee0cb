// A recurrent layer over a segment: pack the weights, sum the inputs of all steps, run the
// recurrence; backward, run it from the end, then make each weight's gradient for all steps.
//
// Every thread of a team runs these functions. Each has blocks of units, and all lanes, of every
// step; they meet after a step, whose h all of them read next. So the weights that a thread streams
// are its own alone and stay in its cache. Where there are too few blocks for the threads, each has
// a strip of lanes instead, and all units: such threads need not meet.

// Bytes of a dense input that go through the weights at a time, so that they stay in cache.
enum { INPUT_BYTES = 1 << 19 };

// Rows that a weight's gradient sums at a time: two blocks of so many fit the second-level cache,
// and each time costs a pass over the gradient.
enum { GRADIENT_ROWS = 1280 };

INLINE long least(long a, long b) { return a < b ? a : b; }

// What a thread has of a step: blocks u to ue, lanes b to be.
struct field {
    long u, ue, b, be;
    int meets;
};

// Between 0 and 1: how busy n units of work keep so many threads.
INLINE double balance(long n, int threads)
{
    return (double)n / ((n + threads - 1) / threads * threads);
}

static struct field field_of(const struct layer *l, const struct member *m)
{
    struct field f = {0, l->U, 0, l->B, 0};
    if (m->count == 1)
        return f;
    f.meets = 1.2 * balance(l->U, m->count) >= balance(blocks_up(l->B, l->lanes), m->count);
    if (f.meets)
        rondo_share(m, l->U, 1, &f.u, &f.ue);
    else
        rondo_share(m, l->B, l->lanes, &f.b, &f.be);
    return f;
}

INLINE void meet(const struct field *f, const struct member *m)
{
    if (f->meets)
        rondo_team_meet(m);
}

// GRU's n keeps its sides apart, the other gates sum them: forward, the recurrent side of gate g is
// summed into this tensor; backward, the input side's gradient is in it.
INLINE long apart(const struct layer *l, long g)
{
    return l->cell == GRU && g == 2 ? 3 : g;
}

// Where operands of block i, step t, lane b are: as rows (of S a block) and as pairs.
INLINE operand *row_at(const struct layer *l, void *rows, long i, long t, long b)
{
    return (operand *)rows + (i * l->S + t * l->B + b) * BLOCK;
}

INLINE operand *pair_at(const struct layer *l, void *pairs, long i, long t, long b)
{
    return (operand *)pairs + (i * l->Q + t * l->P + b) * BLOCK;
}

// Makes operands of a strip's floats, block i of a tensor. Float operands are those floats.
INLINE void put_strip(const struct layer *l, void *rows, void *pairs, long i,
                      const struct strip *s, long t, const float *from)
{
    if (!BF16)
        return;
    put_rows(s->lanes, row_at(l, rows, i, t, s->b), from, BLOCK, BLOCK);
    if (!l->inference && t < l->T)
        put_pairs(s->lanes, pair_at(l, pairs, i, t, s->b), from, BLOCK, BLOCK);
}

// Panels [K*U][padded][BLOCK] from w: [K*H, cols]: columns become rows.
static void pack_gates(const struct member *m, const struct layer *l, operand *panels,
                       const float *w, long cols, long padded)
{
    long i, end;
    for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++) {
        long g = i / l->U, u = i % l->U;
        pack_columns(panels + i * padded * BLOCK, w + (g * l->H + u * BLOCK) * cols,
                     columns_of(l->H, u), cols, cols, padded);
    }
}

// Panels [blocks of cols][K*U*BLOCK][BLOCK] from w: [K*H, cols]: rows stay rows.
static void pack_gates_back(const struct member *m, const struct layer *l, operand *panels,
                            const float *w, long cols)
{
    long padded = l->U * BLOCK, i, end;
    for (rondo_share(m, blocks_of(cols) * l->K, 1, &i, &end); i < end; i++) {
        long v = i / l->K, g = i % l->K;
        pack_rows(panels + i * padded * BLOCK, w + g * l->H * cols + v * BLOCK, l->H, cols,
                  columns_of(cols, v), padded);
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
        copy_row(rows + r * BLOCK, bias);
}

// For ids: the table [K*U][D][BLOCK] of what each adds to the sums, biases included.
static void fill_table(const struct member *m, struct layer *l, const float *ih)
{
    long i, end;
    for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++) {
        long first = i / l->U * l->H + i % l->U * BLOCK;
        float *table = l->table + i * l->D * BLOCK;
        transpose_to_block(table, ih + first * l->D, columns_of(l->H, i % l->U), l->D, l->D, l->D);
        for (long d = 0; d < l->D; d++)
            for (int j = 0; j < BLOCK; j += VW)
                add_to(table + d * BLOCK + j, load(l->bias + i * BLOCK + j));
    }
}

// Dense input as operands: blocks of it to each thread. Pairs begin each step on an even row.
static void put_input(const struct member *m, struct layer *l, const float *x)
{
    long v, end;
    for (rondo_share(m, l->X, 1, &v, &end); v < end; v++) {
        const float *from = x + v * BLOCK;
        long n = columns_of(l->D, v);
        put_rows(l->N, row_at(l, l->x_rows, v, 0, 0), from, l->D, n);
        if (!BF16 || l->inference)
            continue;
        long steps = l->P == l->B ? 1 : l->T, rows = l->N / steps;
        for (long t = 0; t < steps; t++)
            put_pairs(rows, pair_at(l, l->x_pairs, v, t, 0), from + t * rows * l->D, l->D, n);
    }
}

// Rows of so many blocks of operands that go through weights at a time.
INLINE long rows_at_once(long blocks)
{
    long rows = INPUT_BYTES / (blocks * BLOCK * (long)sizeof(operand)) / 16 * 16;
    return rows < 64 ? 64 : least(rows, INPUT_ROWS);
}

// The sums of all steps from dense input: panels to each thread.
static void input_sums(const struct member *m, struct layer *l)
{
    long first, end, chunk = rows_at_once(l->X), depth = l->X * BLOCK;
    rondo_share(m, l->K * l->U, 1, &first, &end);
    for (long n = 0; n < l->N; n += chunk) {
        long rows = least(chunk, l->N - n);
        for (long i = first; i < end; i++) {
            float *sums = l->gates + (i * l->S + n) * BLOCK;
            start_rows(l, sums, i, rows);
            product(rows, sums, row_at(l, l->x_rows, 0, 0, n), l->S * BLOCK, l->X,
                    (operand *)l->input + i * depth * BLOCK);
        }
    }
}

// What a strip's sums start from, where input_sums has not set it.
static void start_step(struct layer *l, const struct strip *s, const int32_t *ids)
{
    if (l->cell == GRU)
        start_rows(l, gate_at(l, 3, s), 3 * l->U + s->u, s->lanes);
    for (long g = 0; ids && g < l->K; g++) {
        const int32_t *id = ids + s->t * l->B + s->b;
        float *restrict sums = gate_at(l, g, s);
        const float *restrict table = l->table + (g * l->U + s->u) * l->D * BLOCK;
        for (long b = 0; b < s->lanes; b++)
            copy_row(sums + b * BLOCK, table + id[b] * BLOCK);
    }
}

// Asks for a strip's gates and its state at step t, which lie in as many pages as there are
// tensors, where the processor does not see them coming. They arrive while a product runs.
static void prefetch_strip(const struct layer *l, struct strip s, long state)
{
    for (long g = 0; g < l->G; g++)
        prefetch_rows(s.lanes, gate_at(l, g, &s));
    s.t = state;
    prefetch_rows(s.lanes, state_at(l, l->cell == LSTM ? l->c : l->h, &s));
}

// Adds W_hh's gate g, times rows of state operands, to gate tensor `to`.
INLINE void recurrent_sum(struct layer *l, const struct strip *s, long g, long to, void *state)
{
    product(s->lanes, gate_at(l, to, s), row_at(l, state, 0, s->t, s->b), l->S * BLOCK, l->U,
            (operand *)l->hidden + (g * l->U + s->u) * l->U * BLOCK * BLOCK);
}

// h after a strip's step, to where the next step, the gradient and the caller read it.
static void finish_strip(struct layer *l, const struct strip *s, const struct layer_call *c)
{
    const float *h = state_after(l, l->h, s);
    put_strip(l, l->h_rows, l->h_pairs, s->u, s, s->t + 1, h);
    from_block(s->lanes, c->y + (s->t * l->B + s->b) * l->H + s->u * BLOCK, l->H,
               columns_of(l->H, s->u), h);
}

static void step_forward(const struct member *m, const struct field *f, struct layer *l, long t,
                         const struct layer_call *c)
{
    struct strip s = {t, f->u, f->b, f->be - f->b};
    long early = l->cell == GRU_BEFORE ? 2 : l->K;
    for (; s.u < f->ue; s.u++) {
        struct strip next = s;
        next.u = s.u + 1 < f->ue ? s.u + 1 : f->u;
        next.t = s.u + 1 < f->ue ? t : t + 1;
        start_step(l, &s, c->ids);
        if (next.t < l->T)
            prefetch_strip(l, next, next.t + 1);
        for (long g = 0; g < early; g++)
            recurrent_sum(l, &s, g, apart(l, g), l->h_rows);
        switch (l->cell) {
        case LSTM: lstm_step(l, &s); break;
        case GRU: gru_step(l, &s); break;
        case GRU_BEFORE:
            gru_before_step(l, &s);
            put_strip(l, l->aux_rows, l->aux_pairs, s.u, &s, t, state_at(l, l->aux, &s));
            break;
        default: rnn_step(l, &s);
        }
        if (l->cell != GRU_BEFORE)
            finish_strip(l, &s, c);
    }
    meet(f, m);
    if (l->cell != GRU_BEFORE)
        return;
    for (s.u = f->u; s.u < f->ue; s.u++) {
        recurrent_sum(l, &s, 2, 2, l->aux_rows);
        gru_before_finish(l, &s);
        finish_strip(l, &s, c);
    }
    meet(f, m);
}

// A state [B, H] to its blocks before step 0, or zeros from a null one.
static void load_blocks(const struct layer *l, const struct field *f, float *blocks, long stride,
                        const float *from)
{
    for (long u = f->u; u < f->ue; u++) {
        float *to = blocks + (u * stride + f->b) * BLOCK;
        if (from)
            to_block(f->be - f->b, to, from + f->b * l->H + u * BLOCK, l->H, columns_of(l->H, u));
        else
            memset(to, 0, (f->be - f->b) * BLOCK * sizeof *to);
    }
}

static void save_blocks(const struct layer *l, const struct field *f, float *to, long stride,
                        const float *blocks)
{
    for (long u = f->u; u < f->ue; u++)
        from_block(f->be - f->b, to + f->b * l->H + u * BLOCK, l->H, columns_of(l->H, u),
                   blocks + (u * stride + f->b) * BLOCK);
}

static void layer_forward(const struct member *m, struct layer *l, const struct layer_call *c)
{
    const struct field f = field_of(l, m);
    if (m->index == 0)
        pack_bias(l, c->bih, c->bhh);
    load_blocks(l, &f, l->h, l->S, c->h0);
    if (l->cell == LSTM)
        load_blocks(l, &f, l->c, l->S, c->c0);
    for (struct strip s = {0, f.u, f.b, f.be - f.b}; s.u < f.ue; s.u++)
        put_strip(l, l->h_rows, l->h_pairs, s.u, &s, 0, state_at(l, l->h, &s));
    pack_gates(m, l, l->hidden, c->hh, l->H, l->U * BLOCK);
    if (c->x) {
        put_input(m, l, c->x);
        pack_gates(m, l, l->input, c->ih, l->D, l->X * BLOCK);
    }
    rondo_team_meet(m);
    if (c->x)
        input_sums(m, l);
    else
        fill_table(m, l, c->ih);
    rondo_team_meet(m);
    for (long t = 0; t < l->T; t++)
        step_forward(m, &f, l, t, c);
    save_blocks(l, &f, c->h, l->S, l->h + l->N * BLOCK);
    if (l->cell == LSTM)
        save_blocks(l, &f, c->c, l->S, l->c + l->N * BLOCK);
}

// dh of a strip += W_hh's part of the gradient that gates g on hold at its step.
static void recurrent_gradient(struct layer *l, const struct strip *s, float *dh, long g,
                               long gates)
{
    product(s->lanes, dh, row_at(l, l->d_rows, g * l->U, s->t, s->b), l->S * BLOCK,
            gates * l->U,
            (operand *)l->hidden_back + (s->u * l->K + g) * l->U * BLOCK * BLOCK);
}

// The gradients of gates g on, as operands.
static void put_gradients(struct layer *l, const struct strip *s, long g, long gates)
{
    for (; gates; g++, gates--)
        put_strip(l, l->d_rows, l->d_pairs, g * l->U + s->u, s, s->t, gate_at(l, g, s));
}

// Part of a strip: those of its lanes that share a sum of the biases' gradient.
INLINE struct strip sub_strip(const struct layer *l, const struct strip *s, long b)
{
    return (struct strip){s->t, s->u, s->b + b, least(l->lanes, s->lanes - b)};
}

static void backstep(struct layer *l, const struct strip *whole)
{
    for (long b = 0; b < whole->lanes; b += l->lanes) {
        struct strip s = sub_strip(l, whole, b);
        switch (l->cell) {
        case LSTM: lstm_backstep(l, &s); break;
        case GRU: gru_backstep(l, &s); break;
        case GRU_BEFORE: gru_before_backstep(l, &s); break;
        default: rnn_backstep(l, &s);
        }
    }
}

static void step_backward(const struct member *m, const struct field *f, struct layer *l, long t,
                          const float *dy)
{
    struct strip s = {t, f->u, f->b, f->be - f->b};
    long through = l->cell == GRU_BEFORE ? 2 : l->K; // gates that h_t went into
    for (; s.u < f->ue; s.u++) {
        float *dh = carried(l, l->dh, &s);
        struct strip next = s;
        next.t++;
        prefetch_strip(l, s, t);
        if (next.t < l->T)
            recurrent_gradient(l, &next, dh, 0, through);
        add_to_block(s.lanes, dh, dy + (t * l->B + s.b) * l->H + s.u * BLOCK, l->H,
                     columns_of(l->H, s.u));
        backstep(l, &s);
        if (l->cell == GRU_BEFORE)
            put_gradients(l, &s, 1, 2);
        else
            put_gradients(l, &s, 0, l->G);
    }
    meet(f, m);
    if (l->cell != GRU_BEFORE)
        return;
    float *drh = l->tile + m->index * l->tile_rows * BLOCK;
    for (s.u = f->u; s.u < f->ue; s.u++) {
        memset(drh, 0, s.lanes * BLOCK * sizeof *drh);
        recurrent_gradient(l, &s, drh, 2, 1);
        for (long b = 0; b < s.lanes; b += l->lanes) {
            struct strip part = sub_strip(l, &s, b);
            gru_before_backfinish(l, &part, drh + b * BLOCK);
        }
        put_gradients(l, &s, 0, 1);
    }
    meet(f, m);
}

// Rows n on, of the gradients of W's rows for gate g, block u.
static void block_gradient(struct layer *l, long g, long u, long n, long rows,
                           const struct layer_call *c)
{
    long units = columns_of(l->H, u), first = g * l->H + u * BLOCK;
    operand *d = pair_at(l, l->d_pairs, g * l->U + u, 0, n);
    int on_aux = l->cell == GRU_BEFORE && g == 2; // what W_hh multiplied
    void *states = on_aux ? l->aux_pairs : l->h_pairs;
    for (long v = 0; v < l->U; v++)
        outer(c->dhh + first * l->H + v * BLOCK, l->H, units, columns_of(l->H, v), d,
              pair_at(l, states, v, 0, n), rows, n > 0);
    d = pair_at(l, l->d_pairs, apart(l, g) * l->U + u, 0, n);
    for (long v = 0; !c->ids && v < l->X; v++)
        outer(c->dih + first * l->D + v * BLOCK, l->D, units, columns_of(l->D, v), d,
              pair_at(l, l->x_pairs, v, 0, n), rows, n > 0);
}

// The gradient of W_ih's rows for gate g, block u, from ids: gathered in the table, transposed.
static void id_gradient(struct layer *l, long g, long u, const struct layer_call *c)
{
    long units = columns_of(l->H, u), first = g * l->H + u * BLOCK;
    float *table = l->table + (g * l->U + u) * l->D * BLOCK;
    const float *d = l->gates + (apart(l, g) * l->U + u) * l->S * BLOCK;
    memset(table, 0, l->D * BLOCK * sizeof *table);
    for (long r = 0; r < l->N; r++)
        for (int j = 0; j < BLOCK; j += VW)
            add_to(table + c->ids[r] * BLOCK + j, load(d + r * BLOCK + j));
    transpose(c->dih + first * l->D, l->D, table, BLOCK, l->D, units);
}

// Block u of a bias's gradient: the sum over all lanes of gate tensor g's.
static void bias_gradient(const struct layer *l, long g, long u, float *to)
{
    long strips = blocks_up(l->B, l->lanes);
    for (long j = 0; j < columns_of(l->H, u); j++) {
        const float *from = l->dbias + (g * l->U + u) * BLOCK + j;
        float sum = 0;
        for (long i = 0; i < strips; i++)
            sum += from[i * l->G * l->U * BLOCK];
        to[j] = sum;
    }
}

// Every weight's gradient, from the sums' gradients of all steps: blocks of them to each thread.
static void weight_gradients(const struct member *m, struct layer *l, const struct layer_call *c)
{
    long chunks = blocks_up(l->M, GRADIENT_ROWS), first, end;
    long chunk = blocks_up(blocks_up(l->M, chunks), BLOCK) * BLOCK;
    rondo_share(m, l->K * l->U, 1, &first, &end);
    for (long n = 0; n < l->M; n += chunk)
        for (long i = first; i < end; i++)
            block_gradient(l, i / l->U, i % l->U, n, least(chunk, l->M - n), c);
    for (long i = first; i < end; i++) {
        long g = i / l->U, u = i % l->U;
        if (c->ids)
            id_gradient(l, g, u, c);
        bias_gradient(l, g, u, c->dbhh + g * l->H + u * BLOCK);
        bias_gradient(l, apart(l, g), u, c->dbih + g * l->H + u * BLOCK);
    }
}

// dx: [N, D], from the input side's gradients: rows of it to each thread.
static void input_gradient(const struct member *m, struct layer *l, float *dx)
{
    float *tile = l->tile + m->index * l->tile_rows * BLOCK;
    long chunk = rows_at_once(l->K * l->U), n, end;
    for (rondo_share(m, l->N, chunk, &n, &end); n < end; n += chunk) {
        long rows = least(chunk, end - n);
        for (long v = 0; v < l->X; v++) {
            memset(tile, 0, rows * BLOCK * sizeof *tile);
            for (long g = 0; g < l->K; g++)
                product(rows, tile, row_at(l, l->d_rows, apart(l, g) * l->U, 0, n), l->S * BLOCK,
                        l->U, (operand *)l->input_back + (v * l->K + g) * l->U * BLOCK * BLOCK);
            from_block(rows, dx + n * l->D + v * BLOCK, l->D, columns_of(l->D, v), tile);
        }
    }
}

static void layer_backward(const struct member *m, struct layer *l, const struct layer_call *c)
{
    const struct field f = field_of(l, m);
    pack_gates_back(m, l, l->hidden_back, c->hh, l->H);
    if (c->dx)
        pack_gates_back(m, l, l->input_back, c->ih, l->D);
    if (m->index == 0)
        memset(l->dbias, 0, blocks_up(l->B, l->lanes) * l->G * l->U * BLOCK * sizeof *l->dbias);
    load_blocks(l, &f, l->dh, l->B, c->dh);
    if (l->cell == LSTM)
        load_blocks(l, &f, l->dc, l->B, c->dc);
    rondo_team_meet(m);
    for (long t = l->T - 1; t >= 0; t--)
        step_backward(m, &f, l, t, c->dy);
    for (struct strip s = {0, f.u, f.b, f.be - f.b}; c->dh0 && s.u < f.ue; s.u++)
        recurrent_gradient(l, &s, carried(l, l->dh, &s), 0, l->cell == GRU_BEFORE ? 2 : l->K);
    if (c->dh0)
        save_blocks(l, &f, c->dh0, l->B, l->dh);
    if (c->dc0)
        save_blocks(l, &f, c->dc0, l->B, l->dc);
    rondo_team_meet(m);
    weight_gradients(m, l, c);
    if (c->dx)
        input_gradient(m, l, c->dx);
}
