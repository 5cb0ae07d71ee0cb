//go:build cgo && amd64

// The kernels for bf16 on AVX2. Nothing in here runs on a processor without it: rondo_kernels
// checks.

#include <immintrin.h>
#include <string.h>

#include "kernels.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define VW 8
#define BF16 1
#define KERNELS rondo_avx2_bf16
#define KERNELS_NAME "AVX2; bf16 emulated, slower than fp32"
#include "table.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
