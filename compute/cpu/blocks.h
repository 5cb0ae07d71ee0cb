// Between row-major and blocked matrices (kernels.h says what blocked means).

INLINE long blocks_of(long width) { return (width + BLOCK - 1) / BLOCK; }

// How many columns of block u are within the width.
INLINE long columns_of(long width, long u)
{
    long rest = width - u * BLOCK;
    return rest < BLOCK ? rest : BLOCK;
}

// dst: [rows][BLOCK] from the first n columns of src: [rows, ld]; the rest of dst is zeros.
static void to_block(long rows, float *restrict dst, const float *restrict src, long ld, long n)
{
    for (long r = 0; r < rows; r++, dst += BLOCK, src += ld) {
        if (n == BLOCK) {
            for (int j = 0; j < BLOCK; j++)
                dst[j] = src[j];
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
            for (int j = 0; j < BLOCK; j++)
                dst[j] = src[j];
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

// dst: [padded][BLOCK] from the n rows of src: [n, cols], transposed; zeros elsewhere.
static void transpose_to_block(float *restrict dst, const float *restrict src, long n, long cols,
                               long ld, long padded)
{
    enum { STRIP = 16 };
    for (long c = 0; c < cols; c += STRIP) {
        long end = c + STRIP < cols ? c + STRIP : cols;
        for (long r = 0; r < n; r++)
            for (long j = c; j < end; j++)
                dst[j * BLOCK + r] = src[r * ld + j];
    }
    if (n < BLOCK)
        for (long j = 0; j < cols; j++)
            for (long r = n; r < BLOCK; r++)
                dst[j * BLOCK + r] = 0;
    memset(dst + cols * BLOCK, 0, (padded - cols) * BLOCK * sizeof *dst);
}

// The n rows of dst: [n, cols] from src: [cols][BLOCK], transposed.
static void transpose_from_block(float *restrict dst, const float *restrict src, long n,
                                 long cols, long ld)
{
    enum { STRIP = 16 };
    for (long c = 0; c < cols; c += STRIP) {
        long end = c + STRIP < cols ? c + STRIP : cols;
        for (long r = 0; r < n; r++)
            for (long j = c; j < end; j++)
                dst[r * ld + j] = src[j * BLOCK + r];
    }
}
