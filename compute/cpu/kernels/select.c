//go:build cgo

// The choice of the kernels.

#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.h"

extern const struct kernels rondo_portable, rondo_portable_bf16;
#ifdef __x86_64__
extern const struct kernels rondo_avx2, rondo_avx2_bf16, rondo_avx512, rondo_avx512_bf16,
    rondo_avx512bf16, rondo_amx;
#endif

// The instruction sets, each a superset of the one before, and their kernels by precision.
static const struct {
    const char *name;
    const struct kernels *kernels[2];
} sets[] = {
    {"portable", {&rondo_portable, &rondo_portable_bf16}},
#ifdef __x86_64__
    {"avx2", {&rondo_avx2, &rondo_avx2_bf16}},
    {"avx512", {&rondo_avx512, &rondo_avx512_bf16}},
    {"avx512bf16", {&rondo_avx512, &rondo_avx512bf16}},
    {"amx", {&rondo_avx512, &rondo_amx}},
#endif
};

#ifdef __x86_64__

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static int has_avx512bf16(void)
{
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

// The processor has AMX, of the tiles that product_amx.h is made for, and the operating system
// gives this process their state. It does so when asked, for all threads; asking again is harmless.
//
// Go's runtime need not know. The tiles live within one call of C, which releases them, so that no
// goroutine ever has any; a signal during it saves and restores them. From the request on, every
// signal's frame has room for them, about 11 KiB in all, where Go's stacks for signals have 32. The
// kernel looks at the alternate stacks of all threads when asked and refuses if one is too small
// (ENOSPC): then there is no AMX here.
static int has_amx(void)
{
    enum { TILE_BF16 = 1 << 22 | 1 << 24, OSXSAVE = 1 << 27, TILE_STATE = 3 << 17 };
    enum { TILE_DATA = 18, REQUEST = 0x1023 }; // ARCH_REQ_XCOMP_PERM
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILE_BF16) != TILE_BF16)
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & TILE_STATE) != TILE_STATE)
        return 0;
    if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) || (b & 0xffff) < 64 || b >> 16 < 8 ||
        (c & 0xffff) < 16)
        return 0;
#if defined(__linux__) && defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return 0;
#endif
}

#endif

// Whether this processor can run sets[i], if it can run the sets before.
static int has(int i)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    int (*const asks[])(void) = {0, has_avx2, has_avx512, has_avx512bf16, has_amx};
    return i == 0 || asks[i]();
#else
    return i == 0;
#endif
}

const struct kernels *rondo_kernels(const char *isa, int bf16)
{
    const struct kernels *best = 0;
    for (int i = 0; i < (int)(sizeof sets / sizeof *sets); i++) {
        // A set without kernels of its own is for who names it: with AMX's, every signal's frame
        // grows.
        int known = !*isa && best == sets[i].kernels[bf16];
        if (known || !has(i))
            break;
        best = sets[i].kernels[bf16];
        if (!strcmp(isa, sets[i].name))
            return best;
    }
    return *isa ? 0 : best;
}

const char *rondo_name(const struct kernels *k) { return k->name; }

double rondo_burn(const struct kernels *k, long rounds) { return k->burn(rounds); }
