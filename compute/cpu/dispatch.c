//go:build cgo

// Which kernels run, the workspaces that they run in, and the way to them from Go.

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "kernels.h"

extern const struct kernels rondo_portable;
#ifdef __x86_64__
extern const struct kernels rondo_avx2, rondo_avx512;
#endif

const struct kernels *rondo_kernels(const char *isa)
{
    int any = !*isa;
#ifdef __x86_64__
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (any || !strcmp(isa, "avx512")))
        return &rondo_avx512;
    if (avx2 && (any || !strcmp(isa, "avx2")))
        return &rondo_avx2;
#endif
    return any || !strcmp(isa, "portable") ? &rondo_portable : 0;
}

const char *rondo_name(const struct kernels *k) { return k->name; }

// A part of an arena: where it goes, and how many floats it has.
struct part {
    float **at;
    long size;
};

enum { HEADER = 1024 }; // the struct comes first; parts are 64-byte aligned

// Memory of half a large page or more begins on one and asks for large pages, which spares most of
// the address translation.
enum { LARGE = 2 << 20 };

void *rondo_allocate(size_t bytes)
{
    size_t align = bytes < LARGE / 2 ? 64 : LARGE;
    size_t whole = (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, whole);
#ifdef MADV_HUGEPAGE
    if (p && align == LARGE)
        madvise(p, whole, MADV_HUGEPAGE); // advice: without it the same, more slowly
#endif
    return p;
}

// Allocates a struct of `size` bytes and its parts as one piece of memory, whose pages are not
// touched before they are used. The parts' `at` point into `model`, which is copied.
static void *arena_new(void *model, size_t size, struct part *parts, int n)
{
    size_t bytes = HEADER;
    for (int i = 0; i < n; i++)
        bytes += (parts[i].size * sizeof(float) + 63) / 64 * 64;
    char *arena = rondo_allocate(bytes);
    if (!arena)
        return 0;
    char *next = arena + HEADER;
    for (int i = 0; i < n; i++) {
        *parts[i].at = (float *)next;
        next += (parts[i].size * sizeof(float) + 63) / 64 * 64;
    }
    return memcpy(arena, model, size);
}

// Rows from one block to the next for n rows: a quarter page off whole pages, lest the same rows of
// all blocks compete for one set of the cache.
static long spread(long n)
{
    enum { PAGE_ROWS = 4096 / (BLOCK * sizeof(float)), OFF = PAGE_ROWS / 4 };
    return (n - OFF + PAGE_ROWS - 1) / PAGE_ROWS * PAGE_ROWS + OFF;
}

struct layer *rondo_layer_new(int cell, long T, long B, long D, long H, int inference)
{
    static const int gates[] = {[RNN_TANH] = 1, [RNN_RELU] = 1, [GRU] = 3, [GRU_BEFORE] = 3,
                                [LSTM] = 4};
    struct layer l = {.cell = cell, .inference = inference, .T = T, .B = B, .D = D, .H = H,
                      .N = T * B, .K = gates[cell], .U = (H + BLOCK - 1) / BLOCK,
                      .X = (D + BLOCK - 1) / BLOCK};
    l.G = l.K + (cell == GRU);
    l.S = spread(l.B + l.N);
    long wide = l.K * l.U * BLOCK, back = !inference;
    struct part parts[] = {
        {&l.bias, l.G * l.U * BLOCK},
        {&l.hidden, wide * l.U * BLOCK},
        {&l.h, l.U * l.S * BLOCK},
        {&l.c, cell == LSTM ? l.U * l.S * BLOCK : 0},
        {&l.aux, cell == GRU_BEFORE ? l.U * l.S * BLOCK : 0},
        {&l.gates, l.G * l.U * l.S * BLOCK},
        {&l.input, wide * l.X * BLOCK},
        {&l.x, l.X * l.S * BLOCK},
        {&l.hidden_back, back * l.U * wide * BLOCK},
        {&l.dh, back * l.U * l.B * BLOCK},
        {&l.dc, back * l.U * l.B * BLOCK},
        {&l.dbias, back * l.G * l.U * BLOCK},
        {&l.tile, back * l.N * BLOCK},
        {&l.input_back, back * l.X * wide * BLOCK},
    };
    return arena_new(&l, sizeof l, parts, sizeof parts / sizeof *parts);
}

struct head *rondo_head_new(long N, long H, long V, long rows)
{
    struct head o = {.N = N, .H = H, .V = V, .U = (H + BLOCK - 1) / BLOCK,
                     .Y = (V + BLOCK - 1) / BLOCK, .rows = rows, .S = spread(rows)};
    struct part parts[] = {
        {&o.bias, o.Y * BLOCK},
        {&o.weights, o.Y * o.U * BLOCK * BLOCK},
        {&o.x, o.U * o.S * BLOCK},
        {&o.logits, o.Y * o.S * BLOCK},
        {&o.tile, rows * BLOCK},
        {&o.weights_back, o.U * o.Y * BLOCK * BLOCK},
    };
    return arena_new(&o, sizeof o, parts, sizeof parts / sizeof *parts);
}

void rondo_layer_forward(const struct kernels *k, struct layer *l, const float *ih,
                         const float *hh, const float *bih, const float *bhh,
                         const int32_t *ids, const float *x, const float *h0, const float *c0,
                         float *y, float *h, float *c)
{
    k->layer_forward(l, ih, hh, bih, bhh, ids, x, h0, c0, y, h, c);
}

void rondo_layer_backward(const struct kernels *k, struct layer *l, const float *ih,
                          const float *hh, const int32_t *ids, const float *dy, const float *dh,
                          const float *dc, float *dih, float *dhh, float *dbih, float *dbhh,
                          float *dx, float *dh0, float *dc0)
{
    k->layer_backward(l, ih, hh, ids, dy, dh, dc, dih, dhh, dbih, dbhh, dx, dh0, dc0);
}

double rondo_head_run(const struct kernels *k, struct head *o, const float *x, const float *w,
                      const float *b, const int32_t *targets, float scale, float *dx, float *dw,
                      float *db)
{
    return k->head_run(o, x, w, b, targets, scale, dx, dw, db);
}

void rondo_add(const struct kernels *k, long n, float *y, const float *x) { k->add(n, y, x); }

void rondo_add_bias(const struct kernels *k, long rows, long n, float *x, const float *b)
{
    for (long r = 0; r < rows; r++)
        k->add(n, x + r * n, b);
}

void rondo_embed_backward(const struct kernels *k, long rows, long n, float *dtable,
                          const float *dy, const int32_t *ids)
{
    for (long r = 0; r < rows; r++)
        k->add(n, dtable + ids[r] * n, dy + r * n);
}

void rondo_scale(const struct kernels *k, long n, float *x, float a) { k->scale(n, x, a); }

void rondo_clamp(const struct kernels *k, long n, float *x, float limit)
{
    k->clamp(n, x, limit);
}

double rondo_sum_squares(const struct kernels *k, long n, const float *x)
{
    return k->sum_squares(n, x);
}

void rondo_dropout(const struct kernels *k, long rows, long lanes, long h, float *y,
                   const float *x, float p, const uint64_t *keys)
{
    k->dropout(rows, lanes, h, y, x, p, keys);
}

void rondo_update(const struct kernels *k, int optimizer, float lr, float momentum, float beta1,
                  float beta2, float rho, float epsilon, float decay, float size, float root,
                  long n, float *p, const float *g, float *s1, float *s2)
{
    struct update u = {optimizer, lr, momentum, beta1, beta2, rho, epsilon, decay, size, root};
    k->update(&u, n, p, g, s1, s2);
}

void rondo_function(const struct kernels *k, int f, long n, float *y, const float *x)
{
    k->function(f, n, y, x);
}
