// One time step of one block of units and a strip of lanes, forward and backward, for each cell:
// the equations of package compute, elementwise over [lanes][BLOCK]. Backward computes the gradient
// of the sums from the gates, adds it to dbias, and leaves in dh the gradient of h_{t-1} without
// the part that passes through W_hh.

static void rnn_step(struct layer *l, const struct strip *s)
{
    float *restrict a = gate_at(l, 0, s), *restrict h = after(&l->h, s);
    for (long i = 0; i < s->lanes * BLOCK; i += VW)
        if (l->cell == RNN)
            store(h + i, tangent(load(a + i)));
        else
            store(h + i, larger(splat(0), load(a + i)));
}

static void rnn_backstep(struct layer *l, const struct strip *s)
{
    float *restrict a = gradient_at(l, 0, s), *restrict dh = carried(l, l->dh, s);
    const float *restrict h = after(&l->h, s);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bias = splat(0);
        for (long i = col; i < s->lanes * BLOCK; i += BLOCK) {
            vf y = load(h + i), d = load(dh + i);
            if (l->cell == RNN)
                d *= splat(1) - y * y;
            else
                d = (vf)((vi)d & (y != splat(0)));
            store(a + i, d);
            store(dh + i, splat(0));
            bias += d;
        }
        add_to(dbias_at(l, 0, s) + col, bias);
    }
}

// Gates z and n, of the input alone.
static void min_step(struct layer *l, const struct strip *s)
{
    float *restrict gz = gate_at(l, 0, s), *restrict new = after(&l->h, s);
    const float *restrict gn = gate_at(l, 1, s), *restrict old = before(&l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf z = sigmoid(load(gz + j)), was = load(old + j);
        store(gz + j, z);
        store(new + j, fused(z, load(gn + j) - was, was));
    }
}

static void min_backstep(struct layer *l, const struct strip *s)
{
    const float *gz = gate_at(l, 0, s), *gn = gate_at(l, 1, s);
    float *to_z = gradient_at(l, 0, s), *to_n = gradient_at(l, 1, s); // may be the gates'
    const float *restrict old = before(&l->h, s);
    float *restrict dhs = carried(l, l->dh, s);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bz = splat(0), bn = splat(0);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf z = load(gz + j), dh = load(dhs + j), dn = dh * z, rest = splat(1) - z;
            vf dz = dn * (load(gn + j) - load(old + j)) * rest;
            store(to_z + j, dz);
            store(to_n + j, dn);
            store(dhs + j, dh * rest);
            bz += dz;
            bn += dn;
        }
        add_to(dbias_at(l, 0, s) + col, bz);
        add_to(dbias_at(l, 1, s) + col, bn);
    }
}

// A leaky unit's share of a step, for VW units from column col on.
INLINE vf leak_at(const struct layer *l, const struct strip *s, int col)
{
    return l->P ? sigmoid(load(peephole_at(l, 0, s) + col)) : splat(l->leak);
}

static void leaky_step(struct layer *l, const struct strip *s)
{
    float *restrict n = gate_at(l, 0, s), *restrict new = after(&l->h, s);
    const float *restrict old = before(&l->h, s);
    for (int col = 0; col < BLOCK; col += VW) {
        const vf a = leak_at(l, s, col);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf x = tangent(load(n + j)), was = load(old + j);
            store(n + j, x);
            store(new + j, fused(a, x - was, was));
        }
    }
}

static void leaky_backstep(struct layer *l, const struct strip *s)
{
    const float *n = gate_at(l, 0, s);
    float *to = gradient_at(l, 0, s), *restrict dhs = carried(l, l->dh, s); // to: may be n
    const float *restrict old = before(&l->h, s);
    for (int col = 0; col < BLOCK; col += VW) {
        const vf a = leak_at(l, s, col), rest = splat(1) - a;
        vf bias = splat(0), leak = splat(0);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf x = load(n + j), dh = load(dhs + j), d = dh * a * (splat(1) - x * x);
            store(to + j, d);
            store(dhs + j, dh * rest);
            bias += d;
            leak += dh * (x - load(old + j));
        }
        add_to(dbias_at(l, 0, s) + col, bias);
        if (l->P)
            add_to(dbias_at(l, 1, s) + col, leak * a * rest);
    }
}

// A unit of a clockwork works where its count is 0, below 1.
static void clockwork_step(struct layer *l, const struct strip *s)
{
    float *restrict n = gate_at(l, 0, s), *restrict new = after(&l->h, s);
    const float *restrict old = before(&l->h, s), *restrict count = before(&l->c, s);
    float *restrict next = after(&l->c, s);
    for (int col = 0; col < BLOCK; col += VW) {
        const vf period = load(l->period + s->u * BLOCK + col);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf x = tangent(load(n + j)), c = load(count + j), more = c + splat(1);
            store(n + j, x);
            store(new + j, pick(c < splat(1), x, load(old + j)));
            store(next + j, (vf)((vi)more & (more < period)));
        }
    }
}

static void clockwork_backstep(struct layer *l, const struct strip *s)
{
    const float *n = gate_at(l, 0, s), *restrict count = before(&l->c, s);
    float *to = gradient_at(l, 0, s); // may be n
    float *restrict dhs = carried(l, l->dh, s), *restrict dcs = carried(l, l->dc, s);
    const vf zero = splat(0);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bias = zero;
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf x = load(n + j), c = load(count + j), dh = load(dhs + j);
            vf d = pick(c < splat(1), dh * (splat(1) - x * x), zero);
            store(to + j, d);
            store(dhs + j, pick(c < splat(1), zero, dh));
            store(dcs + j, zero);
            bias += d;
        }
        add_to(dbias_at(l, 0, s) + col, bias);
    }
}

// The forget gate of an LSTM: a gate, 1 - i, or 1.
INLINE vf forget(int cell, vf gate, vf i)
{
    return cell == LSTM ? gate : cell == LSTM_COUPLED ? splat(1) - i : splat(1);
}

// Gates i, f, g, o. Only LSTM has gate f: F is 1 there and 0 in the others. The cell is a constant.
INLINE void lstm_step(struct layer *l, const struct strip *s, const int cell)
{
    const int F = cell == LSTM;
    float *restrict gi = gate_at(l, 0, s), *restrict gf = gate_at(l, F, s);
    float *restrict gg = gate_at(l, F + 1, s), *restrict go = gate_at(l, F + 2, s);
    const float *restrict old = before(&l->c, s);
    float *restrict new = after(&l->c, s);
    float *restrict h = after(&l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf i = sigmoid(load(gi + j)), f = forget(cell, F ? sigmoid(load(gf + j)) : i, i);
        vf g = tangent(load(gg + j)), o = sigmoid(load(go + j));
        vf c = fused(f, load(old + j), i * g);
        store(gi + j, i);
        if (F)
            store(gf + j, f);
        store(gg + j, g);
        store(go + j, o);
        store(new + j, c);
        store(h + j, o * tangent(c));
    }
}

INLINE void lstm_backstep(struct layer *l, const struct strip *s, const int cell)
{
    const int F = cell == LSTM;
    const float *gi = gate_at(l, 0, s), *gf = gate_at(l, F, s);
    const float *gg = gate_at(l, F + 1, s), *go = gate_at(l, F + 2, s);
    float *to = gradient_at(l, 0, s); // may be the gates' own memory
    const long gap = gradient_gap(l);
    const float *restrict old = before(&l->c, s);
    const float *restrict new = after(&l->c, s);
    float *restrict dhs = carried(l, l->dh, s), *restrict dcs = carried(l, l->dc, s);
    const vf one = splat(1), zero = splat(0);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bi = zero, bf = zero, bg = zero, bo = zero;
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf i = load(gi + j), f = forget(cell, load(gf + j), i);
            vf g = load(gg + j), o = load(go + j), tc = tangent(load(new + j)), dh = load(dhs + j);
            vf dc = fused(dh * o, one - tc * tc, load(dcs + j));
            vf di = dc * g * i * (one - i), df = dc * load(old + j) * f * (one - f);
            vf dg = dc * i * (one - g * g), d_o = dh * tc * o * (one - o);
            if (cell == LSTM_COUPLED)
                di -= df;
            store(to + j, di);
            if (F)
                store(to + gap + j, df);
            store(to + (F + 1) * gap + j, dg);
            store(to + (F + 2) * gap + j, d_o);
            store(dcs + j, dc * f);
            store(dhs + j, zero);
            bi += di;
            bf += df;
            bg += dg;
            bo += d_o;
        }
        float *bias = dbias_at(l, 0, s) + col;
        add_to(bias, bi);
        if (F)
            add_to(bias + l->U * BLOCK, bf);
        add_to(bias + (F + 1) * l->U * BLOCK, bg);
        add_to(bias + (F + 2) * l->U * BLOCK, bo);
    }
}

// The LSTM with peepholes i, f, o.
static void peephole_step(struct layer *l, const struct strip *s)
{
    float *restrict gi = gate_at(l, 0, s), *restrict gf = gate_at(l, 1, s);
    float *restrict gg = gate_at(l, 2, s), *restrict go = gate_at(l, 3, s);
    const float *restrict old = before(&l->c, s);
    float *restrict new = after(&l->c, s);
    float *restrict h = after(&l->h, s);
    for (int col = 0; col < BLOCK; col += VW) {
        const vf pi = load(peephole_at(l, 0, s) + col), pf = load(peephole_at(l, 1, s) + col);
        const vf po = load(peephole_at(l, 2, s) + col);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf was = load(old + j), i = sigmoid(fused(pi, was, load(gi + j)));
            vf f = sigmoid(fused(pf, was, load(gf + j))), g = tangent(load(gg + j));
            vf c = fused(f, was, i * g), o = sigmoid(fused(po, c, load(go + j)));
            store(gi + j, i);
            store(gf + j, f);
            store(gg + j, g);
            store(go + j, o);
            store(new + j, c);
            store(h + j, o * tangent(c));
        }
    }
}

static void peephole_backstep(struct layer *l, const struct strip *s)
{
    const float *gi = gate_at(l, 0, s), *gf = gate_at(l, 1, s);
    const float *gg = gate_at(l, 2, s), *go = gate_at(l, 3, s);
    float *to = gradient_at(l, 0, s); // may be the gates' own memory
    const long gap = gradient_gap(l);
    const float *restrict old = before(&l->c, s);
    const float *restrict new = after(&l->c, s);
    float *restrict dhs = carried(l, l->dh, s), *restrict dcs = carried(l, l->dc, s);
    const vf one = splat(1), zero = splat(0);
    for (int col = 0; col < BLOCK; col += VW) {
        const vf pi = load(peephole_at(l, 0, s) + col), pf = load(peephole_at(l, 1, s) + col);
        const vf po = load(peephole_at(l, 2, s) + col);
        vf sums[7] = {zero, zero, zero, zero, zero, zero, zero}; // biases i, f, g, o; p_i, p_f, p_o
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf i = load(gi + j), f = load(gf + j), g = load(gg + j), o = load(go + j);
            vf was = load(old + j), c = load(new + j), tc = tangent(c), dh = load(dhs + j);
            vf d_o = dh * tc * o * (one - o);
            vf dc = fused(po, d_o, fused(dh * o, one - tc * tc, load(dcs + j)));
            vf di = dc * g * i * (one - i), df = dc * was * f * (one - f);
            vf dg = dc * i * (one - g * g);
            store(to + j, di);
            store(to + gap + j, df);
            store(to + 2 * gap + j, dg);
            store(to + 3 * gap + j, d_o);
            store(dcs + j, fused(pi, di, fused(pf, df, dc * f)));
            store(dhs + j, zero);
            const vf terms[7] = {di, df, dg, d_o, di * was, df * was, d_o * c};
            UNROLL
            for (int k = 0; k < 7; k++)
                sums[k] += terms[k];
        }
        float *bias = dbias_at(l, 0, s) + col;
        UNROLL
        for (int k = 0; k < 7; k++)
            add_to(bias + k * l->U * BLOCK, sums[k]);
    }
}

// Gates r, z, n and, as a fourth, q = W_hn h + b_hn.
static void gru_step(struct layer *l, const struct strip *s)
{
    float *restrict gr = gate_at(l, 0, s), *restrict gz = gate_at(l, 1, s);
    float *restrict gn = gate_at(l, 2, s), *restrict q = gate_at(l, 3, s);
    const float *restrict old = before(&l->h, s);
    float *restrict new = after(&l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf r = sigmoid(load(gr + j)), z = sigmoid(load(gz + j));
        vf n = tangent(fused(r, load(q + j), load(gn + j)));
        store(gr + j, r);
        store(gz + j, z);
        store(gn + j, n);
        store(new + j, fused(z, load(old + j) - n, n));
    }
}

// n's gradient goes to the third gate for the recurrent side, to the fourth for the input side.
static void gru_backstep(struct layer *l, const struct strip *s)
{
    const float *gr = gate_at(l, 0, s), *gz = gate_at(l, 1, s);
    const float *gn = gate_at(l, 2, s), *gq = gate_at(l, 3, s);
    float *to = gradient_at(l, 0, s); // may be the gates' own memory
    const long gap = gradient_gap(l);
    const float *restrict old = before(&l->h, s);
    float *restrict dhs = carried(l, l->dh, s);
    const vf one = splat(1), zero = splat(0);
    for (int col = 0; col < BLOCK; col += VW) {
        vf br = zero, bz = zero, bn = zero, bq = zero;
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf r = load(gr + j), z = load(gz + j), n = load(gn + j), dh = load(dhs + j);
            vf dn = dh * (one - z) * (one - n * n);
            vf dr = dn * load(gq + j) * r * (one - r);
            vf dz = dh * (load(old + j) - n) * z * (one - z);
            vf dq = dn * r;
            store(to + j, dr);
            store(to + gap + j, dz);
            store(to + 2 * gap + j, dq);
            store(to + 3 * gap + j, dn);
            store(dhs + j, dh * z);
            br += dr;
            bz += dz;
            bq += dq;
            bn += dn;
        }
        float *bias = dbias_at(l, 0, s) + col;
        add_to(bias, br);
        add_to(bias + l->U * BLOCK, bz);
        add_to(bias + 2 * l->U * BLOCK, bq);
        add_to(bias + 3 * l->U * BLOCK, bn);
    }
}

// The gates of a cell that resets h before the product: r, z, n. An MGU, whose r is f, has room for
// z = 1 - f behind its own gates: f, n, z.
INLINE long z_gate(const struct layer *l) { return l->cell == MGU ? 2 : 1; }
INLINE long n_gate(const struct layer *l) { return l->K - 1; }

// The first half of the other GRU's step: r, z, and r h, which W_hn then multiplies.
static void gru_before_step(struct layer *l, const struct strip *s)
{
    float *restrict gr = gate_at(l, 0, s), *restrict gz = gate_at(l, z_gate(l), s);
    const float *restrict old = before(&l->h, s);
    float *restrict rh = before(&l->aux, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf r = sigmoid(load(gr + j));
        store(gr + j, r);
        store(gz + j, l->cell == MGU ? splat(1) - r : sigmoid(load(gz + j)));
        store(rh + j, r * load(old + j));
    }
}

// The second half: n and h'.
static void gru_before_finish(struct layer *l, const struct strip *s)
{
    float *restrict gn = gate_at(l, n_gate(l), s);
    const float *restrict gz = gate_at(l, z_gate(l), s), *restrict old = before(&l->h, s);
    float *restrict new = after(&l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf n = tangent(load(gn + j)), z = load(gz + j);
        store(gn + j, n);
        store(new + j, fused(z, load(old + j) - n, n));
    }
}

// The first half backward: the gradients of z and n.
static void gru_before_backstep(struct layer *l, const struct strip *s)
{
    const long z_at = z_gate(l), n_at = n_gate(l);
    const float *gz = gate_at(l, z_at, s), *gn = gate_at(l, n_at, s);
    float *to_z = gradient_at(l, z_at, s), *to_n = gradient_at(l, n_at, s); // may be the gates'
    const float *restrict old = before(&l->h, s);
    float *restrict dhs = carried(l, l->dh, s);
    const vf one = splat(1);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bz = splat(0), bn = splat(0);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf z = load(gz + j), n = load(gn + j), dh = load(dhs + j);
            vf dz = dh * (load(old + j) - n) * z * (one - z);
            vf dn = dh * (one - z) * (one - n * n);
            store(to_z + j, dz);
            store(to_n + j, dn);
            store(dhs + j, dh * z);
            bz += dz;
            bn += dn;
        }
        add_to(dbias_at(l, z_at, s) + col, bz);
        add_to(dbias_at(l, n_at, s) + col, bn);
    }
}

// The second half backward: the gradient of r, from that of r h; an MGU's f has that of z, too.
static void gru_before_backfinish(struct layer *l, const struct strip *s,
                                  const float *restrict drh)
{
    const float *gr = gate_at(l, 0, s);
    float *to = gradient_at(l, 0, s), *restrict dhs = carried(l, l->dh, s);
    const float *restrict old = before(&l->h, s), *dz = gradient_at(l, z_gate(l), s);
    for (int col = 0; col < BLOCK; col += VW) {
        vf br = splat(0);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf r = load(gr + j), d = load(drh + j);
            vf dr = d * load(old + j) * r * (splat(1) - r);
            if (l->cell == MGU)
                dr -= load(dz + j);
            store(to + j, dr);
            add_to(dhs + j, d * r);
            br += dr;
        }
        add_to(dbias_at(l, 0, s) + col, br);
    }
}

// The step of the layer's cell, and its derivative. A cell that resets h before the product has
// only the first half here.
INLINE void cell_step(struct layer *l, const struct strip *s)
{
    switch (l->cell) {
    case LSTM: lstm_step(l, s, LSTM); break;
    case LSTM_COUPLED: lstm_step(l, s, LSTM_COUPLED); break;
    case LSTM_NO_FORGET: lstm_step(l, s, LSTM_NO_FORGET); break;
    case LSTM_PEEPHOLE: peephole_step(l, s); break;
    case GRU: gru_step(l, s); break;
    case GRU_RESET_BEFORE:
    case MGU: gru_before_step(l, s); break;
    case LEAKY:
    case LEAKY_LEARNED: leaky_step(l, s); break;
    case MIN_GRU: min_step(l, s); break;
    case CLOCKWORK: clockwork_step(l, s); break;
    default: rnn_step(l, s);
    }
}

INLINE void cell_backstep(struct layer *l, const struct strip *s)
{
    switch (l->cell) {
    case LSTM: lstm_backstep(l, s, LSTM); break;
    case LSTM_COUPLED: lstm_backstep(l, s, LSTM_COUPLED); break;
    case LSTM_NO_FORGET: lstm_backstep(l, s, LSTM_NO_FORGET); break;
    case LSTM_PEEPHOLE: peephole_backstep(l, s); break;
    case GRU: gru_backstep(l, s); break;
    case GRU_RESET_BEFORE:
    case MGU: gru_before_backstep(l, s); break;
    case LEAKY:
    case LEAKY_LEARNED: leaky_backstep(l, s); break;
    case MIN_GRU: min_backstep(l, s); break;
    case CLOCKWORK: clockwork_backstep(l, s); break;
    default: rnn_backstep(l, s);
    }
}
