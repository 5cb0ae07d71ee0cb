// One time step of one block of units and a strip of lanes, forward and backward, for each cell:
// the equations of package compute, elementwise over [lanes][BLOCK]. Backward turns gates into the
// gradient of the sums in place, adds that to dbias, and leaves in dh what the gradient of
// h_{t-1} gets other than through W_hh.

// A strip: step t, block u, `lanes` lanes from b on.
struct strip {
    long t, u, b, lanes;
};

// A strip's rows of gate g; of h, c or aux after step t-1 (so at s->t + 1 after this one's).
INLINE float *gate_at(const struct layer *l, long g, const struct strip *s)
{
    return l->gates + ((g * l->U + s->u) * l->S + s->t * l->B + s->b) * BLOCK;
}

INLINE float *state_at(const struct layer *l, float *states, const struct strip *s)
{
    return states + (s->u * l->S + s->t * l->B + s->b) * BLOCK;
}

INLINE float *state_after(const struct layer *l, float *states, const struct strip *s)
{
    return state_at(l, states, s) + l->B * BLOCK;
}

INLINE float *carried(const struct layer *l, float *gradient, const struct strip *s)
{
    return gradient + (s->u * l->B + s->b) * BLOCK;
}

// Where the strip adds to the bias of gate tensor g. The lanes of one sum are always the same, so
// that it does not depend on how lanes are shared among threads.
INLINE float *dbias_at(const struct layer *l, long g, const struct strip *s)
{
    return l->dbias + (s->b / l->lanes * l->G * l->U + g * l->U + s->u) * BLOCK;
}

INLINE void add_to(float *p, vf v) { store(p, load(p) + v); }

static void rnn_step(struct layer *l, const struct strip *s)
{
    float *restrict a = gate_at(l, 0, s), *restrict h = state_after(l, l->h, s);
    for (long i = 0; i < s->lanes * BLOCK; i += VW)
        if (l->cell == RNN_TANH)
            store(h + i, tangent(load(a + i)));
        else
            store(h + i, larger(splat(0), load(a + i)));
}

static void rnn_backstep(struct layer *l, const struct strip *s)
{
    float *restrict a = gate_at(l, 0, s), *restrict dh = carried(l, l->dh, s);
    const float *restrict h = state_after(l, l->h, s);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bias = splat(0);
        for (long i = col; i < s->lanes * BLOCK; i += BLOCK) {
            vf y = load(h + i), d = load(dh + i);
            if (l->cell == RNN_TANH)
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

// Gates i, f, g, o.
static void lstm_step(struct layer *l, const struct strip *s)
{
    float *restrict gi = gate_at(l, 0, s), *restrict gf = gate_at(l, 1, s);
    float *restrict gg = gate_at(l, 2, s), *restrict go = gate_at(l, 3, s);
    const float *restrict before = state_at(l, l->c, s);
    float *restrict after = state_after(l, l->c, s);
    float *restrict h = state_after(l, l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf i = sigmoid(load(gi + j)), f = sigmoid(load(gf + j));
        vf g = tangent(load(gg + j)), o = sigmoid(load(go + j));
        vf c = fused(f, load(before + j), i * g);
        store(gi + j, i);
        store(gf + j, f);
        store(gg + j, g);
        store(go + j, o);
        store(after + j, c);
        store(h + j, o * tangent(c));
    }
}

static void lstm_backstep(struct layer *l, const struct strip *s)
{
    float *restrict gi = gate_at(l, 0, s), *restrict gf = gate_at(l, 1, s);
    float *restrict gg = gate_at(l, 2, s), *restrict go = gate_at(l, 3, s);
    const float *restrict before = state_at(l, l->c, s);
    const float *restrict after = state_after(l, l->c, s);
    float *restrict dhs = carried(l, l->dh, s), *restrict dcs = carried(l, l->dc, s);
    const vf one = splat(1), zero = splat(0);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bi = zero, bf = zero, bg = zero, bo = zero;
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf i = load(gi + j), f = load(gf + j), g = load(gg + j), o = load(go + j);
            vf tc = tangent(load(after + j)), dh = load(dhs + j);
            vf dc = fused(dh * o, one - tc * tc, load(dcs + j));
            vf di = dc * g * i * (one - i), df = dc * load(before + j) * f * (one - f);
            vf dg = dc * i * (one - g * g), d_o = dh * tc * o * (one - o);
            store(gi + j, di);
            store(gf + j, df);
            store(gg + j, dg);
            store(go + j, d_o);
            store(dcs + j, dc * f);
            store(dhs + j, zero);
            bi += di;
            bf += df;
            bg += dg;
            bo += d_o;
        }
        float *bias = dbias_at(l, 0, s) + col;
        add_to(bias, bi);
        add_to(bias + l->U * BLOCK, bf);
        add_to(bias + 2 * l->U * BLOCK, bg);
        add_to(bias + 3 * l->U * BLOCK, bo);
    }
}

// Gates r, z, n and, as a fourth, q = W_hn h + b_hn.
static void gru_step(struct layer *l, const struct strip *s)
{
    float *restrict gr = gate_at(l, 0, s), *restrict gz = gate_at(l, 1, s);
    float *restrict gn = gate_at(l, 2, s), *restrict q = gate_at(l, 3, s);
    const float *restrict before = state_at(l, l->h, s);
    float *restrict after = state_after(l, l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf r = sigmoid(load(gr + j)), z = sigmoid(load(gz + j));
        vf n = tangent(fused(r, load(q + j), load(gn + j)));
        store(gr + j, r);
        store(gz + j, z);
        store(gn + j, n);
        store(after + j, fused(z, load(before + j) - n, n));
    }
}

// Leaves the recurrent side's gradient of n in the third gate, the input side's in the fourth.
static void gru_backstep(struct layer *l, const struct strip *s)
{
    float *restrict gr = gate_at(l, 0, s), *restrict gz = gate_at(l, 1, s);
    float *restrict gn = gate_at(l, 2, s), *restrict gq = gate_at(l, 3, s);
    const float *restrict before = state_at(l, l->h, s);
    float *restrict dhs = carried(l, l->dh, s);
    const vf one = splat(1), zero = splat(0);
    for (int col = 0; col < BLOCK; col += VW) {
        vf br = zero, bz = zero, bn = zero, bq = zero;
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf r = load(gr + j), z = load(gz + j), n = load(gn + j), dh = load(dhs + j);
            vf dn = dh * (one - z) * (one - n * n);
            vf dr = dn * load(gq + j) * r * (one - r);
            vf dz = dh * (load(before + j) - n) * z * (one - z);
            vf dq = dn * r;
            store(gr + j, dr);
            store(gz + j, dz);
            store(gn + j, dq);
            store(gq + j, dn);
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

// The first half of the other GRU's step: r, z, and r h, which W_hn then multiplies.
static void gru_before_step(struct layer *l, const struct strip *s)
{
    float *restrict gr = gate_at(l, 0, s), *restrict gz = gate_at(l, 1, s);
    const float *restrict before = state_at(l, l->h, s);
    float *restrict rh = state_at(l, l->aux, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf r = sigmoid(load(gr + j));
        store(gr + j, r);
        store(gz + j, sigmoid(load(gz + j)));
        store(rh + j, r * load(before + j));
    }
}

// The second half: n and h'.
static void gru_before_finish(struct layer *l, const struct strip *s)
{
    float *restrict gn = gate_at(l, 2, s);
    const float *restrict gz = gate_at(l, 1, s), *restrict before = state_at(l, l->h, s);
    float *restrict after = state_after(l, l->h, s);
    for (long j = 0; j < s->lanes * BLOCK; j += VW) {
        vf n = tangent(load(gn + j)), z = load(gz + j);
        store(gn + j, n);
        store(after + j, fused(z, load(before + j) - n, n));
    }
}

// The first half backward: the gradients of z and n.
static void gru_before_backstep(struct layer *l, const struct strip *s)
{
    float *restrict gz = gate_at(l, 1, s), *restrict gn = gate_at(l, 2, s);
    const float *restrict before = state_at(l, l->h, s);
    float *restrict dhs = carried(l, l->dh, s);
    const vf one = splat(1);
    for (int col = 0; col < BLOCK; col += VW) {
        vf bz = splat(0), bn = splat(0);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf z = load(gz + j), n = load(gn + j), dh = load(dhs + j);
            vf dz = dh * (load(before + j) - n) * z * (one - z);
            vf dn = dh * (one - z) * (one - n * n);
            store(gz + j, dz);
            store(gn + j, dn);
            store(dhs + j, dh * z);
            bz += dz;
            bn += dn;
        }
        add_to(dbias_at(l, 1, s) + col, bz);
        add_to(dbias_at(l, 2, s) + col, bn);
    }
}

// The second half backward: the gradient of r, from that of r h.
static void gru_before_backfinish(struct layer *l, const struct strip *s,
                                  const float *restrict drh)
{
    float *restrict gr = gate_at(l, 0, s), *restrict dhs = carried(l, l->dh, s);
    const float *restrict before = state_at(l, l->h, s);
    for (int col = 0; col < BLOCK; col += VW) {
        vf br = splat(0);
        for (long j = col; j < s->lanes * BLOCK; j += BLOCK) {
            vf r = load(gr + j), d = load(drh + j);
            vf dr = d * load(before + j) * r * (splat(1) - r);
            store(gr + j, dr);
            add_to(dhs + j, d * r);
            br += dr;
        }
        add_to(dbias_at(l, 0, s) + col, br);
    }
}
