// Between row-major and blocked matrices (kernels.h says what blocked means).

INLINE long blocks_up(long n, long size) { return (n + size - 1) / size; }

INLINE long blocks_of(long width) { return blocks_up(width, BLOCK); }

// How many columns of block u are within the width.
INLINE long columns_of(long width, long u)
{
    long rest = width - u * BLOCK;
    return rest < BLOCK ? rest : BLOCK;
}

INLINE void copy_row(float *dst, const float *src)
{
    for (int j = 0; j < BLOCK; j += VW)
        store(dst + j, load(src + j));
}

// dst: [rows][BLOCK] from the first n columns of src: [rows, ld]; the rest of dst is zeros.
static void to_block(long rows, float *restrict dst, const float *restrict src, long ld, long n)
{
    for (long r = 0; r < rows; r++, dst += BLOCK, src += ld) {
        if (n == BLOCK) {
            copy_row(dst, src);
            continue;
        }
        for (long j = 0; j < n; j++)
            dst[j] = src[j];
        for (long j = n; j < BLOCK; j++)
            dst[j] = 0;
    }
}

// The first n columns of dst: [rows, ld] from src: [rows][BLOCK].
static void from_block(long rows, float *restrict dst, long ld, long n,
                       const float *restrict src)
{
    for (long r = 0; r < rows; r++, dst += ld, src += BLOCK) {
        if (n == BLOCK) {
            copy_row(dst, src);
            continue;
        }
        for (long j = 0; j < n; j++)
            dst[j] = src[j];
    }
}

// dst: [rows][BLOCK] += the first n columns of src: [rows, ld].
static void add_to_block(long rows, float *restrict dst, const float *restrict src, long ld,
                         long n)
{
    for (long r = 0; r < rows; r++, dst += BLOCK, src += ld) {
        if (n == BLOCK) {
            for (int j = 0; j < BLOCK; j++)
                dst[j] += src[j];
            continue;
        }
        for (long j = 0; j < n; j++)
            dst[j] += src[j];
    }
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

// dst: [cols, rows] in rows of ld_dst = the transpose of src: [rows, cols] in rows of ld_src.
static void transpose(float *restrict dst, long ld_dst, const float *restrict src, long ld_src,
                      long rows, long cols)
{
    long r = 0;
    for (; r + 4 <= rows; r += 4) {
        long c = 0;
        for (; c + 4 <= cols; c += 4)
            transpose_4(dst + c * ld_dst + r, ld_dst, src + r * ld_src + c, ld_src);
        for (; c < cols; c++)
            for (long i = r; i < r + 4; i++)
                dst[c * ld_dst + i] = src[i * ld_src + c];
    }
    for (; r < rows; r++)
        for (long c = 0; c < cols; c++)
            dst[c * ld_dst + r] = src[r * ld_src + c];
}

// dst: [padded][BLOCK] from the n rows of src: [n, cols], transposed; zeros elsewhere.
static void transpose_to_block(float *restrict dst, const float *restrict src, long n, long cols,
                               long ld, long padded)
{
    enum { STRIP = 256 }; // columns at a time, whose rows of dst stay in cache
    for (long c = 0; c < cols; c += STRIP)
        transpose(dst + c * BLOCK, BLOCK, src + c, ld, n, cols - c < STRIP ? cols - c : STRIP);
    for (long j = 0; j < cols; j++)
        for (long r = n; r < BLOCK; r++)
            dst[j * BLOCK + r] = 0;
    memset(dst + cols * BLOCK, 0, (padded - cols) * BLOCK * sizeof *dst);
}
