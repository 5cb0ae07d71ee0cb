// A recurrent layer over a segment: pack the weights, sum the inputs of all steps, run the
// recurrence; backward, run it from the end, then make each weight's gradient for all steps.
//
// Every thread of a team runs these functions. A thread computes some blocks of units for all
// lanes. It reads only those units' weights, which stay in its cache. The threads meet after each
// step, because the next step reads all units' h. If there are too few blocks for the threads, each
// computes some lanes for all units instead, and they need not meet.

// Rows that a weight's gradient sums at a time. Two blocks of these fit the second-level cache;
// fewer rows would cost more passes over the gradient.
enum { GRADIENT_ROWS = 1280 };

// Converts a strip's floats to operands, at step t and block i of a tensor. Float operands need no
// conversion.
INLINE void put_strip(const struct layer *l, const struct tensor *rows,
                      const struct tensor *pairs, long i, const struct strip *s, long t,
                      const float *from)
{
    if (!BF16)
        return;
    put_rows(s->lanes, operands_at(rows, i, t, s->b), from, BLOCK, BLOCK);
    if (!l->inference && t < l->T)
        put_pairs(s->lanes, operands_at(pairs, i, t, s->b), from, BLOCK, BLOCK);
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

// bias: [G*U][BLOCK], the sum of a gate's two biases. GRU's n has b_in only; b_hn belongs to q.
// peephole: [P*U][BLOCK].
static void pack_bias(struct layer *l, const float *bih, const float *bhh, const float *peephole)
{
    for (long p = 0; p < l->P; p++)
        for (long j = 0; j < l->H; j++)
            l->peephole[p * l->U * BLOCK + j] = peephole[p * l->H + j];
    for (long g = 0; g < l->G; g++)
        for (long j = 0; j < l->U * BLOCK; j++) {
            float *b = l->bias + g * l->U * BLOCK + j;
            if (j >= l->H || (g >= l->K && l->cell != GRU))
                *b = 0;
            else if (l->cell == GRU && g >= 2)
                *b = g == 2 ? bih[2 * l->H + j] : bhh[2 * l->H + j];
            else
                *b = bih[g * l->H + j] + (l->R ? bhh[g * l->H + j] : 0);
        }
}

// Sets the first terms of a strip's sums, unless input_sums has.
static void start_step(struct layer *l, const struct strip *s)
{
    if (l->cell == GRU)
        start_rows(l, gate_at(l, 3, s), 3 * l->U + s->u, s->lanes);
    for (long g = 0; l->in->ids && g < l->K; g++) {
        const int32_t *slots = l->in->slots + s->t * l->B + s->b;
        float *restrict sums = gate_at(l, g, s);
        const float *restrict table = table_at(l, g * l->U + s->u, 0);
        for (long b = 0; b < s->lanes; b++)
            copy_row(sums + b * BLOCK, table + slots[b] * BLOCK);
    }
}

// Prefetches a strip's gates, and its state at step `state`. Each tensor lies in a page of its own,
// so that the processor's own prefetcher does not follow. They arrive while a product runs.
static void prefetch_strip(const struct layer *l, struct strip s, long state)
{
    for (long g = 0; g < l->G; g++)
        prefetch_rows(s.lanes, gate_at(l, g, &s));
    s.t = state;
    prefetch_rows(s.lanes, before(l->states == 2 ? &l->c : &l->h, &s));
}

// Prefetches a strip's columns of y or dy: [T, B, H].
static void prefetch_columns(const struct layer *l, const struct strip *s, const float *y)
{
    y += (s->t * l->B + s->b) * l->H + s->u * BLOCK;
    for (long b = 0; b < s->lanes; b++, y += l->H) {
        __builtin_prefetch(y, 0, 2);
        __builtin_prefetch(y + BLOCK / 2, 0, 2);
    }
}

// Prefetches the pairs of bf16 that a strip writes at step t and block i of a tensor.
static void prefetch_pairs(const struct layer *l, const struct tensor *pairs, long i,
                           const struct strip *s, long t)
{
    if (BF16 && !l->inference && t < l->T)
        prefetch_rows(s->lanes / UNIT, (const float *)operands_at(pairs, i, t, s->b));
}

// Gate tensors `to` on += state W_hh^T, for W_hh's gates g on.
INLINE void recurrent_sums(struct layer *l, const struct strip *s, long g, long to, long gates,
                           const struct tensor *state)
{
    const long panels = l->U * BLOCK * BLOCK;
    products(gates, s->lanes, gate_at(l, to, s), l->U * l->gates.stride * BLOCK,
             operands_at(state, 0, s->t, s->b), state->stride * BLOCK, l->U,
             (operand *)l->hidden + (g * l->U + s->u) * panels, l->U * panels);
}

// Whether lane b of a strip has ended before its step.
INLINE int ended(const struct strip *s, long b, const struct layer_call *c)
{
    return s->t >= c->lengths[s->b + b];
}

// Lanes that have ended keep their h or c.
static void hold_state(const struct strip *s, const struct tensor *x, const struct layer_call *c)
{
    for (long b = 0; b < s->lanes; b++)
        if (ended(s, b, c))
            copy_row(after(x, s) + b * BLOCK, before(x, s) + b * BLOCK);
}

// Copies h after a strip's step to y and to the operands of the next step and the gradient.
static void finish_strip(struct layer *l, const struct strip *s, const struct layer_call *c)
{
    const float *h = after(&l->h, s);
    if (c->lengths) {
        hold_state(s, &l->h, c);
        if (l->states == 2)
            hold_state(s, &l->c, c);
    }
    put_strip(l, &l->h_rows, &l->h_pairs, s->u, s, s->t + 1, h);
    from_block(s->lanes, c->y + (s->t * l->B + s->b) * l->H + s->u * BLOCK, l->H,
               columns_of(l->H, s->u), h);
}

static void step_forward(const struct member *m, const struct field *f, struct layer *l, long t,
                         const struct layer_call *c)
{
    struct strip s = {t, f->u, f->b, f->be - f->b};
    // Gates that add h W_hh^T to their own sums in this step's first half.
    long early = l->R - (l->cell == GRU || l->before);
    for (; s.u < f->ue; s.u++) {
        struct strip next = s;
        next.u = s.u + 1 < f->ue ? s.u + 1 : f->u;
        next.t = s.u + 1 < f->ue ? t : t + 1;
        start_step(l, &s);
        if (next.t < l->T)
            prefetch_strip(l, next, next.t + 1);
        prefetch_columns(l, &s, c->y);
        prefetch_pairs(l, &l->h_pairs, s.u, &s, t + 1);
        if (early)
            recurrent_sums(l, &s, 0, 0, early, &l->h_rows);
        if (l->cell == GRU)
            recurrent_sums(l, &s, 2, 3, 1, &l->h_rows);
        cell_step(l, &s);
        if (l->before)
            put_strip(l, &l->aux_rows, &l->aux_pairs, s.u, &s, t, before(&l->aux, &s));
        else
            finish_strip(l, &s, c);
    }
    meet(f, m);
    if (!l->before)
        return;
    for (s.u = f->u; s.u < f->ue; s.u++) {
        recurrent_sums(l, &s, l->K - 1, l->K - 1, 1, &l->aux_rows);
        gru_before_finish(l, &s);
        finish_strip(l, &s, c);
    }
    meet(f, m);
}

// blocks: [U][stride][BLOCK], from [B, H]; zeros if from is null.
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

// Load the state before the first step; save the state after the last.
static void load_state(const struct layer *l, const struct field *f, const struct tensor *x,
                       const float *from)
{
    load_blocks(l, f, (float *)x->at + spot(x, 0, 0, 0), x->stride, from);
}

static void save_state(const struct layer *l, const struct field *f, float *to,
                       const struct tensor *x)
{
    save_blocks(l, f, to, x->stride, (float *)x->at + spot(x, 0, l->T, 0));
}

static void layer_forward(const struct member *m, struct layer *l, const struct layer_call *c)
{
    const struct field f = field_of(l, m);
    if (m->index == 0 && !l->packed)
        pack_bias(l, c->bih, c->bhh, c->peephole);
    if (m->index == 0 && c->ids)
        number_ids(l->in, l->N, c->ids);
    load_state(l, &f, &l->h, c->h0);
    if (l->states == 2)
        load_state(l, &f, &l->c, c->c0);
    for (struct strip s = {0, f.u, f.b, f.be - f.b}; s.u < f.ue; s.u++)
        put_strip(l, &l->h_rows, &l->h_pairs, s.u, &s, 0, before(&l->h, &s));
    if (l->R && !l->packed)
        pack_gates(m, l, l->hidden, c->hh, l->H, l->U * BLOCK);
    if (c->x)
        put_input(m, l, c->x);
    if (c->x && !l->packed)
        pack_gates(m, l, l->in->panels, c->ih, l->D, l->X * BLOCK);
    rondo_team_meet(m);
    if (c->x)
        input_sums(m, l);
    else
        fill_table(m, l, c->ih);
    rondo_team_meet(m);
    for (long t = 0; t < l->T; t++)
        step_forward(m, &f, l, t, c);
    save_state(l, &f, c->h, &l->h);
    if (l->states == 2)
        save_state(l, &f, c->c, &l->c);
}

// dh += d W_hh at a strip's step, for gates g on. dh: that of the strip's block and the next ones,
// `blocks` in all.
static void recurrent_gradients(struct layer *l, const struct strip *s, long blocks, float *dh,
                                long g, long gates)
{
    const long panels = l->U * BLOCK * BLOCK;
    products(blocks, s->lanes, dh, l->B * BLOCK, operands_at(&l->d_rows, g * l->U, s->t, s->b),
             l->d_rows.stride * BLOCK, gates * l->U,
             (operand *)l->hidden_back + (s->u * l->K + g) * panels, l->K * panels);
}

// Converts the gradients of gates g on to operands.
static void put_gradients(struct layer *l, const struct strip *s, long g, long gates)
{
    for (; gates; g++, gates--)
        put_strip(l, &l->d_rows, &l->d_pairs, g * l->U + s->u, s, s->t, gradient_at(l, g, s));
}

// The lanes of a strip from b on that add to one row of dbias.
INLINE struct strip sub_strip(const struct layer *l, const struct strip *s, long b)
{
    return (struct strip){s->t, s->u, s->b + b, least(l->lanes, s->lanes - b)};
}

static void backstep(struct layer *l, const struct strip *whole)
{
    for (long b = 0; b < whole->lanes; b += l->lanes) {
        struct strip s = sub_strip(l, whole, b);
        cell_backstep(l, &s);
    }
}

// backstep for lanes of different lengths. The gradients of h and c of a lane that has ended pass
// unchanged: they wait in kept, which has room for both, while the step gets zeros for them, so
// that its gates get no gradient.
static void hold_backstep(struct layer *l, const struct strip *s, const struct layer_call *c,
                          float *kept)
{
    float *const states[] = {l->dh, l->dc};
    for (int i = 0; i < l->states; i++)
        for (long b = 0; b < s->lanes; b++)
            if (ended(s, b, c)) {
                float *d = carried(l, states[i], s) + b * BLOCK;
                copy_row(kept + (i * s->lanes + b) * BLOCK, d);
                memset(d, 0, BLOCK * sizeof *d);
            }
    backstep(l, s);
    for (int i = 0; i < l->states; i++)
        for (long b = 0; b < s->lanes; b++)
            if (ended(s, b, c))
                copy_row(carried(l, states[i], s) + b * BLOCK, kept + (i * s->lanes + b) * BLOCK);
}

// The second half of a step that resets h before the product: through r h.
static void finish_backward(const struct member *m, const struct field *f, struct layer *l, long t)
{
    struct strip s = {t, f->u, f->b, f->be - f->b};
    float *drh = l->tile + m->index * l->tile_rows * BLOCK;
    meet(f, m);
    for (; s.u < f->ue; s.u++) {
        memset(drh, 0, s.lanes * BLOCK * sizeof *drh);
        recurrent_gradients(l, &s, 1, drh, l->K - 1, 1);
        for (long b = 0; b < s.lanes; b += l->lanes) {
            struct strip part = sub_strip(l, &s, b);
            gru_before_backfinish(l, &part, drh + b * BLOCK);
        }
        put_gradients(l, &s, 0, 1);
    }
}

static void step_backward(const struct member *m, const struct field *f, struct layer *l, long t,
                          const struct layer_call *c)
{
    struct strip s = {t, f->u, f->b, f->be - f->b};
    const float *dy = c->dy + (t * l->B + s.b) * l->H;
    long through = l->R - l->before; // gates that multiply h
    for (; s.u < f->ue; s.u++) {
        float *dh = carried(l, l->dh, &s);
        struct strip next = s;
        next.t++;
        prefetch_strip(l, s, t);
        prefetch_columns(l, &s, c->dy);
        for (long g = 0; g < l->G; g++)
            prefetch_pairs(l, &l->d_pairs, g * l->U + s.u, &s, t);
        if (through && next.t < l->T && (s.u - f->u) % 2 == 0) // two at a time
            recurrent_gradients(l, &next, least(2, f->ue - s.u), dh, 0, through);
        add_to_block(s.lanes, dh, dy + s.u * BLOCK, l->H, columns_of(l->H, s.u));
        if (c->lengths)
            hold_backstep(l, &s, c, l->tile + m->index * l->tile_rows * BLOCK);
        else
            backstep(l, &s);
        if (l->before)
            put_gradients(l, &s, 1, l->K - 1);
        else
            put_gradients(l, &s, 0, l->G);
    }
    if (l->before)
        finish_backward(m, f, l, t);
    if (c->ids)
        scatter_step(m, f, l, t);
    meet(f, m);
}

// The part of rows n on of dW_ih, for block u of gate g.
static void input_block(struct layer *l, long g, long u, long n, long rows, float *dih)
{
    long units = columns_of(l->H, u), first = g * l->H + u * BLOCK;
    const struct tensor *d = &l->d_pairs, *x = &l->in->pairs;
    outers(dih + first * l->D, l->D, units, l->D, operands_at(d, apart(l, g) * l->U + u, 0, n),
           operands_at(x, 0, 0, n), x->stride * BLOCK, rows, n > 0);
}

// The part of rows n on of dW_hh, for block u of gate g.
static void hidden_block(struct layer *l, long g, long u, long n, long rows, float *dhh)
{
    long units = columns_of(l->H, u), first = g * l->H + u * BLOCK;
    int on_aux = l->before && g == l->K - 1; // this gate's W_hh multiplied r h, not h
    const struct tensor *d = &l->d_pairs, *states = on_aux ? &l->aux_pairs : &l->h_pairs;
    outers(dhh + first * l->H, l->H, units, l->H, operands_at(d, g * l->U + u, 0, n),
           operands_at(states, 0, 0, n), states->stride * BLOCK, rows, n > 0);
}

// Block u of the gradient of gate tensor g's bias, or of peephole g - G: the sum of dbias's rows.
static void bias_gradient(const struct layer *l, long g, long u, float *to)
{
    long strips = blocks_up(l->B, l->lanes);
    for (long j = 0; j < columns_of(l->H, u); j++) {
        const float *from = l->dbias + (g * l->U + u) * BLOCK + j;
        float sum = 0;
        for (long i = 0; i < strips; i++)
            sum += from[i * l->sums * l->U * BLOCK];
        to[j] = sum;
    }
}

// The rows of dW for the gates [from, to), from the gradients of all steps' sums. Each thread makes
// some blocks.
static void weight_gradient(const struct member *m, struct layer *l, float *dw, long from, long to,
                            void (*block)(struct layer *l, long g, long u, long n, long rows,
                                          float *dw))
{
    long chunks = blocks_up(l->M, GRADIENT_ROWS), first, end;
    long chunk = blocks_up(blocks_up(l->M, chunks), BLOCK) * BLOCK;
    rondo_share(m, (to - from) * l->U, 1, &first, &end);
    for (long n = 0; n < l->M; n += chunk)
        for (long i = first; i < end; i++)
            block(l, from + i / l->U, i % l->U, n, least(chunk, l->M - n), dw);
}

static void input_weights(const struct member *m, struct layer *l, float *dih)
{
    long i, end;
    if (!l->in->ids)
        weight_gradient(m, l, dih, 0, l->K, input_block);
    else
        for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++)
            table_gradient(l, i, dih);
}

// The rows of dW_hh for the gates that the call asks for.
static void hidden_weights(const struct member *m, struct layer *l, const struct layer_call *c)
{
    long from = 0, to;
    while (from < l->R && !(c->parts & BACK_HIDDEN_GATE << from))
        from++;
    for (to = from; to < l->R && c->parts & BACK_HIDDEN_GATE << to;)
        to++;
    weight_gradient(m, l, c->dhh, from, to, hidden_block);
}

// The gradients of both biases and of the peepholes.
static void bias_gradients(const struct member *m, struct layer *l, const struct layer_call *c)
{
    long i, end;
    for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++) {
        long g = i / l->U, u = i % l->U;
        if (l->R)
            bias_gradient(l, g, u, c->dbhh + g * l->H + u * BLOCK);
        bias_gradient(l, apart(l, g), u, c->dbih + g * l->H + u * BLOCK);
    }
    for (rondo_share(m, l->P * l->U, 1, &i, &end); i < end; i++)
        bias_gradient(l, l->G + i / l->U, i % l->U,
                      c->dpeephole + i / l->U * l->H + i % l->U * BLOCK);
}

// The recurrence, from the last step to the first. It leaves the gradients of all steps' sums.
static void recur_backward(const struct member *m, struct layer *l, const struct layer_call *c)
{
    const struct field f = field_of(l, m);
    if (l->R)
        pack_gates_back(m, l, l->hidden_back, c->hh, l->H);
    if (m->index == 0 && !l->in->compact)
        l->in->slots = c->ids;
    if (m->index == 0 && BF16) // only dx needs more than two steps of the rows
        l->d_rows.steps = c->dx && l->T > 2 ? l->T : 2;
    if (m->index == 0)
        memset(l->dbias, 0, blocks_up(l->B, l->lanes) * l->sums * l->U * BLOCK * sizeof *l->dbias);
    if (c->ids)
        zero_table(m, l);
    load_blocks(l, &f, l->dh, l->B, c->dh);
    if (l->states == 2)
        load_blocks(l, &f, l->dc, l->B, c->dc);
    rondo_team_meet(m);
    for (long t = l->T - 1; t >= 0; t--)
        step_backward(m, &f, l, t, c);
    long through = l->R - l->before;
    for (struct strip s = {0, f.u, f.b, f.be - f.b}; through && c->dh0 && s.u < f.ue; s.u++)
        recurrent_gradients(l, &s, 1, carried(l, l->dh, &s), 0, through);
    if (c->dh0)
        save_blocks(l, &f, c->dh0, l->B, l->dh);
    if (c->dc0)
        save_blocks(l, &f, c->dc0, l->B, l->dc);
}

// The parts of a backward pass that the call asks for. All others read the first one's results.
static void layer_backward(const struct member *m, struct layer *l, const struct layer_call *c)
{
    if (c->parts & BACK_RECURRENCE) {
        recur_backward(m, l, c);
        rondo_team_meet(m);
    }
    if (c->parts & BACK_INPUT_WEIGHTS)
        input_weights(m, l, c->dih);
    if (c->parts & BACK_HIDDEN_WEIGHTS)
        hidden_weights(m, l, c);
    if (c->parts & BACK_BIASES)
        bias_gradients(m, l, c);
    if (c->dx && c->parts & BACK_INPUT) {
        pack_gates_back(m, l, l->in->back, c->ih, l->D);
        rondo_team_meet(m);
        input_gradient(m, l, c->dx);
    }
}
