//go:build cgo

// The output layer's workspace, and Go's calls of its kernels.

#include "arena.h"

// The blocks of tokens in a strip. Their packed weights stay in cache; each strip costs a pass over
// dx.
enum { HEAD_STRIP = 8 };

struct head *rondo_head_new(const struct kernels *k, int threads, long N, long H, long V,
                            long rows, size_t *only)
{
    struct head o = {.threads = threads, .N = N, .H = H, .V = V, .U = blocks_up(H, BLOCK),
                     .Y = blocks_up(V, BLOCK), .rows = rows ? rows : N};
    o.strip = o.Y < HEAD_STRIP ? o.Y : HEAD_STRIP;
    o.kept = rows > 0 || o.strip == o.Y; // a single strip's are no more than its gradient
    long padded = blocks_up(o.rows, HEAD_PAIRS) * HEAD_PAIRS;
    o.S = rondo_spread(padded, BLOCK * sizeof(float));
    long strips = blocks_up(o.Y, o.strip), square = BLOCK * BLOCK, half = k->bf16;
    struct part parts[] = {
        FLOATS(o.bias, 2 * o.strip * BLOCK),
        OPERANDS(k, o.weights, 2 * o.strip * o.U * square),
        OPERANDS(k, o.weights_back, o.strip * o.U * square),
        OPERANDS(k, o.x_rows, o.U * o.S * BLOCK),
        OPERANDS(k, o.x_pairs, half * o.U * o.S * BLOCK),
        OPERANDS(k, o.d_rows, o.strip * o.S * BLOCK),
        OPERANDS(k, o.d_pairs, half * o.strip * o.S * BLOCK),
        FLOATS(o.logits, (o.kept ? o.Y * o.S : threads * o.strip * HEAD_TILE) * BLOCK),
        FLOATS(o.dx, (strips > 1 ? o.U * o.S : threads * PRODUCTS * HEAD_TILE) * BLOCK),
        FLOATS(o.dbias, o.S / HEAD_GROUP * o.strip * BLOCK),
        FLOATS(o.tops, o.kept * strips * o.S),
        FLOATS(o.top, o.S),
        FLOATS(o.sum, o.S),
        FLOATS(o.target_logit, o.S),
        FLOATS(o.total, o.S),
        {&o.losses, o.S * sizeof(double)},
    };
    struct head *made = rondo_arena_new(&o, sizeof o, parts, sizeof parts / sizeof *parts, only);
    if (made && !half) {
        made->x_pairs = made->x_rows;
        made->d_pairs = made->d_rows;
    }
    return made;
}

// The arguments of a call, for every thread of a team.
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

double rondo_head_run(const struct kernels *k, struct team *t, struct head *o, long n,
                      const float *x, const float *w, const float *b, const int32_t *targets,
                      float scale, float smoothing, float *dx, float *dw, float *db)
{
    struct head_call call = {n, x, w, b, targets, scale, smoothing, dx, dw, db};
    struct run r = {k, o, &call};
    rondo_team_run(t, run_head, &r);
    return o->loss;
}
