// Products of blocked matrices, and their tiles: sums of TILE_ROWS rows and TILE_VECTORS vectors
// that stay in registers.

#if VW == 16
enum { TILE_ROWS = 8, TILE_VECTORS = 2, OUTER_ROWS = 8 };
#elif VW == 8
enum { TILE_ROWS = 6, TILE_VECTORS = 2, OUTER_ROWS = 4 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2, OUTER_ROWS = 4 };
#endif
enum { TILE_WIDTH = TILE_VECTORS * VW };

// Blocks of k that go through a product at a time: their weights fit the first-level cache.
enum { PRODUCT_BLOCKS = 8 };

// c: [rows][BLOCK] += a w. a: [blocks][a_block/BLOCK rows][BLOCK], w: [blocks*BLOCK][BLOCK].
INLINE void product_tile(const int rows, float *restrict c, const float *restrict a,
                         long a_block, long blocks, const float *restrict w)
{
    for (int col = 0; col < BLOCK; col += TILE_WIDTH) {
        vf sum[TILE_ROWS][TILE_VECTORS], b[TILE_VECTORS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                sum[r][j] = load(c + r * BLOCK + col + j * VW);
        const float *panel = w + col;
        for (long q = 0; q < blocks; q++) {
            const float *row = a + q * a_block;
            UNROLL_4 for (int k = 0; k < BLOCK; k++, row++, panel += BLOCK) {
                UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                    b[j] = load(panel + j * VW);
                UNROLL for (int r = 0; r < rows; r++) {
                    vf x = splat(row[r * BLOCK]);
                    UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                        sum[r][j] += x * b[j];
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                store(c + r * BLOCK + col + j * VW, sum[r][j]);
    }
}

// The same for any number of rows: c: [rows][BLOCK].
static void product(long rows, float *restrict c, const float *restrict a, long a_block,
                    long blocks, const float *restrict w)
{
    for (long q = 0; q < blocks; q += PRODUCT_BLOCKS) {
        long n = blocks - q < PRODUCT_BLOCKS ? blocks - q : PRODUCT_BLOCKS;
        const float *aq = a + q * a_block, *wq = w + q * BLOCK * BLOCK;
        long r = 0;
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
            product_tile(TILE_ROWS, c + r * BLOCK, aq + r * BLOCK, a_block, n, wq);
        float *cr = c + r * BLOCK;
        aq += r * BLOCK;
        switch (rows - r) {
        case 1: product_tile(1, cr, aq, a_block, n, wq); break;
        case 2: product_tile(2, cr, aq, a_block, n, wq); break;
        case 3: product_tile(3, cr, aq, a_block, n, wq); break;
#if VW >= 8
        case 4: product_tile(4, cr, aq, a_block, n, wq); break;
        case 5: product_tile(5, cr, aq, a_block, n, wq); break;
#endif
#if VW == 16
        case 6: product_tile(6, cr, aq, a_block, n, wq); break;
        case 7: product_tile(7, cr, aq, a_block, n, wq); break;
#endif
        }
    }
}

// c: [OUTER_ROWS rows of ld] = or += aT b. a: [k][BLOCK], of which the first OUTER_ROWS columns
// count; b: [k][BLOCK].
INLINE void outer_tile(float *restrict c, long ld, const float *restrict a,
                       const float *restrict b, long k, int add)
{
    for (int col = 0; col < BLOCK; col += TILE_WIDTH) {
        vf sum[OUTER_ROWS][TILE_VECTORS], v[TILE_VECTORS];
        UNROLL for (int r = 0; r < OUTER_ROWS; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                sum[r][j] = add ? load(c + r * ld + col + j * VW) : splat(0);
        UNROLL_4 for (long i = 0; i < k; i++) {
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                v[j] = load(b + i * BLOCK + col + j * VW);
            UNROLL for (int r = 0; r < OUTER_ROWS; r++) {
                vf x = splat(a[i * BLOCK + r]);
                UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                    sum[r][j] += x * v[j];
            }
        }
        UNROLL for (int r = 0; r < OUTER_ROWS; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                store(c + r * ld + col + j * VW, sum[r][j]);
    }
}

// c: [rows, columns] in rows of ld, both at most BLOCK, = or += aT b; a, b: [k][BLOCK].
static void outer(float *restrict c, long ld, long rows, long columns, const float *restrict a,
                  const float *restrict b, long k, int add)
{
    if (rows == BLOCK && columns == BLOCK) {
        for (long r = 0; r < BLOCK; r += OUTER_ROWS)
            outer_tile(c + r * ld, ld, a + r, b, k, add);
        return;
    }
    float whole[BLOCK * BLOCK] __attribute__((aligned(64))) = {0};
    if (add)
        to_block(rows, whole, c, ld, columns);
    for (long r = 0; r < rows; r += OUTER_ROWS)
        outer_tile(whole + r * BLOCK, BLOCK, a + r, b, k, add);
    from_block(rows, c, ld, columns, whole);
}
