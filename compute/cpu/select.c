//go:build cgo

// Which kernels run.

#include <string.h>

#include "kernels.h"

extern const struct kernels rondo_portable;
#ifdef __x86_64__
extern const struct kernels rondo_avx2, rondo_avx512;
#endif

const struct kernels *rondo_kernels(const char *isa, int bf16)
{
    if (bf16)
        return 0;
    int any = !*isa;
#ifdef __x86_64__
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (any || !strcmp(isa, "avx512")))
        return &rondo_avx512;
    if (avx2 && (any || !strcmp(isa, "avx2")))
        return &rondo_avx2;
#endif
    return any || !strcmp(isa, "portable") ? &rondo_portable : 0;
}

const char *rondo_name(const struct kernels *k) { return k->name; }
