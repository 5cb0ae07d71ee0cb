// The places of a layer's values, and the part of them that a thread computes.

// A strip: step t, block u, `lanes` lanes from b on.
struct strip {
    long t, u, b, lanes;
};

// The offset of block i, step t, lane b in a tensor.
INLINE long spot(const struct tensor *x, long i, long t, long b)
{
    return (i * x->stride + (x->steps == 2 ? t & 1 : t) * x->lanes + b) * BLOCK;
}

// A strip's rows of gate g and of its gradient; of h, c or aux before and after its step.
INLINE float *gate_at(const struct layer *l, long g, const struct strip *s)
{
    return (float *)l->gates.at + spot(&l->gates, g * l->U + s->u, s->t, s->b);
}

INLINE float *gradient_at(const struct layer *l, long g, const struct strip *s)
{
    return (float *)l->d.at + spot(&l->d, g * l->U + s->u, s->t, s->b);
}

// From a gate's gradient to the next gate's.
INLINE long gradient_gap(const struct layer *l) { return l->U * l->d.stride * BLOCK; }

INLINE float *before(const struct tensor *x, const struct strip *s)
{
    return (float *)x->at + spot(x, s->u, s->t, s->b);
}

INLINE float *after(const struct tensor *x, const struct strip *s)
{
    return (float *)x->at + spot(x, s->u, s->t + 1, s->b);
}

INLINE float *carried(const struct layer *l, float *gradient, const struct strip *s)
{
    return gradient + (s->u * l->B + s->b) * BLOCK;
}

// The row of dbias for a strip and the bias of gate tensor g, or peephole g - G. A row always sums
// the same lanes, so that it does not depend on the number of threads.
INLINE float *dbias_at(const struct layer *l, long g, const struct strip *s)
{
    return l->dbias + (s->b / l->lanes * l->sums * l->U + g * l->U + s->u) * BLOCK;
}

// A strip's block of peephole p.
INLINE const float *peephole_at(const struct layer *l, long p, const struct strip *s)
{
    return l->peephole + (p * l->U + s->u) * BLOCK;
}

INLINE void add_to(float *p, vf v) { store(p, load(p) + v); }

// The tensor that holds gate g's recurrent sum in the forward pass, and its input side's gradient
// in the backward pass. GRU's n keeps the two sides apart; other gates add them.
INLINE long apart(const struct layer *l, long g)
{
    return l->cell == GRU && g == 2 ? 3 : g;
}

// Operands at block i, step t, lane b.
INLINE operand *operands_at(const struct tensor *x, long i, long t, long b)
{
    return (operand *)x->at + spot(x, i, t, b);
}

INLINE float *sums_at(const struct layer *l, long i, long row)
{
    return (float *)l->gates.at + (i * l->gates.stride + row) * BLOCK;
}

INLINE long least(long a, long b) { return a < b ? a : b; }

// A thread's part of a step: blocks u to ue, lanes b to be.
struct field {
    long u, ue, b, be;
    int meets; // it has all lanes of some units, and meets the others after a step
    int apart; // it has all units of some lanes
};

// The share of their time, 0 to 1, that so many threads work if they divide n equal parts.
INLINE double balance(long n, int threads)
{
    return (double)n / ((n + threads - 1) / threads * threads);
}

static struct field field_of(const struct layer *l, const struct member *m)
{
    struct field f = {0, l->U, 0, l->B, 0, 0};
    if (m->count == 1)
        return f;
    f.meets = 1.2 * balance(l->U, m->count) >= balance(blocks_up(l->B, l->lanes), m->count);
    f.apart = !f.meets;
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
