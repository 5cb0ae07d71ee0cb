// The products of two units of bfloat16 operands, added to a float32 sum, elementwise: by the
// processor's own instruction, or by two fused multiply-adds in the order in which it does them.

#if NATIVE

INLINE vf dot(vf sum, vu x, vu y)
{
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
}

#else

INLINE vf later(vu x) { return (vf)(x & 0xffff0000u); }
INLINE vf earlier(vu x) { return (vf)(x << 16); }

INLINE vf dot(vf sum, vu x, vu y)
{
    return fused(earlier(x), earlier(y), fused(later(x), later(y), sum));
}

#endif
