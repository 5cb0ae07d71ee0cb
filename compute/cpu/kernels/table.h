// Every kernel for one instruction set, and their table. The including file defines VW, BF16,
// KERNELS, KERNELS_NAME and the target; also NATIVE if the processor has instructions for bf16, and
// TILES if they work on tiles.

#ifndef NATIVE
#define NATIVE 0
#endif
#ifndef TILES
#define TILES 0
#endif

#include "simd.h"

#include "blocks.h"
#include "operand.h"
#include "product.h"
#include "burn.h"

#include "field.h"
#include "cells.h"
#include "input.h"
#include "layer.h"

#include "head.h"

#include "gemm.h"

#include "elementwise.h"
#include "attention.h"
#include "norm.h"
#include "optimizer.h"

// A kernel with products in it, for the table.
#define READIED(kernel, parameters, arguments) \
    static void readied_##kernel parameters    \
    {                                          \
        begin_products();                      \
        kernel arguments;                      \
        end_products();                        \
    }

READIED(layer_forward, (const struct member *m, struct layer *l, const struct layer_call *c),
        (m, l, c))
READIED(layer_backward, (const struct member *m, struct layer *l, const struct layer_call *c),
        (m, l, c))
READIED(head_run, (const struct member *m, struct head *o, const struct head_call *c), (m, o, c))
READIED(gemm, (const struct member *m, const struct gemm *g), (m, g))

// The products by themselves.

READIED(products, (long n, long rows, float *c, long c_gap, const void *a, long a_block,
                   long blocks, const void *panels, long gap),
        (n, rows, c, c_gap, a, a_block, blocks, panels, gap))
READIED(outers, (float *c, long ld, long rows, long columns, const void *a, const void *b,
                 long b_block, long depth, int add),
        (c, ld, rows, columns, a, b, b_block, depth, add))

static void put_rows_alone(long rows, void *dst, const float *src, long ld, long n)
{
    put_rows(rows, dst, src, ld, n);
}

static void put_pairs_alone(long rows, void *dst, const float *src, long ld, long n)
{
    put_pairs(rows, dst, src, ld, n);
}

static void pack_columns_alone(void *panel, const float *w, long n, long cols, long ld,
                               long padded)
{
    pack_columns(panel, w, n, cols, ld, padded);
}

static void pack_rows_alone(void *panel, const float *w, long rows, long ld, long n, long padded)
{
    pack_rows(panel, w, rows, ld, n, padded);
}

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .bf16 = BF16,
    .layer_forward = readied_layer_forward,
    .layer_backward = readied_layer_backward,
    .head_run = readied_head_run,
    .gemm = readied_gemm,
    .add = add,
    .scale = scale,
    .clamp = clamp,
    .sum_squares = sum_squares,
    .dropout = dropout,
    .largest = largest,
    .largest_backward = largest_backward,
    .tanh_backward = tanh_backward,
    .attend = attend,
    .attend_backward = attend_backward,
    .layer_norm = layer_norm,
    .layer_norm_rows = layer_norm_rows,
    .layer_norm_columns = layer_norm_columns,
    .update = update,
    .function = function,
    .burn = burn,
    .products = {
        .products = readied_products,
        .outers = readied_outers,
        .put_rows = put_rows_alone,
        .put_pairs = put_pairs_alone,
        .pack_columns = pack_columns_alone,
        .pack_rows = pack_rows_alone,
    },
};
