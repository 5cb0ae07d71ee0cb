//go:build cgo

// The workspace of general products, and Go's calls of them.

#include <stdlib.h>

#include "flat.h"

// Products with fewer multiplications than this are faster on one thread.
enum { GEMM_LEAST = 1 << 22 };

static void work(void *with, const struct member *m)
{
    const struct gemm *g = with;
    g->kernels->gemm(m, g);
}

// Whole blocks of n, but no more than the bound, which is of whole blocks.
static size_t bounded(long n, long bound)
{
    return n < bound ? blocks_up(n, BLOCK) * BLOCK : bound;
}

size_t rondo_gemm_bytes(int bf16, long threads, long n, long depth)
{
    const size_t operand = bf16 ? sizeof(uint16_t) : sizeof(float);
    return threads * GEMM_ROWS * (GEMM_DEPTH * operand + BLOCK * sizeof(float)) +
           bounded(depth, GEMM_DEPTH) * bounded(n, GEMM_COLUMNS) * operand;
}

int rondo_gemm(const struct kernels *k, struct team *t, struct space *s, int trans_a, int trans_b,
               long m, long n, long depth, float alpha, const float *a, const float *b,
               float beta, float *c)
{
    const size_t operand = k->bf16 ? sizeof(uint16_t) : sizeof(float);
    const long threads = rondo_team_size(t);
    const size_t left = threads * GEMM_ROWS * GEMM_DEPTH * operand;
    const size_t tile = threads * GEMM_ROWS * BLOCK * sizeof(float);
    const size_t bytes = rondo_gemm_bytes(k->bf16, threads, n, depth);
    if (s->bytes < bytes) {
        rondo_space_free(s);
        s->memory = rondo_allocate(bytes);
        if (!s->memory)
            return 0;
        s->bytes = bytes;
    }
    char *memory = s->memory;
    struct gemm g = {.kernels = k, .trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n,
                     .k = depth, .alpha = alpha, .beta = beta, .a = a, .b = b, .c = c,
                     .left = memory, .tile = (float *)(memory + left),
                     .panels = memory + left + tile};
    rondo_team_run(m * n * depth < GEMM_LEAST ? 0 : t, work, &g);
    return 1;
}

void rondo_space_free(struct space *s)
{
    free(s->memory);
    *s = (struct space){0};
}
