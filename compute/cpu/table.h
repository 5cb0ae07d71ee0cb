// Every kernel for one instruction set, and the table of them. The file that includes this has
// set VW, BF16, KERNELS, KERNELS_NAME and the target.

#include "simd.h"

#include "blocks.h"
#include "operand.h"
#include "product.h"

#include "cells.h"
#include "layer.h"

#include "head.h"

#include "elementwise.h"
#include "optimizer.h"

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .bf16 = BF16,
    .layer_forward = layer_forward,
    .layer_backward = layer_backward,
    .head_run = head_run,
    .add = add,
    .scale = scale,
    .clamp = clamp,
    .sum_squares = sum_squares,
    .dropout = dropout,
    .update = update,
    .function = function,
};
