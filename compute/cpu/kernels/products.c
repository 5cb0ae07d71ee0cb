//go:build cgo

#include "products.h"

void rondo_product(const struct kernels *k, long rows, float *c, const void *a, long a_block,
                   long blocks, const void *panel)
{
    k->products.products(1, rows, c, 0, a, a_block, blocks, panel, 0);
}

void rondo_outers(const struct kernels *k, float *c, long ld, long rows, long columns,
                  const void *a, const void *b, long b_block, long depth, int add)
{
    k->products.outers(c, ld, rows, columns, a, b, b_block, depth, add);
}

void rondo_put_rows(const struct kernels *k, long rows, void *dst, const float *src, long ld,
                    long n)
{
    k->products.put_rows(rows, dst, src, ld, n);
}

void rondo_put_pairs(const struct kernels *k, long rows, void *dst, const float *src, long ld,
                     long n)
{
    k->products.put_pairs(rows, dst, src, ld, n);
}

void rondo_pack_columns(const struct kernels *k, void *panel, const float *w, long n, long cols,
                        long ld, long padded)
{
    k->products.pack_columns(panel, w, n, cols, ld, padded);
}

void rondo_pack_rows(const struct kernels *k, void *panel, const float *w, long rows, long ld,
                     long n, long padded)
{
    k->products.pack_rows(panel, w, rows, ld, n, padded);
}
