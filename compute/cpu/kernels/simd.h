// Vectors of VW floats in terms of the compiler's vector types, and the few operations that need
// an instruction of their own. Included once per instruction set, after its target is set.

#include <math.h>
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef float vfu __attribute__((vector_size(VW * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif

INLINE vf load(const float *p) { return *(const vfu *)p; }
INLINE void store(float *p, vf v) { *(vfu *)p = v; }
INLINE vf splat(float x) { return x - (vf){0}; }

// a b + c, rounded once if the instruction set has an instruction for it, else twice. Nothing else
// is fused: -std=c11 forbids it to GCC, and the pragma above to Clang. Code without fused() gives
// the same bits on every processor.
INLINE vf fused(vf a, vf b, vf c)
{
#if VW == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VW == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE vf pick(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }

// larger and smaller give their second operand when either is NaN, as x86 has it.
#if VW == 16
INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vf square_root(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }

// 1/a and a/b for normal a and b: an estimate of 14 bits and a Newton step, where a division would
// hold up the divider.
INLINE vf reciprocal(vf a)
{
    vf y = (vf)_mm512_rcp14_ps((__m512)a);
    return fused(y, fused(-a, y, splat(1)), y);
}

INLINE vf quotient(vf a, vf b)
{
    vf y = (vf)_mm512_rcp14_ps((__m512)b), q = a * y;
    return fused(fused(-b, q, a), y, q);
}
#elif VW == 8
INLINE vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vf square_root(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
INLINE vf reciprocal(vf a) { return splat(1) / a; }
INLINE vf quotient(vf a, vf b) { return a / b; }
#else
INLINE vf larger(vf a, vf b) { return pick(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return pick(a < b, a, b); }
INLINE vf reciprocal(vf a) { return splat(1) / a; }
INLINE vf quotient(vf a, vf b) { return a / b; }
INLINE vf square_root(vf a)
{
    for (int i = 0; i < VW; i++)
        a[i] = sqrtf(a[i]);
    return a;
}
#endif

INLINE vf limit(vf x, float low, float high)
{
    return smaller(splat(high), larger(splat(low), x)); // NaN stays NaN
}

// The sum, or the largest, of a vector's elements, by halves.
INLINE float horizontal_sum(vf v)
{
    float x[VW];
    store(x, v);
    for (int half = VW / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] += x[i + half];
    return x[0];
}

INLINE float horizontal_largest(vf v)
{
    float x[VW];
    store(x, v);
    for (int half = VW / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

// 2^y, as 2^n p(t): n is the integer nearest to y, t the rest, and p a minimax polynomial for
// |t| <= 1/2 with a relative error of 9.2e-8. y is limited to 126, and without AVX-512 also to
// -126. NaN stays NaN.
INLINE vf power_of_two(vf y)
{
#if VW == 16
    y = smaller(splat(126), y);
    vf t = (vf)_mm512_reduce_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    // Adding 1.5*2^23 rounds to an integer and leaves it, plus 127, in the low bits.
    const vf bias = splat(0x1.8p+23f + 127);
    y = limit(y, -126, 126);
    vf shifted = y + bias, t = y - (shifted - bias);
#endif
    vf p = splat(0x1.5bba14p-10f);
    p = fused(p, t, splat(0x1.3cea88p-7f));
    p = fused(p, t, splat(0x1.c6b752p-5f));
    p = fused(p, t, splat(0x1.ebf9bcp-3f));
    p = fused(p, t, splat(0x1.62e42ap-1f));
    p = fused(p, t, splat(1));
#if VW == 16
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)(y - t));
#else
    return (vf)((vi)shifted << 23) * p;
#endif
}

// e^x for x <= 0: relative error at most 1.5e-7 (1 + |x|) down to -87.3, and 0 below; NaN stays
// NaN. The term 1.5e-7 |x| comes from rounding x; large arguments have small results.
INLINE vf exponential(vf x)
{
    vf y = power_of_two(x * splat(0x1.715476p+0f));
    return (vf)((vi)y & ~(x < splat(-87.3f)));
}

// 1/(1 + e^-x): error at most 1e-7, and relative error at most 1.5e-7 (1 + |x|) down to -87.
INLINE vf sigmoid(vf x)
{
    return reciprocal(power_of_two(x * splat(-0x1.715476p+0f)) + splat(1));
}

// tanh(x) as x p(x^2)/q(x^2), minimax for |x| <= 8, and never beyond 1: relative error at most
// 3.5e-7, near zero too.
INLINE vf tangent(vf x)
{
    x = limit(x, -8, 8);
    vf u = x * x, p = splat(0x1.05a83p-26f), q = splat(0x1.c98bcp-21f);
    p = fused(p, u, splat(0x1.6f54fp-16f));
    p = fused(p, u, splat(0x1.d422fcp-9f));
    p = fused(p, u, splat(0x1.1357e6p-3f));
    p = fused(p, u, splat(1));
    q = fused(q, u, splat(0x1.65b338p-12f));
    q = fused(q, u, splat(0x1.acada6p-6f));
    q = fused(q, u, splat(0x1.df0144p-2f));
    q = fused(q, u, splat(1));
    return quotient(p * x, q);
}
