// Operations over flat vectors, for Go, on a team (null: the caller alone). compute.Device
// documents them. Their results do not depend on the number of threads and, except for gemm, attend
// and layer_norm, not on the instruction set.

#ifndef RONDO_FLAT_H
#define RONDO_FLAT_H

#include "kernels.h"

void rondo_add(const struct kernels *k, struct team *t, long n, float *y, const float *x);
void rondo_scale(const struct kernels *k, struct team *t, long n, float *x, float a);
void rondo_clamp(const struct kernels *k, struct team *t, long n, float *x, float limit);
double rondo_sum_squares(const struct kernels *k, struct team *t, long n, const float *x);
void rondo_update(const struct kernels *k, struct team *t, struct update u, long n, float *p,
                  const float *g, float *s1, float *s2);

// x: [rows, n], b: [n].
void rondo_add_bias(const struct kernels *k, struct team *t, long rows, long n, float *x,
                    const float *b);

// y: [rows, n], of table: [.., n].
void rondo_embed(struct team *t, long rows, long n, float *y, const float *table,
                 const int32_t *ids);
void rondo_embed_backward(const struct kernels *k, struct team *t, long rows, long n,
                          float *dtable, const float *dy, const int32_t *ids);

// x, y: [rows, n], row r being of lane r % lanes.
void rondo_dropout(const struct kernels *k, struct team *t, long rows, long lanes, long n,
                   float *y, const float *x, float p, const uint64_t *keys);

// dst, src: the first column, in rows so many elements apart. With null ids, the rows in order.
void rondo_copy_rows(const struct kernels *k, struct team *t, long rows, long n, float *dst,
                     long dst_row, const float *src, long src_row, const int32_t *ids, int add);

// x, dx: [steps, lanes, n], y, dy: [lanes, n].
void rondo_pool(const struct kernels *k, struct team *t, int pooling, long lanes, long n,
                float *y, const float *x, const int32_t *lengths);
void rondo_pool_backward(const struct kernels *k, struct team *t, int pooling, long steps,
                         long lanes, long n, float *dx, const float *dy, const float *x,
                         const float *y, const int32_t *lengths);

// x = tanh(x); with y, the result of a tanh, x = x (1 - y y).
void rondo_tanh(const struct kernels *k, struct team *t, long n, float *x, const float *y);

// All lanes of an attention: dy is null in the forward pass.
void rondo_attend(const struct kernels *k, struct team *t, struct attention a,
                  const int32_t *lengths);

// A layer normalisation's forward pass, or with dy its backward pass.
void rondo_layer_norm(const struct kernels *k, struct team *t, struct layer_norm n);

// The workspace of general products. It grows to the largest so far.
struct space {
    void *memory;
    size_t bytes;
};

// The bytes of workspace for a product with n columns and that depth.
size_t rondo_gemm_bytes(int bf16, long threads, long n, long depth);

// compute.Device.Gemm. Returns 0 if there is no memory.
int rondo_gemm(const struct kernels *k, struct team *t, struct space *s, int trans_a, int trans_b,
               long m, long n, long depth, float alpha, const float *a, const float *b,
               float beta, float *c);
void rondo_space_free(struct space *s);

// For tests.
void rondo_function(const struct kernels *k, int f, long n, float *y, const float *x);

#endif
