//go:build cgo

// The kernels for whatever the compiler targets by itself: SSE2 on amd64, NEON on arm64.

#include <string.h>

#include "kernels.h"

#define VW 4
#define BF16 0
#define KERNELS rondo_portable
#define KERNELS_NAME "portable C"
#include "table.h"
