//go:build cgo && amd64

// The kernels for AVX-512. Nothing in here runs on a processor without it: rondo_kernels checks.

#include <immintrin.h>
#include <string.h>

#include "kernels.h"

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#endif

#define VW 16
#define BF16 0
#define KERNELS rondo_avx512
#define KERNELS_NAME "AVX-512"
#include "table.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
