// What the C kernels share with each other and with Go: the workspaces and the table of kernels.
//
// Letters as in package compute: T steps, B lanes, D input width, H hidden width, K gates,
// V tokens, N = T*B rows. Inside the kernels a matrix [rows, width] is kept "blocked", as
// [width/BLOCK][rows][BLOCK] with the last block padded by zeros, so that a tile of a product
// reads its rows, its weights and its sums from contiguous memory, and no product packs anything
// but the weights. U and X are the numbers of blocks of H and D.

#ifndef RONDO_KERNELS_H
#define RONDO_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define BLOCK 32

// The cells, in the order of compute.Cell.
enum { RNN_TANH, RNN_RELU, GRU, GRU_BEFORE, LSTM };

// The optimizers, in the order of compute.Optimizer.
enum { SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, RMSPROP, ADAGRAD };

// A recurrent layer's workspace. Every pointer is into one arena.
struct layer {
    int cell, inference;
    long T, B, D, H, N, K, U, X;
    long S;        // rows from one block to the next, at least B+N
    long G;        // gate tensors kept: K, and one more for GRU
    float *bias;   // [G*U][BLOCK]: what the sums of a step start from
    float *input;  // [K*U][D or X*BLOCK][BLOCK]: W_ih's columns as rows, bias added for ids;
                   // for ids it holds their gradient during the backward pass
    float *hidden; // [K*U][U*BLOCK][BLOCK]: W_hh's columns as rows
    float *x;      // [X][S][BLOCK]: dense input
    float *gates;  // [G*U][S][BLOCK]: sums, then gates, then the gradient of the sums
    float *h;      // [U][S][BLOCK]: h_0, then every h_t
    float *c;      // the same of c (LSTM)
    float *aux;    // [U][S][BLOCK]: r h (GRU_BEFORE)

    float *hidden_back; // [U][K*U*BLOCK][BLOCK]: W_hh's rows
    float *input_back;  // [X][K*U*BLOCK][BLOCK]: W_ih's rows
    float *dh;          // [U][B][BLOCK]: gradient of h_t
    float *dc;          // [U][B][BLOCK]: gradient of c_t
    float *dbias;       // [G*U][BLOCK]
    float *tile;        // [N][BLOCK]
};

// An output layer's workspace.
struct head {
    long N, H, V, U, Y; // Y: blocks of V
    long rows;           // of logits at once
    long S;              // rows from one block to the next, at least rows
    float *bias;         // [Y][BLOCK], very negative where there is no token
    float *weights;      // [Y][U*BLOCK][BLOCK]: w's columns as rows
    float *weights_back; // [U][Y*BLOCK][BLOCK]: w's rows
    float *x;            // [U][S][BLOCK]
    float *logits;       // [Y][S][BLOCK], then their gradient
    float *tile;         // [rows][BLOCK]
};

// One update, as compute.Update, with Adam's bias correction worked out.
struct update {
    int optimizer;
    float lr, momentum, beta1, beta2, rho, epsilon, decay, size, root;
};

// The kernels of one instruction set.
struct kernels {
    const char *name;
    void (*layer_forward)(struct layer *l, const float *ih, const float *hh, const float *bih,
                          const float *bhh, const int32_t *ids, const float *x, const float *h0,
                          const float *c0, float *y, float *h, float *c);
    void (*layer_backward)(struct layer *l, const float *ih, const float *hh,
                           const int32_t *ids, const float *dy, const float *dh,
                           const float *dc, float *dih, float *dhh, float *dbih, float *dbhh,
                           float *dx, float *dh0, float *dc0);
    double (*head_run)(struct head *o, const float *x, const float *w, const float *b,
                       const int32_t *targets, float scale, float *dx, float *dw, float *db);
    void (*add)(long n, float *y, const float *x);
    void (*scale)(long n, float *x, float a);
    void (*clamp)(long n, float *x, float limit);
    double (*sum_squares)(long n, const float *x);
    void (*dropout)(long rows, long lanes, long h, float *y, const float *x, float p,
                    const uint64_t *keys);
    void (*update)(const struct update *u, long n, float *p, const float *g, float *s1,
                   float *s2);
    // For tests: f is 0 (exp), 1 (sigmoid) or 2 (tanh).
    void (*function)(int f, long n, float *y, const float *x);
};

// The kernels that this processor can run, of at most the instruction set named ("avx512",
// "avx2", "portable", or "" for the best); null if it cannot run that one.
const struct kernels *rondo_kernels(const char *isa);

// Memory on a 64-byte boundary, its contents unknown; null when there is none.
void *rondo_allocate(size_t bytes);

// Workspaces; null when there is no memory. Each is freed with free().
struct layer *rondo_layer_new(int cell, long T, long B, long D, long H, int inference);
struct head *rondo_head_new(long N, long H, long V, long rows);

// Calls through the table, for Go.
void rondo_layer_forward(const struct kernels *k, struct layer *l, const float *ih,
                         const float *hh, const float *bih, const float *bhh,
                         const int32_t *ids, const float *x, const float *h0, const float *c0,
                         float *y, float *h, float *c);
void rondo_layer_backward(const struct kernels *k, struct layer *l, const float *ih,
                          const float *hh, const int32_t *ids, const float *dy, const float *dh,
                          const float *dc, float *dih, float *dhh, float *dbih, float *dbhh,
                          float *dx, float *dh0, float *dc0);
double rondo_head_run(const struct kernels *k, struct head *o, const float *x, const float *w,
                      const float *b, const int32_t *targets, float scale, float *dx, float *dw,
                      float *db);
void rondo_add(const struct kernels *k, long n, float *y, const float *x);
void rondo_add_bias(const struct kernels *k, long rows, long n, float *x, const float *b);
void rondo_embed_backward(const struct kernels *k, long rows, long n, float *dtable,
                          const float *dy, const int32_t *ids);
void rondo_scale(const struct kernels *k, long n, float *x, float a);
void rondo_clamp(const struct kernels *k, long n, float *x, float limit);
double rondo_sum_squares(const struct kernels *k, long n, const float *x);
void rondo_dropout(const struct kernels *k, long rows, long lanes, long h, float *y,
                   const float *x, float p, const uint64_t *keys);
void rondo_update(const struct kernels *k, int optimizer, float lr, float momentum, float beta1,
                  float beta2, float rho, float epsilon, float decay, float size, float root,
                  long n, float *p, const float *g, float *s1, float *s2);
void rondo_function(const struct kernels *k, int f, long n, float *y, const float *x);
const char *rondo_name(const struct kernels *k);

#endif
