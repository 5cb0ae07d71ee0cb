// The types and functions that the C kernels and Go share: workspaces and tables of kernels.
//
// Letters as in package compute: T steps, B lanes, D input width, H hidden width, K gates,
// V tokens, N = T*B rows. Inside the kernels a matrix [rows, width] is kept "blocked", as
// [width/BLOCK][rows][BLOCK] with the last block padded by zeros, so that a tile of a product
// reads its rows, its weights and its sums from contiguous memory, and no product packs anything
// but the weights. U, X and Y are the numbers of blocks of H, D and V.
//
// Products multiply "operands": float, or bfloat16 in the kernels for bf16. They have three
// layouts, which operand.h defines and makes:
//
//	rows    a blocked matrix of operands
//	panel   weights for BLOCK columns of a product's result
//	pairs   BLOCK columns of a matrix, for products that sum over its rows
//
// For float operands, rows and pairs are the blocked matrix of floats itself, in the same memory.

#ifndef RONDO_KERNELS_H
#define RONDO_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "cells_gen.h"
#include "team.h"

#define BLOCK 32

// n / size, rounded up.
static inline long blocks_up(long n, long size) { return (n + size - 1) / size; }

// The most rows of a dense input that a layer multiplies by its weights at a time.
enum { INPUT_ROWS = 512 };

// The most products of the same rows in one call of products().
enum { PRODUCTS = 4 };

// The optimizers, in the order of compute.Optimizer.
enum { SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, RMSPROP, ADAGRAD };

// Blocks of columns over the steps of a segment, [blocks][stride][BLOCK]: row t*lanes + b is step t
// of lane b. A tensor with two steps keeps only the last two: step t is its step t % 2.
struct tensor {
    void *at; // float or operand
    long stride, steps, lanes;
};

// A recurrent layer's workspace. Every pointer points into one arena. With float operands, the
// tensors of operands are the tensors of floats.
struct layer {
    int cell, inference;
    int keep;     // all passes have the same weights
    int packed;   // keep, and the weights are packed
    int states;   // compute.Cell's: 2 if the cell has a c
    int before;   // whether the last gate's rows of W_hh multiply r h
    long T, B, D, H, N, K, U, X;
    long R;       // gates with rows in W_hh: K, or 0
    long P;       // vectors of peepholes or leaks
    float leak;   // of the cell LEAKY
    long G;       // gate tensors: K, and one more for GRU and MGU
    long sums;    // rows of dbias: G, and P for the gradients of the peepholes
    long M;       // rows that a weight's gradient sums over: N, padded for outers()
    long lanes;   // lanes in each row of dbias
    float *bias;  // [G*U][BLOCK]: first term of a step's sums
    float *peephole; // [P*U][BLOCK]
    float *period; // [U][BLOCK]: of the cell CLOCKWORK
    void *hidden; // panels [R*U][U*BLOCK][BLOCK]: y = h W_hh^T

    struct tensor gates;              // G*U blocks: sums, then gates
    struct tensor h, c, aux;          // U: h_0, then every h_t; c; r h
    struct tensor h_rows, h_pairs;    // h as operands
    struct tensor aux_rows, aux_pairs;

    void *hidden_back;          // panels [U][R*U*BLOCK][BLOCK]: y = d W_hh
    struct tensor d;            // G*U: gradient of the sums; float operands: overwrites gates
    struct tensor d_rows, d_pairs;
    float *dh;                  // [U][B][BLOCK]: gradient of h_t
    float *dc;                  // [U][B][BLOCK]: gradient of c_t
    float *dbias;               // [B/lanes, rounded up][sums*U][BLOCK]
    float *tile;                // [threads][tile_rows][BLOCK]
    long tile_rows;             // at least 2*B and INPUT_ROWS

    struct input *in; // made by the first pass, for ids or for dense rows
};

// A layer's workspace for its input, token ids or dense rows, in an arena of its own.
struct input {
    int ids;
    float *table;     // [K*U][rows_kept][BLOCK]: W_ih's columns as rows, bias added; their gradient
                      // during the backward pass
    long rows_kept;   // a row for every token of the vocabulary; compact: of the segment
    int compact;
    long tokens;      // rows in use; if compact:
    int32_t *token;   // [rows_kept]: the token of a row
    int32_t *slot_of; // [D]: a token's row + 1 while number_ids runs; zeros otherwise
    int32_t *numbers; // [N]: the row of every id
    const int32_t *slots; // [N]: numbers if compact, else the ids
    void *panels;     // [K*U][X*BLOCK][BLOCK]: y = x W_ih^T
    void *back;       // [X][K*U*BLOCK][BLOCK]: y = d W_ih
    struct tensor rows, pairs; // X blocks: the input as operands
};

// The parts of a layer's backward pass, in the order in which callers ask for them: the recurrence
// and the gradients of W_ih, W_hh, the biases and peepholes, and the input. One call may ask for
// several. W_hh's gradient has a part for each gate, BACK_HIDDEN_GATE << g; the gates of one call
// must be consecutive.
enum {
    BACK_RECURRENCE = 1,
    BACK_INPUT_WEIGHTS = 2,
    BACK_HIDDEN_GATE = 4,
    BACK_HIDDEN_WEIGHTS = 15 * BACK_HIDDEN_GATE, // of all gates, at most four
    BACK_BIASES = 64,
    BACK_INPUT = 128,
    BACK_ALL = 255,
};

// The arguments of a layer's pass, as compute.Recurrent documents them.
struct layer_call {
    int parts; // of a backward pass
    const float *ih, *hh, *bih, *bhh, *peephole;
    const int32_t *ids, *lengths; // lengths: of each lane, in steps; null: all steps
    const float *x, *h0, *c0;
    float *y, *h, *c;
    const float *dy, *dh, *dc;
    float *dih, *dhh, *dbih, *dbhh, *dpeephole, *dx, *dh0, *dc0;
};

// An output layer's workspace. Tokens go through it by strips: the weights of so many blocks are
// packed, all rows of a chunk multiplied by them, and the next strip takes their place. Either the
// logits of a chunk are kept between the two passes over its strips, or the second makes them
// again, and all rows are one chunk.
struct head {
    int threads;
    int kept;           // the logits of a chunk are
    long N, H, V, U, Y;
    long rows;          // of a chunk
    long S;             // rows from one block to the next
    long strip;         // blocks of tokens at a time
    float *bias;        // [2][strip][BLOCK], very negative where there is no token
    void *weights;      // panels [2][strip][U*BLOCK][BLOCK]: y = x w^T; two, used in turn
    void *weights_back; // panels [U][strip*BLOCK][BLOCK]: y = d w
    void *x_rows, *x_pairs; // [U][S][BLOCK]
    void *d_rows, *d_pairs; // [strip][S][BLOCK]: the gradient of a strip's logits
    float *logits;      // kept: [Y][S][BLOCK]; else [threads][strip][HEAD_TILE][BLOCK]
    float *dx;          // [U][S][BLOCK]; of a single strip [threads][PRODUCTS][HEAD_TILE][BLOCK]
    float *dbias;       // [S/HEAD_GROUP][strip][BLOCK]
    float *tops;        // [strips][S]: largest logits of a row in each strip, if kept
    float *top;         // [S]: of the strips so far, or all
    float *sum;         // [S]: of e^(logit-top)
    float *target_logit; // [S]
    float *total;       // [S]: the sum of a row's logits of the strips so far, with smoothing
    double *losses;     // [S]
    double loss;        // of a call: the sum in order of rows, whatever the number of threads
};

// Rows of an output layer. HEAD_GROUP: rows in one row of dbias; a thread's share is a multiple.
// HEAD_TILE: rows that go through a strip at a time. HEAD_PAIRS: pairs have a multiple of these.
enum { HEAD_GROUP = 16, HEAD_TILE = 128, HEAD_PAIRS = 32 };

// The arguments of compute.Output's methods; dx is null when no gradient is wanted.
struct head_call {
    long n; // rows, at most the head's N
    const float *x, *w, *b;
    const int32_t *targets;
    float scale, smoothing; // of the targets: 0 if no gradient is wanted
    float *dx, *dw, *db;
};

// compute.Update, with the factors of Adam's bias correction.
struct update {
    int optimizer;
    float lr, momentum, beta1, beta2, rho, epsilon, decay, size, root;
};

// The functions of product.h and operand.h, for tests and benchmarks.
struct products {
    void (*products)(long n, long rows, float *c, long c_gap, const void *a, long a_block,
                     long blocks, const void *panels, long gap);
    void (*outers)(float *c, long ld, long rows, long columns, const void *a, const void *b,
                   long b_block, long depth, int add);
    void (*put_rows)(long rows, void *dst, const float *src, long ld, long n);
    void (*put_pairs)(long rows, void *dst, const float *src, long ld, long n);
    void (*pack_columns)(void *panel, const float *w, long n, long cols, long ld, long padded);
    void (*pack_rows)(void *panel, const float *w, long rows, long ld, long n, long padded);
};

// compute.Device.Gemm's arguments and its workspace.
struct gemm {
    const struct kernels *kernels;
    int trans_a, trans_b;
    long m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    void *panels; // [GEMM_COLUMNS/BLOCK][GEMM_DEPTH][BLOCK] of op(b), or less
    void *left;   // [threads][GEMM_DEPTH/BLOCK][GEMM_ROWS][BLOCK] of op(a)
    float *tile;  // [threads][GEMM_ROWS][BLOCK] of the product
};

// The blocks of a general product. Rows by depth fit half of a second-level cache of 512 KiB, and
// multiplying them by a panel takes longer than fetching the panel from the third level.
enum { GEMM_ROWS = 128, GEMM_DEPTH = 512, GEMM_COLUMNS = 2048 };

// compute.Attention, and the gradients of its backward pass.
struct attention {
    long T, S, B, H, W;
    const float *q, *k, *v;
    float *weights, *y;
    const float *dy;
    float *dq, *dk, *dv;
    const int32_t *lengths;
};

// compute.LayerNorm, and the gradients of its backward pass.
struct layer_norm {
    long rows, width;
    const float *x, *weight, *bias;
    float *stats, *y;
    const float *dy;
    float *dx, *dw, *db;
};

// The kernels of one instruction set and precision. Those that take a member are called by every
// thread of a team at once; the others do what they are given on the calling thread.
struct kernels {
    const char *name;
    int bf16; // operands are bf16
    void (*layer_forward)(const struct member *m, struct layer *l, const struct layer_call *c);
    void (*layer_backward)(const struct member *m, struct layer *l, const struct layer_call *c);
    void (*head_run)(const struct member *m, struct head *o, const struct head_call *c);
    void (*gemm)(const struct member *m, const struct gemm *g);
    void (*add)(long n, float *y, const float *x);
    void (*scale)(long n, float *x, float a);
    void (*clamp)(long n, float *x, float limit);
    double (*sum_squares)(long n, const float *x);
    void (*dropout)(long first, long end, long lanes, long h, float *y, const float *x, float p,
                    const uint64_t *keys); // rows first to end-1
    void (*largest)(long n, float *y, const float *x);
    void (*largest_backward)(long steps, long row, long n, float *dx, const float *dy,
                             const float *x, const float *y);
    void (*tanh_backward)(long n, float *dy, const float *y);
    void (*attend)(const struct attention *a, long b); // of lane b
    void (*attend_backward)(const struct attention *a, long b);
    // Of rows first to end-1; layer_norm_columns: dw and db of columns first to end-1.
    void (*layer_norm)(const struct layer_norm *n, long first, long end);
    void (*layer_norm_rows)(const struct layer_norm *n, long first, long end);
    void (*layer_norm_columns)(const struct layer_norm *n, long first, long end);
    void (*update)(const struct update *u, long n, float *p, const float *g, float *s1,
                   float *s2);
    // f is 0 (exp), 1 (sigmoid) or 2 (tanh).
    void (*function)(int f, long n, float *y, const float *x);
    // Runs the product's instruction on registers only, and returns the number of floating-point
    // operations. Divided by the time, that is the thread's peak.
    double (*burn)(long rounds);
    struct products products;
};

// The kernels for operands of float (bf16 0) or bfloat16 (1) and an instruction set: "amx",
// "avx512bf16", "avx512", "avx2", "portable", or "" for the best that this processor has. Null if
// it does not have that one. The first two differ from "avx512" for bfloat16 only.
const struct kernels *rondo_kernels(const char *isa, int bf16);
const char *rondo_name(const struct kernels *k);
double rondo_burn(const struct kernels *k, long rounds);

// Uninitialised memory on a 64-byte boundary; null if there is none left. It occupies
// rondo_whole(bytes): large sizes are rounded up to whole pages.
void *rondo_allocate(size_t bytes);
size_t rondo_whole(size_t bytes);

// Make workspaces; null if there is no memory left. A head is freed with free(). If `only` is not
// null, they make nothing and add the workspace's bytes to *only. A layer's bytes include those of
// its input: token ids (ids 1), dense rows (0), or neither (-1). Only k->bf16 is read then.
struct layer *rondo_layer_new(const struct kernels *k, int threads, int cell, long T, long B,
                              long D, long H, float leak, const float *periods, int inference,
                              int ids, size_t *only);
void rondo_layer_free(struct layer *l);
struct head *rondo_head_new(const struct kernels *k, int threads, long N, long H, long V,
                            long rows, size_t *only);


// Declares that all further passes have the same weights.
void rondo_layer_keep(struct layer *l);

// Whether W_hh's gradient, computed gate by gate, divides evenly among a team's threads.
int rondo_layer_gates_even(const struct team *t, const struct layer *l);

// Run a table's kernels on a team, for Go. The forward pass returns 0 if there is no memory left
// for its input, else 1.
int rondo_layer_forward(const struct kernels *k, struct team *t, struct layer *l,
                        const float *ih, const float *hh, const float *bih, const float *bhh,
                        const float *peephole, const int32_t *ids, const float *x,
                        const int32_t *lengths, const float *h0, const float *c0, float *y,
                        float *h, float *c);
void rondo_layer_backward(const struct kernels *k, struct team *t, struct layer *l, int parts,
                          const float *ih, const float *hh, const int32_t *ids,
                          const int32_t *lengths, const float *dy, const float *dh,
                          const float *dc, float *dih, float *dhh, float *dbih, float *dbhh,
                          float *dpeephole, float *dx, float *dh0, float *dc0);
double rondo_head_run(const struct kernels *k, struct team *t, struct head *o, long n,
                      const float *x, const float *w, const float *b, const int32_t *targets,
                      float scale, float smoothing, float *dx, float *dw, float *db);

#endif
