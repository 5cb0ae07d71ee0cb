//go:build cgo

// The kernels for bf16 on whatever the compiler targets by itself.

#include <string.h>

#include "kernels.h"

#define VW 4
#define BF16 1
#define KERNELS rondo_portable_bf16
#define KERNELS_NAME "portable C; bf16 emulated, slower than fp32"
#include "table.h"
