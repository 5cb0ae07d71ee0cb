// Products of operands, and their tiles: sums of TILE_ROWS rows and TILE_VECTORS vectors that stay
// in registers, to which a unit of a row and a vector of units add with every step.

#if TILES
#include "product_amx.h"
#else

#if BF16
#include "product_bf16.h"
#else
INLINE vf dot(vf sum, vu x, vu y) { return fused(x, y, sum); }
#endif

#if VW == 16
enum { TILE_ROWS = 8 };
#elif VW == 8 && !BF16
enum { TILE_ROWS = 6 };
#else
enum { TILE_ROWS = 4 }; // emulated bf16 needs more registers for the operands
#endif
enum { TILE_VECTORS = 2, TILE_WIDTH = TILE_VECTORS * VW };
enum { OUTER_ROWS = TILE_ROWS == 6 ? 4 : TILE_ROWS }; // a divisor of BLOCK

// Called on each thread before its products and after them, for the instruction sets that need it.
INLINE void begin_products(void) {}
INLINE void end_products(void) {}

// Blocks of depth that go through a product at a time: their panel fits the first-level cache.
enum { PRODUCT_BLOCKS = 8 };

// Tiles that between them ask for the panel's next blocks while they work on these, two cache lines
// for every unit of depth: panels that come from memory arrive in time.
enum { TILES_AHEAD = TILE_WIDTH == BLOCK ? 2 : 1, CACHE_LINE = 64 };

// c: [rows][BLOCK] += a panel. a: rows of `blocks` blocks, a_block operands from one to the next.
// With ahead, it asks for what is at `next` meanwhile.
INLINE void product_tile(const int rows, float *restrict c, const operand *restrict a,
                         long a_block, long blocks, const operand *restrict panel,
                         const int ahead, const char *next)
{
    for (int col = 0; col < BLOCK; col += TILE_WIDTH) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        vu b[TILE_VECTORS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                sum[r][j] = load(c + r * BLOCK + col + j * VW);
        const unit *w = (const unit *)panel + col;
        for (long q = 0; q < blocks; q++) {
            const unit *x = (const unit *)(a + q * a_block);
            UNROLL_4 for (int k = 0; k < BLOCK / UNIT; k++, x++, w += BLOCK) {
                if (ahead && col < 2 * TILE_WIDTH) {
                    __builtin_prefetch(next, 0, 2);
                    next += CACHE_LINE;
                }
                UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                    b[j] = load_units(w + j * VW);
                UNROLL for (int r = 0; r < rows; r++) {
                    vu xr = splat_unit(x[r * (BLOCK / UNIT)]);
                    UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                        sum[r][j] = dot(sum[r][j], xr, b[j]);
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                store(c + r * BLOCK + col + j * VW, sum[r][j]);
    }
}

// The same for any number of rows: c: [rows][BLOCK] += a panel, over blocks*BLOCK of depth.
static void product(long rows, float *restrict c, const operand *restrict a, long a_block,
                    long blocks, const operand *restrict panel)
{
    for (long q = 0; q < blocks; q += PRODUCT_BLOCKS) {
        long these = blocks - q < PRODUCT_BLOCKS ? blocks - q : PRODUCT_BLOCKS;
        const operand *aq = a + q * a_block, *wq = panel + q * BLOCK * BLOCK;
        const char *next = (const char *)(wq + these * BLOCK * BLOCK);
        long r = 0, last = rows - TILES_AHEAD * TILE_ROWS;
        for (; r + TILE_ROWS <= rows && r + TILE_ROWS <= last; r += TILE_ROWS)
            product_tile(TILE_ROWS, c + r * BLOCK, aq + r * BLOCK, a_block, these, wq, 0, 0);
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {
            product_tile(TILE_ROWS, c + r * BLOCK, aq + r * BLOCK, a_block, these, wq, 1, next);
            next += these * (BLOCK * BLOCK / 2) * sizeof *wq;
        }
        float *cr = c + r * BLOCK;
        aq += r * BLOCK;
        switch (rows - r) {
#define REST(n)                                                    \
    case n:                                                        \
        if (n < TILE_ROWS)                                         \
            product_tile(n, cr, aq, a_block, these, wq, 0, 0);     \
        break;
            REST(1) REST(2) REST(3) REST(4) REST(5) REST(6) REST(7)
#undef REST
        }
    }
}

// n products of the same rows: c: [rows][BLOCK] each c_gap from the last += a times a panel, each
// `gap` from the last. (AMX gains by having two at a time.)
static inline void products(long n, long rows, float *restrict c, long c_gap,
                            const operand *restrict a, long a_block, long blocks,
                            const operand *restrict panels, long gap)
{
    for (long i = 0; i < n; i++)
        product(rows, c + i * c_gap, a, a_block, blocks, panels + i * gap);
}

// c: [OUTER_ROWS rows of ld] = or += aT b. a, b: pairs, of `steps` units in depth; of a's columns
// the first OUTER_ROWS count.
INLINE void outer_tile(float *restrict c, long ld, const unit *restrict a, const unit *restrict b,
                       long steps, int add)
{
    for (int col = 0; col < BLOCK; col += TILE_WIDTH) {
        vf sum[OUTER_ROWS][TILE_VECTORS];
        vu v[TILE_VECTORS];
        UNROLL for (int r = 0; r < OUTER_ROWS; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                sum[r][j] = add ? load(c + r * ld + col + j * VW) : splat(0);
        UNROLL_4 for (long i = 0; i < steps; i++) {
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                v[j] = load_units(b + i * BLOCK + col + j * VW);
            UNROLL for (int r = 0; r < OUTER_ROWS; r++) {
                vu x = splat_unit(a[i * BLOCK + r]);
                UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                    sum[r][j] = dot(sum[r][j], x, v[j]);
            }
        }
        UNROLL for (int r = 0; r < OUTER_ROWS; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                store(c + r * ld + col + j * VW, sum[r][j]);
    }
}

// c: [rows, columns] in rows of ld, both at most BLOCK, = or += aT b; a, b: pairs of `depth` rows,
// which is a multiple of BLOCK for bf16.
static void outer(float *restrict c, long ld, long rows, long columns, const operand *restrict a,
                  const operand *restrict b, long depth, int add)
{
    const unit *x = (const unit *)a, *y = (const unit *)b;
    if (rows == BLOCK && columns == BLOCK) {
        for (long r = 0; r < BLOCK; r += OUTER_ROWS)
            outer_tile(c + r * ld, ld, x + r, y, depth / UNIT, add);
        return;
    }
    float whole[BLOCK * BLOCK] __attribute__((aligned(64))) = {0};
    if (add)
        to_block(rows, whole, c, ld, columns);
    for (long r = 0; r < rows; r += OUTER_ROWS)
        outer_tile(whole + r * BLOCK, BLOCK, x + r, y, depth / UNIT, add);
    from_block(rows, c, ld, columns, whole);
}

// The same for any number of columns: b: b_block operands from one block of columns to the next.
static inline void outers(float *restrict c, long ld, long rows, long columns,
                          const operand *restrict a, const operand *restrict b, long b_block,
                          long depth, int add)
{
    for (long j = 0; j < columns; j += BLOCK)
        outer(c + j, ld, rows, columns - j < BLOCK ? columns - j : BLOCK, a,
              b + j / BLOCK * b_block, depth, add);
}

#endif
