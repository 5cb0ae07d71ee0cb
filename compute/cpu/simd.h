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

// a b + c, rounded once where the instruction set has that and twice where it has not. Nothing
// else is fused (ISO C, which the compiler is asked for with -std, forbids GCC to, and the pragma
// above Clang), so that what is written without it gives the same bits on every processor.
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

// larger and smaller give their second operand when either is NaN, as x86 has it.
#if VW == 16
INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vf square_root(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }

// 1/a for normal a: an estimate of 14 bits and one Newton step, where a division would hold up
// the divider.
INLINE vf reciprocal(vf a)
{
    vf y = (vf)_mm512_rcp14_ps((__m512)a);
    return fused(y, fused(-a, y, splat(1)), y);
}
#elif VW == 8
INLINE vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE vf square_root(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
INLINE vf reciprocal(vf a) { return splat(1) / a; }
#else
INLINE vf pick(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf larger(vf a, vf b) { return pick(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return pick(a < b, a, b); }
INLINE vf reciprocal(vf a) { return splat(1) / a; }
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

// e^r - 1 for |r| <= ln(2)/2, as r + r^2 q(r); q interpolates (e^r - 1 - r)/r^2 at the
// Chebyshev points of an interval 1% wider, degree 4: relative error at most 3e-8.
INLINE vf reduced_expm1(vf r)
{
    vf q = splat(0x1.6d1606p-10f);
    q = fused(q, r, splat(0x1.12106cp-7f));
    q = fused(q, r, splat(0x1.555516p-5f));
    q = fused(q, r, splat(0x1.5554d8p-3f));
    q = fused(q, r, splat(0x1p-1f));
    return fused(r * r, q, r);
}

// 2^n and r such that x = n ln(2) + r, for |x| <= 87.5. Adding 1.5*2^23 rounds to an integer and
// leaves it in the low bits.
INLINE vf power_of_two(vf x, vf *r)
{
    vf shifted = fused(x, splat(0x1.715476p+0f), splat(0x1.8p+23f));
    vf n = shifted - splat(0x1.8p+23f);
    vf rest = fused(n, splat(-0x1.62e4p-1f), x); // ln(2)'s upper bits
    *r = fused(n, splat(-0x1.7f7d1cp-20f), rest); // and the rest of it
    return (vf)(((vi)shifted + 127) << 23);
}

// e^x for x <= 0: relative error at most 1.2e-7 down to -87.3, and 0 below; NaN stays NaN.
INLINE vf exponential(vf x)
{
    vf r, two_n = power_of_two(limit(x, -87.3f, 0), &r);
    vf y = fused(two_n, reduced_expm1(r), two_n);
    return (vf)((vi)y & ~(x < splat(-87.3f)));
}

// 1/(1 + e^-x), its argument limited to 87 either way: relative error at most 1.5e-7.
INLINE vf sigmoid(vf x)
{
    vf r, two_n = power_of_two(limit(-x, -87, 87), &r);
    return reciprocal(fused(two_n, reduced_expm1(r), two_n) + splat(1));
}

// tanh(x) = e/(e + 2), e = e^2x - 1: relative error at most 2.5e-7, near zero too. Beyond 9.02 the
// nearest float is 1.
INLINE vf tangent(vf x)
{
    vf r, two_n = power_of_two(limit(x + x, -18.1f, 18.1f), &r);
    vf e = fused(two_n, reduced_expm1(r), two_n - splat(1));
    return e * reciprocal(e + splat(2));
}
