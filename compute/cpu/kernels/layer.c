//go:build cgo

// A recurrent layer's workspace, and Go's calls of its kernels.

#include <stdlib.h>

#include "arena.h"

enum { DEPTH = 32, LANES = 16 }; // pairs are padded to; dbias has a sum for each so many lanes

static long up(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

// A tensor of so many steps, at least two, and of at least so many rows.
static struct tensor tensor(long steps, long lanes, long rows, size_t element)
{
    struct tensor x = {.steps = steps < 2 ? 2 : steps, .lanes = lanes};
    long own = x.steps * lanes;
    x.stride = rondo_spread(own > rows ? own : rows, BLOCK * element);
    return x;
}

// Sets the fields that follow from the cell and the shape.
static void measure(struct layer *l, int bf16)
{
#define ROW(name, gates, states, kept, peepholes) {gates, states, peepholes},
    static const struct { int gates, states, peepholes; } cells[] = {RONDO_CELLS(ROW)};
#undef ROW
    l->states = cells[l->cell].states;
    l->N = l->T * l->B;
    l->K = cells[l->cell].gates;
    l->R = l->cell == MIN_GRU ? 0 : l->K;
    l->P = cells[l->cell].peepholes;
    l->before = l->cell == GRU_RESET_BEFORE || l->cell == MGU;
    l->G = l->K + (l->cell == GRU || l->cell == MGU);
    l->sums = l->G + l->P;
    l->U = (l->H + BLOCK - 1) / BLOCK;
    l->X = (l->D + BLOCK - 1) / BLOCK;
    l->lanes = LANES;
    l->tile_rows = 2 * l->B > INPUT_ROWS ? 2 * l->B : INPUT_ROWS;
    long even = up(l->B, 2); // pairs begin each step anew
    l->M = bf16 ? up(l->T * even, DEPTH) : l->N;

    // Backward reads every step's h, and reads it as float unless the cell has a c.
    long steps = l->T + 1, kept = bf16 && l->states == 2 ? 2 : steps;
    l->gates = l->aux = tensor(l->T, l->B, 0, sizeof(float));
    l->h = tensor(kept, l->B, 0, sizeof(float));
    l->c = tensor(l->inference ? 2 : steps, l->B, 0, sizeof(float));
    l->d = tensor(2, l->B, 0, sizeof(float));
    l->d_rows = tensor(l->T, l->B, 0, sizeof(uint16_t));
    l->h_rows = l->aux_rows = tensor(2, l->B, 0, sizeof(uint16_t));
    l->h_pairs = l->aux_pairs = l->d_pairs =
        tensor(steps, even, l->M + even, sizeof(uint16_t));
}

static struct part part_of(struct tensor *x, long blocks, size_t element)
{
    return (struct part){&x->at, blocks * x->stride * BLOCK * element};
}

static struct input *input_new(const struct kernels *k, const struct layer *l, int ids,
                               size_t *only)
{
    struct input in = {.ids = ids, .compact = l->D > l->N};
    in.tokens = in.rows_kept = in.compact ? l->N : l->D;
    long numbered = ids && in.compact;
    size_t half = k->bf16 ? sizeof(uint16_t) : 0, operand = half ? half : sizeof(float);
    long even = up(l->B, 2), panels = (long)!ids * l->K * l->U * l->X * BLOCK * BLOCK;
    long back = !l->inference;
    in.rows = tensor(l->T, l->B, 0, operand);
    in.pairs = tensor(l->T, even, l->M, sizeof(uint16_t));
    struct part parts[] = {
        FLOATS(in.table, (long)ids * l->K * l->U * in.rows_kept * BLOCK),
        {&in.token, numbered * l->N * sizeof *in.token},
        {&in.slot_of, numbered * l->D * sizeof *in.slot_of},
        {&in.numbers, numbered * l->N * sizeof *in.numbers},
        OPERANDS(k, in.panels, panels),
        OPERANDS(k, in.back, back * panels),
        part_of(&in.rows, !ids * l->X, operand),
        part_of(&in.pairs, !ids * back * l->X, half),
    };
    struct input *w = rondo_arena_new(&in, sizeof in, parts, sizeof parts / sizeof *parts, only);
    if (w && !k->bf16)
        w->pairs = w->rows;
    return w;
}

struct layer *rondo_layer_new(const struct kernels *k, int threads, int cell, long T, long B,
                              long D, long H, float leak, const float *periods, int inference,
                              int ids, size_t *only)
{
    struct layer l = {.cell = cell, .inference = inference, .T = T, .B = B, .D = D, .H = H,
                      .leak = leak};
    measure(&l, k->bf16);
    size_t whole = sizeof(float), half = k->bf16 ? sizeof(uint16_t) : 0; // bytes of an element
    long back = !inference;
    long two = l.states == 2, before = l.before, strips = up(B, LANES) / LANES;
    struct part parts[] = {
        FLOATS(l.bias, l.G * l.U * BLOCK),
        FLOATS(l.peephole, l.P * l.U * BLOCK),
        FLOATS(l.period, (cell == CLOCKWORK) * l.U * BLOCK),
        OPERANDS(k, l.hidden, l.R * l.U * BLOCK * l.U * BLOCK),
        part_of(&l.h, l.U, whole),
        part_of(&l.c, two * l.U, whole),
        part_of(&l.aux, before * l.U, whole),
        part_of(&l.gates, l.G * l.U, whole),
        part_of(&l.h_rows, l.U, half),
        part_of(&l.aux_rows, before * l.U, half),
        part_of(&l.h_pairs, back * l.U, half),
        part_of(&l.aux_pairs, back * before * l.U, half),
        part_of(&l.d, back * l.G * l.U, half ? whole : 0),
        part_of(&l.d_rows, back * l.G * l.U, half),
        part_of(&l.d_pairs, back * l.G * l.U, half),
        OPERANDS(k, l.hidden_back, back * l.U * l.R * l.U * BLOCK * BLOCK),
        FLOATS(l.dh, back * l.U * B * BLOCK),
        FLOATS(l.dc, back * two * l.U * B * BLOCK),
        FLOATS(l.dbias, back * strips * l.sums * l.U * BLOCK),
        FLOATS(l.tile, back * threads * l.tile_rows * BLOCK),
    };
    struct layer *w = rondo_arena_new(&l, sizeof l, parts, sizeof parts / sizeof *parts, only);
    if (only && ids >= 0)
        input_new(k, &l, ids, only);
    if (w && !k->bf16) {
        w->h_rows = w->h_pairs = w->h;
        w->aux_rows = w->aux_pairs = w->aux;
        w->d = w->d_rows = w->d_pairs = w->gates;
    }
    for (long j = 0; w && cell == CLOCKWORK && j < H; j++)
        w->period[j] = periods[j];
    return w;
}

void rondo_layer_free(struct layer *l)
{
    if (l)
        free(l->in);
    free(l);
}

// The arguments of run_pass.
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

int rondo_layer_forward(const struct kernels *k, struct team *t, struct layer *l,
                        const float *ih, const float *hh, const float *bih, const float *bhh,
                        const float *peephole, const int32_t *ids, const float *x,
                        const int32_t *lengths, const float *h0, const float *c0, float *y,
                        float *h, float *c)
{
    if (l->in && l->in->ids != !!ids) {
        free(l->in);
        l->in = 0;
        l->packed = 0;
    }
    if (!l->in && !(l->in = input_new(k, l, !!ids, 0)))
        return 0;
    struct layer_call call = {.ih = ih, .hh = hh, .bih = bih, .bhh = bhh, .peephole = peephole,
                              .ids = ids, .lengths = lengths, .x = x, .h0 = h0, .c0 = c0,
                              .y = y, .h = h, .c = c};
    struct pass p = {k->layer_forward, l, &call};
    rondo_team_run(t, run_pass, &p);
    l->packed = l->keep;
    return 1;
}

void rondo_layer_keep(struct layer *l) { l->keep = 1; }

int rondo_layer_gates_even(const struct team *t, const struct layer *l)
{
    return l->U % rondo_team_size(t) == 0;
}

void rondo_layer_backward(const struct kernels *k, struct team *t, struct layer *l, int parts,
                          const float *ih, const float *hh, const int32_t *ids,
                          const int32_t *lengths, const float *dy, const float *dh,
                          const float *dc, float *dih, float *dhh, float *dbih, float *dbhh,
                          float *dpeephole, float *dx, float *dh0, float *dc0)
{
    struct layer_call call = {.parts = parts, .ih = ih, .hh = hh, .ids = ids,
                              .lengths = lengths, .dy = dy,
                              .dh = dh, .dc = dc, .dih = dih, .dhh = dhh, .dbih = dbih,
                              .dbhh = dbhh, .dpeephole = dpeephole, .dx = dx, .dh0 = dh0,
                              .dc0 = dc0};
    struct pass p = {k->layer_backward, l, &call};
    rondo_team_run(t, run_pass, &p);
}
