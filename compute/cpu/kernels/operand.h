// Operands of products: their type, their layouts, and their conversion from floats.
//
// A product reads its operands in units: a float, or two bfloat16, the earlier in the lower half,
// whose products go into the same sum.

#if BF16

typedef uint16_t operand;
typedef uint32_t unit __attribute__((may_alias));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));
typedef uint32_t vuu __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(VW * 2)));
typedef uint16_t vhu __attribute__((vector_size(VW * 2), aligned(2), may_alias));

enum { UNIT = 2 }; // operands in a unit

INLINE vu load_units(const unit *p) { return *(const vuu *)p; }
INLINE void store_units(unit *p, vu v) { *(vuu *)p = v; }
INLINE vu splat_unit(unit x) { return x - (vu){0}; }

#if NATIVE // the processor converts (and takes subnormals for zeros)

INLINE vu units(vf low, vf high)
{
    static const uint16_t interleave[2 * VW] __attribute__((aligned(64))) = {
        0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31,
    };
    __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (vu)_mm512_permutexvar_epi16(_mm512_load_si512(interleave), (__m512i)both);
}

INLINE void convert(operand *dst, vf x)
{
    _mm256_storeu_si256((__m256i *)dst, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}

#else

// The nearest bfloat16 (ties to even) in the upper halves, and something in the lower ones. NaN
// stays NaN, whose upper bits alone might make an infinity.
INLINE vu nearest(vf x)
{
    vu bits = (vu)x, nan = (vu)(x != x);
    return ((bits + 0x7fff + (bits >> 16 & 1)) & ~nan) | ((bits | 0x400000) & nan);
}

INLINE vu units(vf low, vf high)
{
    return nearest(low) >> 16 | (nearest(high) & 0xffff0000u);
}

INLINE void convert(operand *dst, vf x)
{
    *(vhu *)dst = __builtin_convertvector(nearest(x) >> 16, vh);
}

#endif

// dst: rows of a block, [rows][BLOCK], from the first n columns of src: [rows, ld]; the rest of
// dst is zeros.
INLINE void put_rows(long rows, operand *restrict dst, const float *restrict src, long ld, long n)
{
    for (long r = 0; r < rows; r++, dst += BLOCK, src += ld)
        for (int j = 0; j < BLOCK; j += VW)
            convert(dst + j, load_first(src + j, n - j));
}

// dst: pairs of a block, [(rows+1)/2][BLOCK][2], from the same: two rows side by side. The partner
// of an odd last row is zeros.
INLINE void put_pairs(long rows, operand *restrict dst, const float *restrict src, long ld,
                      long n)
{
    for (long r = 0; r < rows; r += 2, dst += 2 * BLOCK, src += 2 * ld)
        for (int j = 0; j < BLOCK; j += VW) {
            vf low = load_first(src + j, n - j);
            vf high = r + 1 < rows ? load_first(src + ld + j, n - j) : splat(0);
            store_units((unit *)(dst + 2 * j), units(low, high));
        }
}

// panel: [padded/2][BLOCK][2] for y = a w^T, from the n rows of w: [n, cols] in rows of ld: its
// columns become rows; zeros elsewhere. n is at most BLOCK, padded a multiple of it.
static void pack_columns(operand *restrict panel, const float *restrict w, long n, long cols,
                         long ld, long padded)
{
    enum { AT_ONCE = 128 }; // columns, which stay in cache
    float strip[BLOCK * AT_ONCE / 2] __attribute__((aligned(64))); // [BLOCK][AT_ONCE] operands
    memset(strip, 0, sizeof strip);
    for (long c = 0; c < padded; c += AT_ONCE) {
        long width = padded - c < AT_ONCE ? padded - c : AT_ONCE;
        for (long r = 0; r < n; r++)
            for (long j = 0; j < width; j += VW)
                convert((operand *)strip + r * AT_ONCE + j,
                        load_first(w + r * ld + c + j, cols - c - j));
        transpose((float *)(panel + c * BLOCK), BLOCK, strip, AT_ONCE / 2, BLOCK, width / 2);
    }
}

// panel: [padded/2][BLOCK][2] for y = a w, from the first n columns of w: [rows, ld]; zeros
// elsewhere. padded is a multiple of BLOCK.
INLINE void pack_rows(operand *restrict panel, const float *restrict w, long rows, long ld,
                      long n, long padded)
{
    long whole = (rows + 1) / 2 * 2;
    put_pairs(rows, panel, w, ld, n);
    memset(panel + whole * BLOCK, 0, (padded - whole) * BLOCK * sizeof *panel);
}

#else

typedef float operand;
typedef float unit;
typedef vf vu;

enum { UNIT = 1 };

INLINE vu load_units(const unit *p) { return load(p); }
INLINE vu splat_unit(unit x) { return splat(x); }

// dst: rows of a block, [rows][BLOCK], from the first n columns of src: [rows, ld]; the rest of
// dst is zeros.
INLINE void put_rows(long rows, operand *restrict dst, const float *restrict src, long ld, long n)
{
    to_block(rows, dst, src, ld, n);
}

// dst: pairs of a block, [rows][BLOCK], from the same.
INLINE void put_pairs(long rows, operand *restrict dst, const float *restrict src, long ld,
                      long n)
{
    to_block(rows, dst, src, ld, n);
}

// panel: [padded][BLOCK] for y = a w^T, from the n rows of w: [n, cols] in rows of ld: its columns
// become rows; zeros elsewhere. n is at most BLOCK, padded a multiple of it.
INLINE void pack_columns(operand *restrict panel, const float *restrict w, long n, long cols,
                         long ld, long padded)
{
    transpose_to_block(panel, w, n, cols, ld, padded);
}

// panel: [padded][BLOCK] for y = a w, from the first n columns of w: [rows, ld]; zeros elsewhere.
INLINE void pack_rows(operand *restrict panel, const float *restrict w, long rows, long ld,
                      long n, long padded)
{
    to_block(rows, panel, w, ld, n);
    memset(panel + rows * BLOCK, 0, (padded - rows) * BLOCK * sizeof *panel);
}

#endif
