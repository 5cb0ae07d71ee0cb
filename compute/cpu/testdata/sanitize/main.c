// Runs every kernel of every instruction set that this processor has, in both precisions, with 1
// to 3 threads, for the sanitizers: sanitize SEED CASES LARGEST FEWEST. It runs CASES random shapes
// of each kernel with FEWEST threads and more; the corners of the shapes from 1 to LARGEST with the
// fewest and the most; and with the most a few large ones, in one set of each precision all LARGEST
// steps of LARGEST lanes; and prints what it ran. sanitize MISTAKE makes one of mistakes.h instead.

#include "tensor.h"

#include "flat.h"

#include "mistakes.h"

enum { THREADS = 3 };

// Rows of a layer's segment or of an output: enough for several chunks of what holds fewest.
enum { ROWS = 300 };

// What kernels run on.
struct place {
    const struct kernels *k;
    struct team *team;
    int threads;
    long largest; // of each dimension
};

static const char *const sets[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};
enum { SETS = sizeof sets / sizeof *sets };

#define GATES(name, gates, states, kept, peepholes) gates,
#define STATES(name, gates, states, kept, peepholes) states,
#define PEEPHOLES(name, gates, states, kept, peepholes) peepholes,

struct layer_shape {
    int cell, dense, optional; // optional: what may be null is not
    long T, B, D, H;
};

// The pass of a layer: forward, and backward twice, with what is optional and without.
static void run_layer(const struct place *p, const struct layer_shape *s)
{
    static const int gates[] = {RONDO_CELLS(GATES)}, states[] = {RONDO_CELLS(STATES)};
    static const int peepholes[] = {RONDO_CELLS(PEEPHOLES)};
    struct bag b = {0};
    snprintf(b.name, sizeof b.name, "%s, %d threads: cell %d dense %d T %ld B %ld D %ld H %ld",
             rondo_name(p->k), p->threads, s->cell, s->dense, s->T, s->B, s->D, s->H);
    long k = gates[s->cell] * s->H, n = s->T * s->B, state = s->B * s->H;
    int lstm = states[s->cell] == 2;
    float size = 1 / sqrtf((float)s->H);
    int fed = s->cell == MIN_GRU; // no gate reads the state before: no weights of it
    float *ih = values(&b, k * s->D, size), *hh = fed ? 0 : values(&b, k * s->H, size);
    float *bih = values(&b, k, size), *bhh = fed ? 0 : values(&b, k, size);
    long holes = peepholes[s->cell] * s->H;
    float *peephole = holes ? values(&b, holes, size) : 0;
    float *dpeephole = holes ? output(&b, holes) : 0;
    int32_t *tokens = s->dense ? 0 : ids(&b, n, 0, s->D);
    float *x = s->dense ? values(&b, n * s->D, 1) : 0;
    int32_t *lengths = s->optional ? ids(&b, s->B, 0, s->T + 1) : 0;
    float *h0 = values(&b, state, 1), *c0 = lstm ? values(&b, state, 1) : 0;
    float *y = output(&b, n * s->H), *h = output(&b, state), *c = lstm ? output(&b, state) : 0;
    float *dy = values(&b, n * s->H, 1);
    float *dih = output(&b, k * s->D), *dhh = fed ? 0 : output(&b, k * s->H);
    float *dbih = output(&b, k), *dbhh = fed ? 0 : output(&b, k);
    float *dh = 0, *dc = 0, *dx = 0, *dh0 = 0, *dc0 = 0;
    if (s->optional) {
        dh = values(&b, state, 1);
        dh0 = output(&b, state);
        dc = lstm ? values(&b, state, 1) : 0;
        dc0 = lstm ? output(&b, state) : 0;
        dx = s->dense ? output(&b, n * s->D) : 0;
    }
    float *periods = s->cell == CLOCKWORK ? values(&b, s->H, 2) : 0;
    struct layer *l = rondo_layer_new(p->k, p->threads, s->cell, s->T, s->B, s->D, s->H, 0.25f,
                                      periods, 0, 0, 0);
    for (int again = 0; again < 2; again++) { // first by parts, then at once, on a used workspace
        rondo_layer_forward(p->k, p->team, l, ih, hh, bih, bhh, peephole, tokens, x, lengths, h0,
                            c0, y, h, c);
        for (int parts = again ? BACK_ALL : BACK_RECURRENCE; parts <= BACK_ALL; parts *= 2)
            rondo_layer_backward(p->k, p->team, l, parts, ih, hh, tokens, lengths, dy, dh, dc,
                                 dih, dhh, dbih, dbhh, dpeephole, dx, dh0, dc0);
    }
    rondo_layer_free(l);
    l = rondo_layer_new(p->k, p->threads, s->cell, s->T, s->B, s->D, s->H, 0.25f, periods, 1,
                        0, 0);
    rondo_layer_forward(p->k, p->team, l, ih, hh, bih, bhh, peephole, tokens, x, lengths, h0,
                        c0, y, h0, c0);
    rondo_layer_free(l);
    give_back(&b);
}

static void run_head(const struct place *p, long N, long H, long V, long rows, int bias)
{
    struct bag b = {0};
    snprintf(b.name, sizeof b.name, "%s, %d threads: output N %ld H %ld V %ld rows %ld bias %d",
             rondo_name(p->k), p->threads, N, H, V, rows, bias);
    float *x = values(&b, N * H, 1), *w = values(&b, V * H, 1);
    float *bs = bias ? values(&b, V, 1) : 0;
    int32_t *targets = ids(&b, N, -1, V);
    float *dx = output(&b, N * H), *dw = output(&b, V * H), *db = bias ? output(&b, V) : 0;
    struct head *o = rondo_head_new(p->k, p->threads, N, H, V, rows, 0);
    double alone = rondo_head_run(p->k, p->team, o, N, x, w, bs, targets, 1, 0, 0, 0, 0);
    double loss = rondo_head_run(p->k, p->team, o, N, x, w, bs, targets, 0.5f, 0, dx, dw, db);
    if (!isfinite(loss) || fabs(loss - alone) > 1e-5 * (1 + fabs(loss))) {
        fprintf(stderr, "%s: loss %g, without gradients %g\n", b.name, loss, alone);
        exit(2);
    }
    free(o);
    give_back(&b);
}

static void run_flat(const struct place *p, long rows, long n)
{
    struct bag b = {0};
    snprintf(b.name, sizeof b.name, "%s, %d threads: vectors of %ld rows of %ld",
             rondo_name(p->k), p->threads, rows, n);
    long all = rows * n, lanes = rows > 3 && rows % 2 == 0 ? 2 : rows;
    float *x = values(&b, all, 1), *y = values(&b, all, 1), *bias = values(&b, n, 1);
    float *s1 = values(&b, all, 0), *s2 = values(&b, all, 0), *z = output(&b, all);
    uint64_t *keys = take(&b, lanes * sizeof *keys, 0);
    for (long i = 0; i < lanes; i++)
        keys[i] = next_random();
    rondo_add(p->k, p->team, all, y, x);
    rondo_add_bias(p->k, p->team, rows, n, y, bias);
    rondo_scale(p->k, p->team, all, y, 0.7f);
    rondo_clamp(p->k, p->team, all, y, 0.5f);
    if (!isfinite(rondo_sum_squares(p->k, p->team, all, y)))
        fprintf(stderr, "%s: a sum of squares is not finite\n", b.name), exit(2);
    int32_t *rows_of = ids(&b, 7, 0, rows);
    float *dy = values(&b, 7 * n, 1);
    float *gathered = output(&b, 7 * n);
    rondo_embed(p->team, 7, n, gathered, x, rows_of);
    rondo_embed_backward(p->k, p->team, 7, n, x, dy, rows_of);
    int32_t *picked = ids(&b, rows, -1, rows), *lengths = ids(&b, rows, 0, 4);
    long apart = n + 3; // the copied columns are the last of each row
    float *wide = values(&b, (rows - 1) * apart + n, 1), *dst = output(&b, all);
    for (int add = 0; add < 2; add++)
        rondo_copy_rows(p->k, p->team, rows, n, dst, n, wide, apart, picked, add);
    rondo_copy_rows(p->k, p->team, rows, n, wide, apart, x, n, 0, 0);
    for (int pooling = 0; pooling < 2; pooling++) {
        float *steps = values(&b, 3 * all, 1), *pooled = output(&b, all);
        float *dsteps = output(&b, 3 * all);
        rondo_pool(p->k, p->team, pooling, rows, n, pooled, steps, lengths);
        rondo_pool_backward(p->k, p->team, pooling, 3, rows, n, dsteps, y, steps, pooled, lengths);
    }
    float *bent = values(&b, all, 1);
    rondo_tanh(p->k, p->team, all, bent, 0);
    rondo_tanh(p->k, p->team, all, z, bent);
    for (long S = 1; S <= 5; S += 4) {
        struct attention a = {.T = 3, .S = S, .B = rows, .H = n, .W = n + 1,
                              .q = values(&b, 3 * all, 1), .k = values(&b, S * all, 1),
                              .v = values(&b, S * (all + rows), 1),
                              .weights = output(&b, 3 * rows * S),
                              .y = output(&b, 3 * (all + rows))};
        int32_t *ends = ids(&b, rows, 0, S + 1);
        rondo_attend(p->k, p->team, a, ends);
        a.dy = values(&b, 3 * (all + rows), 1);
        a.dq = output(&b, 3 * all);
        a.dk = output(&b, S * all);
        a.dv = output(&b, S * (all + rows));
        rondo_attend(p->k, p->team, a, ends);
    }
    rondo_dropout(p->k, p->team, rows, lanes, n, z, x, 0.3f, keys);
    for (int optimizer = SGD; optimizer <= ADAGRAD; optimizer++) {
        struct update u = {.optimizer = optimizer, .lr = 0.1f, .momentum = 0.9f, .beta1 = 0.9f,
                           .beta2 = 0.99f, .rho = 0.9f, .epsilon = 1e-8f, .decay = 0.01f,
                           .size = 0.1f, .root = 1};
        memset(s1, 0, all * sizeof *s1);
        memset(s2, 0, all * sizeof *s2);
        rondo_update(p->k, p->team, u, all, y, x, s1, s2);
    }
    for (int f = 0; f < 3; f++)
        rondo_function(p->k, f, all, z, y);
    give_back(&b);
}

// op(a) op(b): [m, n], of depth k, transposed or not by two bits.
static void run_gemm(const struct place *p, long m, long n, long k, int bits)
{
    struct bag b = {0};
    snprintf(b.name, sizeof b.name, "%s, %d threads: gemm %ldx%ldx%ld, transposed %d",
             rondo_name(p->k), p->threads, m, n, k, bits);
    float *x = values(&b, m * k, 1), *y = values(&b, k * n, 1), *c = output(&b, m * n);
    struct space space = {0};
    for (int again = 0; again < 2; again++)
        rondo_gemm(p->k, p->team, &space, bits & 1, bits >> 1, m, n, k, 0.7f, x, y,
                   again ? 0.5f : 0, c);
    rondo_space_free(&space);
    give_back(&b);
}

static long least(long a, long b) { return a < b ? a : b; }

// One of the corners of a shape: 1 or the largest, by a bit.
static long corner(const struct place *p, int bits, int bit)
{
    return bits >> bit & 1 ? p->largest : 1;
}

static long any(const struct place *p) { return 1 + below(p->largest); }

// The corners: every cell with each of T, B, D, H 1 or the largest, but for so many rows that it
// takes long; both kinds of input in turn.
static void run_corners(const struct place *p)
{
    for (int bits = 0; bits < 16; bits++) {
        long first = corner(p, bits, 0), second = corner(p, bits, 1);
        long third = corner(p, bits, 2), fourth = corner(p, bits, 3);
        for (int cell = 0; cell < CELLS; cell++) {
            struct layer_shape s = {cell, (bits + cell) % 2, below(2) == 0,
                                    least(first, ROWS / second), second, third, fourth};
            run_layer(p, &s);
        }
        run_head(p, first, second, third, least(fourth, first), bits % 3 > 0);
        run_flat(p, first, second);
        run_gemm(p, first, second, third, bits % 4);
    }
}

// All steps and lanes at once, of one cell: more rows than ROWS.
static void run_largest(const struct place *p)
{
    run_layer(p, &(struct layer_shape){LSTM, 1, 1, p->largest, p->largest, 33, 35});
}

static void run_random(const struct place *p, int cases)
{
    for (int i = 0; i < cases; i++) {
        long B = any(p), rows = any(p);
        struct layer_shape s = {i % CELLS, below(2) == 0, below(2) == 0,
                                1 + below(least(p->largest, ROWS / B)), B, any(p), any(p)};
        run_layer(p, &s);
        run_head(p, rows, any(p), any(p), below(rows + 1), below(3) > 0);
        run_flat(p, any(p), any(p));
        run_gemm(p, any(p), any(p), any(p), i % 4);
    }
}

// Shapes of which every loop over parts has several, and every operation is shared: strips of
// tokens, rows of a chunk, of a tile and of a sum of an output layer; rows of a layer's input and
// gradient; rows, columns and depth of a general product, shared by rows and by columns; long
// vectors.
static void run_large(const struct place *p)
{
    run_head(p, 70, 140, 600, 0, 1);
    run_head(p, 70, 140, 600, 33, 0);
    run_head(p, 700, 33, 300, 0, 1);
    for (int bits = 0; bits < 4; bits++)
        run_gemm(p, bits % 3 ? 60 : 130, 2100, 600, bits);
    run_flat(p, 7, 18737);
    for (int cell = GRU; cell < CELLS; cell++)
        run_layer(p, &(struct layer_shape){cell, cell != GRU, 1, 70, 23, 40, 37});
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return make_mistake(argv[1]);
    if (argc != 5) {
        fprintf(stderr, "usage: %s SEED CASES LARGEST FEWEST, or MISTAKE\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    random_state = strtoull(argv[1], 0, 10);
    int cases = atoi(argv[2]), fewest = atoi(argv[4]), n = 0, largest[2] = {0};
    rondo_layer_free(0);
    const struct kernels *seen[2 * SETS];
    for (int i = 0; i < 2 * SETS; i++) {
        const struct kernels *k = rondo_kernels(sets[i / 2], i % 2);
        int known = !k;
        for (int j = 0; j < n; j++)
            known |= seen[j] == k;
        if (known)
            continue;
        seen[n++] = k;
        for (int t = fewest; t <= THREADS; t++) {
            struct place p = {k, t > 1 ? rondo_team_new(t) : 0, t, atol(argv[3])};
            if (t == fewest || t == THREADS)
                run_corners(&p);
            run_random(&p, cases);
            if (t == THREADS)
                run_large(&p);
            if (t == THREADS && !largest[k->bf16]++)
                run_largest(&p);
            rondo_team_free(p.team);
        }
        printf("%s\n", rondo_name(k));
    }
    return n ? 0 : 2;
}
