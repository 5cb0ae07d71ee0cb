// Conversions between row-major and blocked matrices (kernels.h defines blocked).

INLINE long blocks_of(long width) { return blocks_up(width, BLOCK); }

// How many columns of block u are within the width.
INLINE long columns_of(long width, long u)
{
    long rest = width - u * BLOCK;
    return rest < BLOCK ? rest : BLOCK;
}

// The first n elements of a vector, zeros after them; n may be any number. No other memory is
// touched.
INLINE vf load_first(const float *p, long n)
{
    if (n >= VW)
        return load(p);
#if VW == 16
    return (vf)_mm512_maskz_loadu_ps(n > 0 ? (1u << n) - 1 : 0, p);
#else
    float x[VW] = {0};
    for (long i = 0; i < n; i++)
        x[i] = p[i];
    return load(x);
#endif
}

INLINE void store_first(float *p, vf v, long n)
{
    if (n >= VW) {
        store(p, v);
        return;
    }
#if VW == 16
    _mm512_mask_storeu_ps(p, n > 0 ? (1u << n) - 1 : 0, (__m512)v);
#else
    for (long i = 0; i < n; i++)
        p[i] = v[i];
#endif
}

INLINE void copy_row(float *dst, const float *src)
{
    for (int j = 0; j < BLOCK; j += VW)
        store(dst + j, load(src + j));
}

// dst: [rows][BLOCK] from the first n columns of src: [rows, ld]; the rest of dst is zeros.
static void to_block(long rows, float *restrict dst, const float *restrict src, long ld, long n)
{
    for (long r = 0; r < rows; r++, dst += BLOCK, src += ld)
        for (int j = 0; j < BLOCK; j += VW)
            store(dst + j, load_first(src + j, n - j));
}

// The first n columns of dst: [rows, ld] from src: [rows][BLOCK].
static void from_block(long rows, float *restrict dst, long ld, long n,
                       const float *restrict src)
{
    for (long r = 0; r < rows; r++, dst += ld, src += BLOCK)
        for (int j = 0; j < BLOCK; j += VW)
            store_first(dst + j, load(src + j), n - j);
}

// dst: [rows][BLOCK] += the first n columns of src: [rows, ld].
static void add_to_block(long rows, float *restrict dst, const float *restrict src, long ld,
                         long n)
{
    for (long r = 0; r < rows; r++, dst += BLOCK, src += ld)
        for (int j = 0; j < BLOCK; j += VW)
            store(dst + j, load(dst + j) + load_first(src + j, n - j));
}

// Asks for [rows][BLOCK] to come into the second-level cache.
INLINE void prefetch_rows(long rows, const float *p)
{
    for (long i = 0; i < rows * BLOCK; i += 16)
        __builtin_prefetch(p + i, 0, 2);
}

typedef float v4 __attribute__((vector_size(16)));
typedef float v4u __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE_4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE_4(a, b, i, j, k, l) __builtin_shuffle(a, b, (v4i){i, j, k, l})
typedef int32_t v4i __attribute__((vector_size(16)));
#endif

// dst: [4 rows of ld_dst] = the transpose of src: [4 rows of ld_src].
INLINE void transpose_4(float *dst, long ld_dst, const float *src, long ld_src)
{
    v4 a = *(const v4u *)src, b = *(const v4u *)(src + ld_src);
    v4 c = *(const v4u *)(src + 2 * ld_src), d = *(const v4u *)(src + 3 * ld_src);
    v4 ab = SHUFFLE_4(a, b, 0, 4, 1, 5), cd = SHUFFLE_4(c, d, 0, 4, 1, 5);
    v4 ba = SHUFFLE_4(a, b, 2, 6, 3, 7), dc = SHUFFLE_4(c, d, 2, 6, 3, 7);
    *(v4u *)dst = SHUFFLE_4(ab, cd, 0, 1, 4, 5);
    *(v4u *)(dst + ld_dst) = SHUFFLE_4(ab, cd, 2, 3, 6, 7);
    *(v4u *)(dst + 2 * ld_dst) = SHUFFLE_4(ba, dc, 0, 1, 4, 5);
    *(v4u *)(dst + 3 * ld_dst) = SHUFFLE_4(ba, dc, 2, 3, 6, 7);
}

#if VW == 16

// dst: [16 rows of ld_dst] = the transpose of src: [16 rows of ld_src].
INLINE void transpose_16(float *dst, long ld_dst, const float *src, long ld_src)
{
    __m512 a[16], b[16];
    UNROLL for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_ps(src + i * ld_src);
    UNROLL for (int i = 0; i < 16; i += 2) { // pairs of rows
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) // a[4i + k]: rows 4i to 4i+3, columns k, k+4, k+8, k+12
        UNROLL for (int j = 0; j < 2; j++) {
            __m512d low = (__m512d)b[i + j], high = (__m512d)b[i + j + 2];
            a[i + 2 * j] = (__m512)_mm512_unpacklo_pd(low, high);
            a[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(low, high);
        }
    UNROLL for (int k = 0; k < 4; k++) { // quarters of registers
        b[k] = _mm512_shuffle_f32x4(a[k], a[k + 4], 0x88);
        b[k + 4] = _mm512_shuffle_f32x4(a[k], a[k + 4], 0xdd);
        b[k + 8] = _mm512_shuffle_f32x4(a[k + 8], a[k + 12], 0x88);
        b[k + 12] = _mm512_shuffle_f32x4(a[k + 8], a[k + 12], 0xdd);
    }
    UNROLL for (int k = 0; k < 8; k++) {
        _mm512_storeu_ps(dst + k * ld_dst, _mm512_shuffle_f32x4(b[k], b[k + 8], 0x88));
        _mm512_storeu_ps(dst + (k + 8) * ld_dst, _mm512_shuffle_f32x4(b[k], b[k + 8], 0xdd));
    }
}

#define TRANSPOSE transpose_16
enum { TRANSPOSED = 16 }; // rows and columns at a time
#else
#define TRANSPOSE transpose_4
enum { TRANSPOSED = 4 };
#endif

// dst: [cols, rows] in rows of ld_dst = the transpose of src: [rows, cols] in rows of ld_src.
static void transpose(float *restrict dst, long ld_dst, const float *restrict src, long ld_src,
                      long rows, long cols)
{
    long whole_rows = rows / TRANSPOSED * TRANSPOSED, whole_cols = cols / TRANSPOSED * TRANSPOSED;
    for (long r = 0; r < whole_rows; r += TRANSPOSED) {
        for (long c = 0; c < whole_cols; c += TRANSPOSED)
            TRANSPOSE(dst + c * ld_dst + r, ld_dst, src + r * ld_src + c, ld_src);
        for (long c = whole_cols; c < cols; c++)
            for (long i = r; i < r + TRANSPOSED; i++)
                dst[c * ld_dst + i] = src[i * ld_src + c];
    }
    for (long r = whole_rows; r < rows; r++)
        for (long c = 0; c < cols; c++)
            dst[c * ld_dst + r] = src[r * ld_src + c];
}

// dst: [padded][BLOCK] from the n rows of src: [n, cols], transposed; zeros elsewhere.
static void transpose_to_block(float *restrict dst, const float *restrict src, long n, long cols,
                               long ld, long padded)
{
    enum { AT_ONCE = 256 }; // columns, whose rows of dst stay in cache
    for (long c = 0; c < cols; c += AT_ONCE)
        transpose(dst + c * BLOCK, BLOCK, src + c, ld, n, cols - c < AT_ONCE ? cols - c : AT_ONCE);
    for (long j = 0; j < cols; j++)
        for (long r = n; r < BLOCK; r++)
            dst[j * BLOCK + r] = 0;
    memset(dst + cols * BLOCK, 0, (padded - cols) * BLOCK * sizeof *dst);
}
