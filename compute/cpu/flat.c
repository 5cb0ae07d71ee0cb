//go:build cgo

// Operations over flat vectors, from Go.

#include "kernels.h"

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
