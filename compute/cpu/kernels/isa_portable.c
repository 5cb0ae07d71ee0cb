//go:build cgo

// The kernels for whatever the compiler targets by itself: SSE2 on amd64, NEON on arm64.

#include <string.h>

#include "kernels.h"

#define VW 4
#define BF16 0
#define KERNELS rondo_portable
#ifdef __aarch64__
#define KERNELS_NAME "NEON"
#else
#define KERNELS_NAME "portable C"
#endif
#include "table.h"
