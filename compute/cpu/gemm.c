//go:build cgo

// The workspace of general products, and the way to them from Go.

#include <stdlib.h>

#include "flat.h"

// Multiplications below which a team takes longer than its caller alone.
enum { GEMM_LEAST = 1 << 18 };

static void work(void *with, const struct member *m)
{
    const struct gemm *g = with;
    g->kernels->gemm(m, g);
}

static long up(long n, long grain) { return (n + grain - 1) / grain * grain; }

static long at_most(long n, long bound) { return n < bound ? n : bound; }

int rondo_gemm(const struct kernels *k, struct team *t, struct space *s, struct gemm g)
{
    const size_t operand = k->bf16 ? sizeof(uint16_t) : sizeof(float);
    const long depth = at_most(up(g.k, BLOCK), GEMM_DEPTH);
    const long columns = at_most(up(g.n, BLOCK), GEMM_COLUMNS), threads = rondo_team_size(t);
    size_t panels = depth * columns * operand;
    size_t left = threads * (size_t)GEMM_ROWS * GEMM_DEPTH * operand;
    size_t bytes = panels + left + threads * (size_t)GEMM_ROWS * BLOCK * sizeof(float);
    if (s->bytes < bytes) {
        rondo_space_free(s);
        s->memory = rondo_allocate(bytes);
        if (!s->memory)
            return 0;
        s->bytes = bytes;
    }
    g.kernels = k;
    g.panels = s->memory;
    g.left = (char *)s->memory + panels;
    g.tile = (float *)((char *)g.left + left);
    rondo_team_run(g.m * g.n * g.k < GEMM_LEAST ? 0 : t, work, &g);
    return 1;
}

void rondo_space_free(struct space *s)
{
    free(s->memory);
    *s = (struct space){0};
}
