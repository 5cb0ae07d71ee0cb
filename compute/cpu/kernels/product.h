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

// Units of depth that go through the tiles of a block of a weight's gradient at a time: both of
// their operands and the block fit half of the first-level cache with AVX2, where another thread of
// the core may have the other half.
enum { OUTER_STEPS = VW == 8 ? 32 : 64 };

// Called on each thread before its products and after them, for the instruction sets that need it.
INLINE void begin_products(void) {}
INLINE void end_products(void) {}

// Deeper products go through their panels by pieces of PRODUCT_BLOCKS, which with the piece of the
// rows fit the first-level cache, or half of it with AVX2, and ask for the next piece.
enum { FEW_BLOCKS = 8, PRODUCT_BLOCKS = VW == 8 ? 2 : 4 };

// Memory that the next product reads. The product before it prefetches some lines of it into the
// second-level cache at a time, so that they arrive before they are needed.
struct ahead {
    const char *next, *end;
    long lines; // at a time
};

enum { CACHE_LINE = 64 };

// `bytes` from p on, to be asked for in so many `times`, at least one.
INLINE struct ahead ahead_of(const void *p, long bytes, long times)
{
    return (struct ahead){p, (const char *)p + bytes, blocks_up(bytes, times * CACHE_LINE)};
}

INLINE void ask(struct ahead *a)
{
    for (long i = 0; i < a->lines && a->next < a->end; i++, a->next += CACHE_LINE)
        __builtin_prefetch(a->next, 0, 2);
}

// c: [rows][BLOCK] += a panel. a: rows of `blocks` blocks, a_block operands from one to the next.
INLINE void product_tile(const int rows, float *restrict c, const operand *restrict a,
                         long a_block, long blocks, const operand *restrict panel,
                         struct ahead *ahead)
{
    for (int col = 0; col < BLOCK; col += TILE_WIDTH) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        vu b[TILE_VECTORS];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < TILE_VECTORS; j++)
                sum[r][j] = load(c + r * BLOCK + col + j * VW);
        const unit *w = (const unit *)panel + col;
        ask(ahead);
        for (long q = 0; q < blocks; q++) {
            const unit *x = (const unit *)(a + q * a_block);
            UNROLL_4 for (int k = 0; k < BLOCK / UNIT; k++, x++, w += BLOCK) {
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

// How many of the rows go into the next tile. A last tile of one or two rows would have too few
// sums to hide the latency of the additions, so the last two tiles share their rows.
INLINE long next_rows(long rows)
{
    if (rows <= TILE_ROWS)
        return rows;
    return rows - TILE_ROWS <= 2 ? (rows + 1) / 2 : TILE_ROWS;
}

// The same for any number of rows.
static void product_piece(long rows, float *restrict c, const operand *restrict a, long a_block,
                          long blocks, const operand *restrict panel, struct ahead ahead)
{
    for (long n; rows > 0; rows -= n, c += n * BLOCK, a += n * BLOCK) {
        n = next_rows(rows);
        switch (n) {
#define TILE(n)                                                    \
    case n:                                                        \
        if (n <= TILE_ROWS)                                        \
            product_tile(n, c, a, a_block, blocks, panel, &ahead); \
        break;
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
#undef TILE
        }
    }
}

// n products of the same rows: c: [rows][BLOCK] each c_gap from the last += a times a panel, each
// `gap` from the last, over blocks*BLOCK of depth. All use a piece of a's depth while it is in
// cache.
static void products(long n, long rows, float *restrict c, long c_gap, const operand *restrict a,
                     long a_block, long blocks, const operand *restrict panels, long gap)
{
    const long passes = blocks_up(rows, TILE_ROWS) * (BLOCK / TILE_WIDTH);
    if (rows == 0)
        return;
    const long piece = blocks > FEW_BLOCKS ? PRODUCT_BLOCKS : blocks;
    for (long q = 0; q < blocks; q += piece) {
        const long these = blocks - q < piece ? blocks - q : piece, size = these * BLOCK * BLOCK;
        const operand *w = panels + q * BLOCK * BLOCK;
        for (long i = 0; i < n; i++) {
            const operand *next = i + 1 < n ? w + (i + 1) * gap : w + size;
            product_piece(rows, c + i * c_gap, a + q * a_block, a_block, these, w + i * gap,
                          ahead_of(next, blocks > piece ? size * sizeof *w : 0, passes));
        }
    }
}

// One: c: [rows][BLOCK] += a panel. After it, the next one in memory is wanted.
static inline void product(long rows, float *restrict c, const operand *restrict a, long a_block,
                           long blocks, const operand *restrict panel)
{
    products(1, rows, c, 0, a, a_block, blocks, panel, 0);
}

// c: [rows][BLOCK] += aT b. a, b: pairs, of `steps` units in depth; of a's columns the first `rows`
// count.
INLINE void outer_tile(const int rows, const int vectors, float *restrict c,
                       const unit *restrict a, const unit *restrict b, long steps)
{
    for (int col = 0; col < BLOCK; col += vectors * VW) {
        vf sum[TILE_ROWS][BLOCK / VW];
        vu v[BLOCK / VW];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < vectors; j++)
                sum[r][j] = load(c + r * BLOCK + col + j * VW);
        UNROLL_4 for (long i = 0; i < steps; i++) {
            UNROLL for (int j = 0; j < vectors; j++)
                v[j] = load_units(b + i * BLOCK + col + j * VW);
            UNROLL for (int r = 0; r < rows; r++) {
                vu x = splat_unit(a[i * BLOCK + r]);
                UNROLL for (int j = 0; j < vectors; j++)
                    sum[r][j] = dot(sum[r][j], x, v[j]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int j = 0; j < vectors; j++)
                store(c + r * BLOCK + col + j * VW, sum[r][j]);
    }
}

// c: [rows, columns] in rows of ld, both at most BLOCK, = or += aT b; a, b: pairs of `depth` rows,
// which is a multiple of BLOCK for bf16. It asks for the pairs at `next` meanwhile.
static void outer(float *restrict c, long ld, long rows, long columns, const operand *restrict a,
                  const operand *restrict b, long depth, int add, const operand *next)
{
    const unit *x = (const unit *)a, *y = (const unit *)b;
    float whole[BLOCK * BLOCK] __attribute__((aligned(64))) = {0};
    if (add)
        to_block(rows, whole, c, ld, columns);
    for (long left = depth / UNIT; left > 0; left -= OUTER_STEPS) {
        long steps = left < OUTER_STEPS ? left : OUTER_STEPS, r = 0;
        const unit *after = left > steps ? y + steps * BLOCK : (const unit *)next;
        struct ahead ahead = ahead_of(after, steps * BLOCK * sizeof *y, BLOCK / TILE_ROWS);
        for (; r + TILE_ROWS <= BLOCK; r += TILE_ROWS) {
            ask(&ahead);
            outer_tile(TILE_ROWS, TILE_VECTORS, whole + r * BLOCK, x + r, y, steps);
        }
        if (r < BLOCK) // as many sums at a time, nearly
            outer_tile(BLOCK % TILE_ROWS, BLOCK / VW, whole + r * BLOCK, x + r, y, steps);
        x += steps * BLOCK;
        y += steps * BLOCK;
    }
    from_block(rows, c, ld, columns, whole);
}

// The same for any number of columns: b: b_block operands from one block of columns to the next.
static inline void outers(float *restrict c, long ld, long rows, long columns,
                          const operand *restrict a, const operand *restrict b, long b_block,
                          long depth, int add)
{
    for (long j = 0; j < columns; j += BLOCK, b += b_block)
        outer(c + j, ld, rows, columns - j < BLOCK ? columns - j : BLOCK, a, b, depth, add,
              b + b_block);
}

#endif
