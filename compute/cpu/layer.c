//go:build cgo

// A recurrent layer's workspace, and the way to its kernels from Go.

#include "arena.h"

enum { DEPTH = 32, LANES = 16 }; // pairs are padded to; dbias has a sum for each so many lanes

static long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

// Fills in what follows from the cell and the shape.
static void measure(struct layer *l, int bf16)
{
    static const int gates[] = {[RNN_TANH] = 1, [RNN_RELU] = 1, [GRU] = 3, [GRU_BEFORE] = 3,
                                [LSTM] = 4};
    l->N = l->T * l->B;
    l->K = gates[l->cell];
    l->G = l->K + (l->cell == GRU);
    l->U = (l->H + BLOCK - 1) / BLOCK;
    l->X = (l->D + BLOCK - 1) / BLOCK;
    l->S = rondo_spread(l->B + l->N, BLOCK * sizeof(float));
    l->P = bf16 ? up(l->B, 2) : l->B;
    l->M = bf16 ? up(l->T * l->P, DEPTH) : l->N;
    l->Q = bf16 ? rondo_spread(l->M + l->P, BLOCK * sizeof(uint16_t)) : l->S;
    l->lanes = LANES;
    l->tile_rows = l->B > INPUT_ROWS ? l->B : INPUT_ROWS;
}

struct layer *rondo_layer_new(const struct kernels *k, int threads, int cell, long T, long B,
                              long D, long H, int inference)
{
    struct layer l = {.cell = cell, .inference = inference, .threads = threads,
                      .T = T, .B = B, .D = D, .H = H};
    measure(&l, k->bf16);
    long wide = l.K * l.U * BLOCK, back = !inference, half = k->bf16;
    long rows = l.U * l.S * BLOCK, pairs = back * half * l.Q * BLOCK;
    long lstm = cell == LSTM, before = cell == GRU_BEFORE;
    struct part parts[] = {
        FLOATS(l.bias, l.G * l.U * BLOCK),
        OPERANDS(k, l.hidden, wide * l.U * BLOCK),
        FLOATS(l.h, rows),
        FLOATS(l.c, lstm * rows),
        FLOATS(l.aux, before * rows),
        FLOATS(l.gates, l.G * rows),
        FLOATS(l.table, l.K * l.U * l.D * BLOCK),
        OPERANDS(k, l.input, wide * l.X * BLOCK),
        OPERANDS(k, l.x_rows, l.X * l.S * BLOCK),
        OPERANDS(k, l.h_rows, half * rows),
        OPERANDS(k, l.aux_rows, half * before * rows),
        OPERANDS(k, l.x_pairs, l.X * pairs),
        OPERANDS(k, l.h_pairs, l.U * pairs),
        OPERANDS(k, l.aux_pairs, before * l.U * pairs),
        OPERANDS(k, l.d_pairs, l.G * l.U * pairs),
        OPERANDS(k, l.d_rows, back * half * l.G * rows),
        OPERANDS(k, l.hidden_back, back * l.U * wide * BLOCK),
        OPERANDS(k, l.input_back, back * l.X * wide * BLOCK),
        FLOATS(l.dh, back * l.U * l.B * BLOCK),
        FLOATS(l.dc, back * lstm * l.U * l.B * BLOCK),
        FLOATS(l.dbias, back * up(l.B, LANES) / LANES * l.G * l.U * BLOCK),
        FLOATS(l.tile, back * threads * l.tile_rows * BLOCK),
    };
    struct layer *w = rondo_arena_new(&l, sizeof l, parts, sizeof parts / sizeof *parts);
    if (w && !k->bf16) {
        w->x_pairs = w->x_rows;
        w->h_rows = w->h_pairs = w->h;
        w->aux_rows = w->aux_pairs = w->aux;
        w->d_rows = w->d_pairs = w->gates;
    }
    return w;
}

// A pass on its way to every thread of a team.
struct pass {
    void (*kernel)(const struct member *m, struct layer *l, const struct layer_call *c);
    struct layer *l;
    const struct layer_call *call;
};

static void run_pass(void *with, const struct member *m)
{
    struct pass *p = with;
    p->kernel(m, p->l, p->call);
}

void rondo_layer_forward(const struct kernels *k, struct team *t, struct layer *l,
                         const float *ih, const float *hh, const float *bih, const float *bhh,
                         const int32_t *ids, const float *x, const float *h0, const float *c0,
                         float *y, float *h, float *c)
{
    struct layer_call call = {.ih = ih, .hh = hh, .bih = bih, .bhh = bhh, .ids = ids, .x = x,
                              .h0 = h0, .c0 = c0, .y = y, .h = h, .c = c};
    struct pass p = {k->layer_forward, l, &call};
    rondo_team_run(t, run_pass, &p);
}

void rondo_layer_backward(const struct kernels *k, struct team *t, struct layer *l,
                          const float *ih, const float *hh, const int32_t *ids,
                          const float *dy, const float *dh, const float *dc, float *dih,
                          float *dhh, float *dbih, float *dbhh, float *dx, float *dh0,
                          float *dc0)
{
    struct layer_call call = {.ih = ih, .hh = hh, .ids = ids, .dy = dy, .dh = dh, .dc = dc,
                              .dih = dih, .dhh = dhh, .dbih = dbih, .dbhh = dbhh, .dx = dx,
                              .dh0 = dh0, .dc0 = dc0};
    struct pass p = {k->layer_backward, l, &call};
    rondo_team_run(t, run_pass, &p);
}
