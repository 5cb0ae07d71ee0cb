//go:build cgo && amd64

// The kernels for bf16 on AMX. Nothing in here runs on a processor without it, or before the
// operating system has given the process its state: rondo_kernels checks and asks.

#include <immintrin.h>
#include <string.h>

#include "kernels.h"

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target( \
        "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC target( \
    "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")
#endif

#define VW 16
#define BF16 1
#define NATIVE 1
#define TILES 1
#define KERNELS rondo_amx
#define KERNELS_NAME "AMX bf16"
#include "table.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
