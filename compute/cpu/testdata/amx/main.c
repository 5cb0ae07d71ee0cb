// Checks the AMX kernels, without Go: on the processor's AMX, or else on an emulation of it where
// the rest of the instructions are there. It prints what it did, and what is wrong; its status is
// 0, or 1 if anything is wrong, or 77 where it cannot run.

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulate.h"
#include "flat.h"

extern const struct kernels rondo_amx, rondo_portable_bf16;

// What select.c names and nothing here runs.
const struct kernels rondo_portable, rondo_avx2, rondo_avx2_bf16, rondo_avx512, rondo_avx512_bf16,
    rondo_avx512bf16;

enum { SKIPPED = 77, LARGEST = 67 };

static int wrong;

static void complain(const char *what, long at, double got, double want)
{
    if (wrong++ < 20)
        printf("%s: element %ld is %g, want %g\n", what, at, got, want);
}

static uint64_t random_state = 1;

static long random_below(long n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (long)((random_state >> 33) % (uint64_t)n);
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        exit(2);
    return memset(p, 0xff, bytes); // NaN, of either precision
}

static float *randoms(long n, float size)
{
    float *x = memory(n * sizeof *x);
    for (long i = 0; i < n; i++)
        x[i] = size * (float)(random_below(2001) - 1000) / 1000;
    return x;
}

static float *copy(const float *x, long n)
{
    return memcpy(memory(n * sizeof *x), x, n * sizeof *x);
}

static double rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// A number up to 1 to which `depth` products of such numbers were added.
static void compare_sums(const char *what, long at, double got, double want, long depth)
{
    if (!(fabs(got - want) <= 1e-6 * (1 + depth)))
        complain(what, at, got, want);
}

// Three times c: [rows][BLOCK] += x w^T of x: [rows, depth] and each a w: [n, depth], with both
// ways to pack w: at once, and one by one with the same bits.
static void check_product(long rows, long depth, long n)
{
    const struct products *p = &rondo_amx.products;
    long blocks = (depth + BLOCK - 1) / BLOCK, padded = blocks * BLOCK, spread = rows + 3;
    long count = 3, gap = (rows + 1) * BLOCK, panel_gap = padded * BLOCK;
    float *x = randoms(rows * depth, 1), *w = randoms(count * n * depth, 1);
    float *turned = memory(count * n * depth * sizeof *w), *c = randoms(count * gap, 1);
    uint16_t *a = memory(blocks * spread * BLOCK * sizeof *a);
    uint16_t *panels = memory(count * panel_gap * sizeof *panels);
    for (long i = 0; i < count * n * depth; i++)
        turned[(i / depth / n * depth + i % depth) * n + i / depth % n] = w[i];
    for (long q = 0; q < blocks; q++)
        p->put_rows(rows, a + q * spread * BLOCK, x + q * BLOCK, depth,
                    depth - q * BLOCK < BLOCK ? depth - q * BLOCK : BLOCK);
    for (int way = 0; way < 2; way++) {
        float *sums = copy(c, count * gap), *alone = copy(c, count * gap);
        for (long v = 0; v < count; v++)
            if (way)
                p->pack_rows(panels + v * panel_gap, turned + v * n * depth, depth, n, n, padded);
            else
                p->pack_columns(panels + v * panel_gap, w + v * n * depth, n, depth, depth,
                                padded);
        p->products(count, rows, sums, gap, a, spread * BLOCK, blocks, panels, panel_gap);
        for (long v = 0; v < count; v++)
            p->products(1, rows, alone + v * gap, 0, a, spread * BLOCK, blocks,
                        panels + v * panel_gap, 0);
        for (long i = 0; i < count * gap; i++) {
            double want = c[i];
            long v = i / gap, r = i % gap / BLOCK, j = i % BLOCK;
            for (long k = 0; r < rows && j < n && k < depth; k++)
                want += rounded(x[r * depth + k]) * rounded(w[(v * n + j) * depth + k]);
            compare_sums(way ? "product, w's rows" : "product, w's columns", i, sums[i], want,
                         r < rows ? depth : 0);
            if (sums[i] != alone[i])
                complain("products one by one", i, alone[i], sums[i]);
        }
        free(sums), free(alone);
    }
    free(x), free(w), free(turned), free(c), free(a), free(panels);
}

// c: [rows, columns] = or += aT b of a: [depth, rows] and b: [depth, columns].
static void check_outers(long depth, long rows, long columns, int add)
{
    const struct products *p = &rondo_amx.products;
    long blocks = (columns + BLOCK - 1) / BLOCK, padded = (depth + BLOCK - 1) / BLOCK * BLOCK;
    long ld = columns + random_below(3), size = (rows + 1) * ld, spread = (padded + 2) * BLOCK;
    float *x = randoms(depth * rows, 1), *y = randoms(depth * columns, 1), *c = randoms(size, 1);
    float *sums = copy(c, size);
    uint16_t *a = memory(padded * BLOCK * sizeof *a), *b = memory(blocks * spread * sizeof *b);
    memset(a, 0, padded * BLOCK * sizeof *a);
    memset(b, 0, blocks * spread * sizeof *b);
    p->put_pairs(depth, a, x, rows, rows);
    for (long j = 0; j < blocks; j++)
        p->put_pairs(depth, b + j * spread, y + j * BLOCK, columns,
                     columns - j * BLOCK < BLOCK ? columns - j * BLOCK : BLOCK);
    p->outers(sums, ld, rows, columns, a, b, spread, padded, add);
    for (long i = 0; i < size; i++) {
        long r = i / ld, j = i % ld;
        int inside = r < rows && j < columns;
        double want = inside && !add ? 0 : c[i];
        for (long k = 0; inside && k < depth; k++)
            want += rounded(x[k * rows + r]) * rounded(y[k * columns + j]);
        compare_sums("outers", i, sums[i], want, inside ? depth : 0);
    }
    free(x), free(y), free(c), free(sums), free(a), free(b);
}

static void check_products(void)
{
    for (long rows = 1; rows <= LARGEST; rows++)
        check_product(rows, 1 + random_below(100), 1 + random_below(BLOCK));
    check_product(70, 33 * BLOCK, BLOCK); // more than goes through at a time
    check_product(5, 17 * BLOCK, BLOCK);
    for (long rows = 1; rows <= BLOCK; rows++)
        check_outers(1 + random_below(200), rows, 1 + random_below(LARGEST), rows % 2);
    check_outers(1120, BLOCK, 2 * BLOCK, 0);
    check_outers(1121, BLOCK, 2 * BLOCK + 1, 1);
}

// What a layer gives, as vectors one after another.
struct results {
    float *at[10];
    long size[10];
    int count;
};

static float *result(struct results *r, long size)
{
    r->size[r->count] = size;
    return r->at[r->count++] = memory(size * sizeof(float));
}

static void free_results(struct results *r)
{
    for (int i = 0; i < r->count; i++)
        free(r->at[i]);
}

// bound is of the error relative to a vector's largest element; 0 means the same bits.
static void compare_results(const char *what, const struct results *got,
                            const struct results *want, double bound)
{
    for (int v = 0; v < got->count; v++) {
        double largest = 0;
        for (long i = 0; i < want->size[v]; i++)
            largest = fmax(largest, fabs(want->at[v][i]));
        for (long i = 0; i < want->size[v]; i++)
            if (!(fabs(got->at[v][i] - want->at[v][i]) <= bound * largest))
                complain(what, i, got->at[v][i], want->at[v][i]);
    }
}

#define GATES(name, gates, states, kept, peepholes) gates,
#define STATES(name, gates, states, kept, peepholes) states,
#define PEEPHOLES(name, gates, states, kept, peepholes) peepholes,

struct layer_shape {
    int cell, dense;
    long T, B, D, H;
};

struct layer_inputs {
    float *ih, *hh, *bih, *bhh, *peephole, *x, *h0, *c0, *dy;
    int32_t *ids;
};

static struct results run_layer(const struct kernels *k, int threads, const struct layer_shape *s,
                                const struct layer_inputs *in)
{
    static const int gate_counts[] = {RONDO_CELLS(GATES)}, states[] = {RONDO_CELLS(STATES)};
    static const int peepholes[] = {RONDO_CELLS(PEEPHOLES)};
    int two = states[s->cell] == 2;
    long gates = gate_counts[s->cell] * s->H, n = s->T * s->B, state = s->B * s->H;
    struct results r = {.count = 0};
    float *y = result(&r, n * s->H), *h = result(&r, state);
    float *c = two ? result(&r, state) : 0;
    int fed = s->cell == MIN_GRU; // no gate reads the state before: no weights of it
    float *dih = result(&r, gates * s->D), *dhh = fed ? 0 : result(&r, gates * s->H);
    float *dbih = result(&r, gates), *dbhh = fed ? 0 : result(&r, gates);
    long holes = peepholes[s->cell] * s->H;
    float *dpeephole = holes ? result(&r, holes) : 0;
    float *dx = s->dense ? result(&r, n * s->D) : 0, *dh0 = result(&r, state);
    struct team *t = threads > 1 ? rondo_team_new(threads) : 0;
    struct layer *l = rondo_layer_new(k, threads, s->cell, s->T, s->B, s->D, s->H, 0.25f,
                                      in->bih, 0, 0, 0);
    const int32_t *ids = s->dense ? 0 : in->ids;
    rondo_layer_forward(k, t, l, in->ih, in->hh, in->bih, in->bhh, in->peephole, ids,
                        s->dense ? in->x : 0, 0, in->h0, two ? in->c0 : 0, y, h, c);
    rondo_layer_backward(k, t, l, BACK_ALL, in->ih, in->hh, ids, 0, in->dy, 0, 0, dih, dhh,
                         dbih, dbhh, dpeephole, dx, dh0, 0);
    rondo_layer_free(l);
    if (t)
        rondo_team_free(t);
    return r;
}

// A layer against the portable kernels, and on more threads against one.
static void check_layer(const struct layer_shape *s)
{
    float size = 1 / sqrtf((float)s->H);
    long gates = 4 * s->H, n = s->T * s->B;
    char what[100];
    struct layer_inputs in = {
        .ih = randoms(gates * s->D, size), .hh = randoms(gates * s->H, size),
        .bih = randoms(gates, size), .bhh = randoms(gates, size),
        .peephole = randoms(gates, size), .x = randoms(n * s->D, 1),
        .h0 = randoms(s->B * s->H, 1), .c0 = randoms(s->B * s->H, 1), .dy = randoms(n * s->H, 1),
        .ids = memory(n * sizeof *in.ids),
    };
    for (long i = 0; i < n; i++)
        in.ids[i] = (int32_t)random_below(s->D);
    struct results want = run_layer(&rondo_portable_bf16, 1, s, &in);
    struct results one = run_layer(&rondo_amx, 1, s, &in);
    snprintf(what, sizeof what, "layer, cell %d dense %d T %ld B %ld D %ld H %ld", s->cell,
             s->dense, s->T, s->B, s->D, s->H);
    compare_results(what, &one, &want, 0.02);
    for (int threads = 2; threads <= 3; threads++) {
        struct results more = run_layer(&rondo_amx, threads, s, &in);
        compare_results("threads", &more, &one, 0);
        free_results(&more);
    }
    free_results(&want);
    free_results(&one);
    free(in.ih), free(in.hh), free(in.bih), free(in.bhh), free(in.x), free(in.h0), free(in.c0);
    free(in.dy), free(in.ids), free(in.peephole);
}

static void check_layers(void)
{
    for (int cell = 0; cell < CELLS; cell++)
        for (int dense = 0; dense < 2; dense++) {
            check_layer(&(struct layer_shape){cell, dense, 5, 32, 28, 64});
            for (int i = 0; i < 4; i++)
                check_layer(&(struct layer_shape){cell, dense, 1 + random_below(6),
                                                  1 + random_below(LARGEST),
                                                  1 + random_below(LARGEST),
                                                  1 + random_below(LARGEST)});
        }
}

struct head_shape {
    long N, H, V, rows; // of logits that are kept at once; 0: none
};

static struct results run_head(const struct kernels *k, int threads, const struct head_shape *s,
                               const float *x, const float *w, const int32_t *targets)
{
    long N = s->N, H = s->H, V = s->V;
    struct results r = {.count = 0};
    float *dx = result(&r, N * H), *dw = result(&r, V * H), *db = result(&r, V);
    float *loss = result(&r, 1);
    struct team *t = threads > 1 ? rondo_team_new(threads) : 0;
    struct head *o = rondo_head_new(k, threads, N, H, V, s->rows, 0);
    *loss = (float)rondo_head_run(k, t, o, N, x, w, w, targets, 1, 0, dx, dw, db);
    free(o);
    if (t)
        rondo_team_free(t);
    return r;
}

// An output layer, likewise.
static void check_head(long N, long H, long V, long rows)
{
    const struct head_shape s = {N, H, V, rows};
    float *x = randoms(N * H, 1), *w = randoms(V * H, 1);
    int32_t *targets = memory(N * sizeof *targets);
    for (long i = 0; i < N; i++)
        targets[i] = (int32_t)random_below(V);
    struct results want = run_head(&rondo_portable_bf16, 1, &s, x, w, targets);
    struct results one = run_head(&rondo_amx, 1, &s, x, w, targets);
    struct results two = run_head(&rondo_amx, 2, &s, x, w, targets);
    compare_results("output layer", &one, &want, 0.02);
    compare_results("output layer's threads", &two, &one, 0);
    free_results(&want), free_results(&one), free_results(&two);
    free(x), free(w), free(targets);
}

// General products, with each operand as it is and transposed. Of large ones it looks at about
// 20,000 elements.
static void check_gemm(long m, long n, long k, int trans_a, int trans_b)
{
    float *a = randoms(m * k, 1), *b = randoms(k * n, 1), *c = randoms(m * n, 1);
    float *sums = copy(c, m * n);
    struct space space = {0};
    struct team *team = rondo_team_new(2);
    if (!team || !rondo_gemm(&rondo_amx, team, &space, trans_a, trans_b, m, n, k, 1, a, b, 1,
                             sums))
        exit(2);
    const long most = 1 + m * n / 10000;
    for (long i = 0; i < m * n; i += 1 + random_below(most)) {
        double want = c[i];
        for (long p = 0; p < k; p++)
            want += rounded(a[trans_a ? p * m + i / n : i / n * k + p]) *
                    rounded(b[trans_b ? i % n * k + p : p * n + i % n]);
        compare_sums("gemm", i, sums[i], want, k);
    }
    rondo_space_free(&space);
    rondo_team_free(team);
    free(a), free(b), free(c), free(sums);
}

// Shapes of which every loop over parts has several: strips of tokens and chunks of rows; rows of
// a layer's gradient; rows, columns and depth of a general product.
static void check_large(void)
{
    check_head(70, 140, 600, 70);
    check_head(70, 140, 600, 33);
    check_head(700, 33, 300, 0);
    for (int transposed = 0; transposed < 4; transposed++)
        check_gemm(transposed % 3 ? 60 : 130, 2100, 600, transposed & 1, transposed >> 1);
    for (int cell = GRU; cell < CELLS; cell++)
        check_layer(&(struct layer_shape){cell, cell != GRU, 70, 23, 40, 37});
}

// What the processor, or the emulation, must refuse.

static const uint8_t shapes[64] __attribute__((aligned(64))) = {
    [0] = 1, [16] = 64, [18] = 64, [20] = 32, [48] = 16, [49] = 16, [50] = 16,
};

static void use_unconfigured(void) { __asm__ volatile("tilezero %%tmm0" : :); }

static void use_missing(void)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    __asm__ volatile("tilezero %%tmm5" : :);
}

static void use_released(void)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    __asm__ volatile("tilerelease" : :);
    __asm__ volatile("tilezero %%tmm0" : :);
}

static void multiply_misfits(void)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    __asm__ volatile("tdpbf16ps %%tmm1, %%tmm2, %%tmm0" : :);
}

static void configure_with(int at, uint8_t value)
{
    uint8_t changed[64] __attribute__((aligned(64)));
    memcpy(changed, shapes, sizeof changed);
    changed[at] = value;
    __asm__ volatile("ldtilecfg %0" : : "m"(changed));
}

static void configure_palette(void) { configure_with(0, 7); }
static void configure_reserved(void) { configure_with(9, 1); }
static void configure_large(void) { configure_with(48, 17); }
static void configure_half(void) { configure_with(51, 1); }

// In a process of its own, which it ends by a signal: what refuses a configuration is the one for
// bad addresses, of which the address sanitizer would make an exit.
static void check_refused(const char *what, void (*offend)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        fclose(stderr);
        signal(SIGSEGV, SIG_DFL);
        offend();
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) {
        printf("%s was not refused\n", what);
        wrong++;
    }
}

static void check_refusals(void)
{
    check_refused("a tile before any configuration", use_unconfigured);
    check_refused("a tile that is not configured", use_missing);
    check_refused("a tile after its release", use_released);
    check_refused("a product of tiles that do not fit", multiply_misfits);
    check_refused("an unknown palette", configure_palette);
    check_refused("a reserved byte", configure_reserved);
    check_refused("17 rows", configure_large);
    check_refused("rows without columns", configure_half);
}

int main(void)
{
    int native = rondo_kernels("amx", 1) != 0;
    if (!native && !rondo_kernels("avx512bf16", 1)) {
        printf("neither AMX nor AVX-512's instructions for bfloat16\n");
        return SKIPPED;
    }
    if (!native)
        emulate_amx();
    check_refusals();
    check_products();
    check_layers();
    check_head(40, 33, 50, 40);
    check_head(67, 64, 31, 67);
    check_head(1, 1, 1, 1);
    for (int transposed = 0; transposed < 4; transposed++)
        check_gemm(67, 45, 101, transposed & 1, transposed >> 1);
    check_gemm(128, 130, 65, 0, 1);
    check_large();
    printf("%s AMX: products, layers, output layers; %d wrong\n", native ? "native" : "emulated",
           wrong);
    return wrong > 0;
}
