// Products by themselves, as operand.h and product.h have them, for tests and benchmarks from Go.

#ifndef RONDO_PRODUCTS_H
#define RONDO_PRODUCTS_H

#include "kernels.h"

void rondo_product(const struct kernels *k, long rows, float *c, const void *a, long a_block,
                   long blocks, const void *panel);
void rondo_outers(const struct kernels *k, float *c, long ld, long rows, long columns,
                  const void *a, const void *b, long b_block, long depth, int add);
void rondo_put_rows(const struct kernels *k, long rows, void *dst, const float *src, long ld,
                    long n);
void rondo_put_pairs(const struct kernels *k, long rows, void *dst, const float *src, long ld,
                     long n);
void rondo_pack_columns(const struct kernels *k, void *panel, const float *w, long n, long cols,
                        long ld, long padded);
void rondo_pack_rows(const struct kernels *k, void *panel, const float *w, long rows, long ld,
                     long n, long padded);

#endif
