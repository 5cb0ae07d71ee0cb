//go:build cgo

// The output layer's workspace, and the way to its kernels from Go.

#include "arena.h"

struct head *rondo_head_new(const struct kernels *k, int threads, long N, long H, long V,
                            long rows)
{
    struct head o = {.threads = threads, .N = N, .H = H, .V = V, .U = (H + BLOCK - 1) / BLOCK,
                     .Y = (V + BLOCK - 1) / BLOCK, .rows = rows};
    o.S = rondo_spread(rows, BLOCK * sizeof(float));
    struct part parts[] = {
        FLOATS(o.bias, o.Y * BLOCK),
        OPERANDS(k, o.weights, o.Y * o.U * BLOCK * BLOCK),
        FLOATS(o.x, o.U * o.S * BLOCK),
        FLOATS(o.logits, o.Y * o.S * BLOCK),
        FLOATS(o.tile, rows * BLOCK),
        OPERANDS(k, o.weights_back, o.U * o.Y * BLOCK * BLOCK),
    };
    return rondo_arena_new(&o, sizeof o, parts, sizeof parts / sizeof *parts);
}

// A call on its way to every thread of a team.
struct run {
    const struct kernels *k;
    struct head *o;
    const struct head_call *call;
};

static void run_head(void *with, const struct member *m)
{
    struct run *r = with;
    r->k->head_run(m, r->o, r->call);
}

double rondo_head_run(const struct kernels *k, struct team *t, struct head *o, const float *x,
                      const float *w, const float *b, const int32_t *targets, float scale,
                      float *dx, float *dw, float *db)
{
    struct head_call call = {x, w, b, targets, scale, dx, dw, db};
    struct run r = {k, o, &call};
    rondo_team_run(t, run_head, &r);
    return o->loss;
}
