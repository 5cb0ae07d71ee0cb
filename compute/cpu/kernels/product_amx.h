// Products of bfloat16 operands on AMX's tiles: 16 rows of 64 bytes. Sums are in tiles 0 to 3, 16
// rows of 16 floats each; a's are in 4 and 5, 16 rows of 32 operands; b's in 6 and 7, 16 rows of
// 16 pairs. All tiles keep that shape: fewer rows go through copies, and so the sum of a row is
// made in the same order wherever the row is.

enum { TILE = 16, TILE_STRIDE = BLOCK * sizeof(operand), SUM_STRIDE = BLOCK * sizeof(float),
       PAIR_STRIDE = 2 * BLOCK * sizeof(operand) };

// Blocks of depth that go through a product at a time, if there are enough rows to read their panel
// again: it fits the first-level cache.
enum { PRODUCT_BLOCKS = 16 };

#define TILE_LOAD(tile, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile \
                     : : "r"(from), "r"((long)(stride)) : "memory")
#define TILE_STORE(tile, to, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" \
                     : : "r"(to), "r"((long)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define TILE_DOT(sum, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

// Configures the calling thread's tiles. end_products releases them, so that context switches need
// not save them.
INLINE void begin_products(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16]; // of a row
        uint8_t rows[16];
    } shapes __attribute__((aligned(64))) = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE},
    };
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

INLINE void end_products(void) { __asm__ volatile("tilerelease" : :); }

// Sums of 2 TILE rows in memory, in rows of `stride` bytes.
INLINE void load_sums(const float *c, long stride)
{
    const char *low = (const char *)c + TILE * stride;
    TILE_LOAD(0, c, stride);
    TILE_LOAD(1, c + TILE, stride);
    TILE_LOAD(2, low, stride);
    TILE_LOAD(3, low + TILE * sizeof(float), stride);
}

INLINE void store_sums(float *c, long stride)
{
    char *low = (char *)c + TILE * stride;
    TILE_STORE(0, c, stride);
    TILE_STORE(1, c + TILE, stride);
    TILE_STORE(2, low, stride);
    TILE_STORE(3, low + TILE * sizeof(float), stride);
}

// The sums += a b, over one block of depth. a: [2 TILE][BLOCK], b: [BLOCK/2][BLOCK][2].
INLINE void add_product(const operand *a, const operand *b)
{
    TILE_LOAD(6, b, PAIR_STRIDE);
    TILE_LOAD(4, a, TILE_STRIDE);
    TILE_DOT(0, 4, 6);
    TILE_LOAD(7, b + 2 * TILE, PAIR_STRIDE);
    TILE_DOT(1, 4, 7);
    TILE_LOAD(5, a + TILE * BLOCK, TILE_STRIDE);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
}

// Prefetches the memory `blocks` blocks after a panel's block b: panels are read one after another.
INLINE void ask_ahead(const operand *b, long blocks)
{
    enum { LINE = 64 / sizeof *b };
    for (int i = 0; i < BLOCK * BLOCK; i += LINE)
        __builtin_prefetch(b + blocks * BLOCK * BLOCK + i, 0, 2);
}

// c: [2 TILE][BLOCK] += a panel. With ahead, it prefetches the memory after the panel.
INLINE void product_square(float *c, const operand *a, long a_block, long blocks,
                           const operand *panel, int ahead)
{
    load_sums(c, SUM_STRIDE);
    for (long q = 0; q < blocks; q++, a += a_block, panel += BLOCK * BLOCK) {
        add_product(a, panel);
        if (ahead)
            ask_ahead(panel, blocks);
    }
    store_sums(c, SUM_STRIDE);
}

// c: [TILE][BLOCK] += a panel. With two, a second product: c_gap after c, with the panel `gap`
// after. The latency of a sum's step is longer than two steps take, and shorter than four.
INLINE void product_strip(const int two, float *c, long c_gap, const operand *a, long a_block,
                          long blocks, const operand *panel, long gap, int ahead)
{
    TILE_LOAD(0, c, SUM_STRIDE);
    TILE_LOAD(1, c + TILE, SUM_STRIDE);
    if (two) {
        TILE_LOAD(2, c + c_gap, SUM_STRIDE);
        TILE_LOAD(3, c + c_gap + TILE, SUM_STRIDE);
    }
    for (long q = 0; q < blocks; q++, a += a_block, panel += BLOCK * BLOCK) {
        TILE_LOAD(4, a, TILE_STRIDE);
        TILE_LOAD(6, panel, PAIR_STRIDE);
        TILE_DOT(0, 4, 6);
        TILE_LOAD(7, panel + 2 * TILE, PAIR_STRIDE);
        TILE_DOT(1, 4, 7);
        if (two) {
            TILE_LOAD(6, panel + gap, PAIR_STRIDE);
            TILE_DOT(2, 4, 6);
            TILE_LOAD(7, panel + gap + 2 * TILE, PAIR_STRIDE);
            TILE_DOT(3, 4, 7);
        }
        for (int i = 0; ahead && i <= two; i++)
            ask_ahead(panel + i * gap, blocks);
    }
    TILE_STORE(0, c, SUM_STRIDE);
    TILE_STORE(1, c + TILE, SUM_STRIDE);
    if (two) {
        TILE_STORE(2, c + c_gap, SUM_STRIDE);
        TILE_STORE(3, c + c_gap + TILE, SUM_STRIDE);
    }
}

// The same for fewer than TILE rows: c: [rows][BLOCK].
INLINE void product_rest(const int two, long rows, float *c, long c_gap, const operand *a,
                         long a_block, long blocks, const operand *panel, long gap)
{
    enum { COPIED = 8 }; // blocks at a time
    float sums[2][TILE * BLOCK] __attribute__((aligned(64))) = {0};
    operand copy[COPIED * TILE * BLOCK] __attribute__((aligned(64))) = {0};
    for (int i = 0; i <= two; i++)
        memcpy(sums[i], c + i * c_gap, rows * BLOCK * sizeof *c);
    for (long q = 0; q < blocks; q += COPIED) {
        long these = blocks - q < COPIED ? blocks - q : COPIED;
        for (long i = 0; i < these; i++)
            memcpy(copy + i * TILE * BLOCK, a + (q + i) * a_block, rows * BLOCK * sizeof *a);
        product_strip(two, sums[0], TILE * BLOCK, copy, TILE * BLOCK, these,
                      panel + q * BLOCK * BLOCK, gap, 1);
    }
    for (int i = 0; i <= two; i++)
        memcpy(c + i * c_gap, sums[i], rows * BLOCK * sizeof *c);
}

// The same for any number of rows.
INLINE void product_rows(const int two, long rows, float *c, long c_gap, const operand *a,
                         long a_block, long blocks, const operand *panel, long gap)
{
    long r = 0;
    for (int i = 0; i <= two; i++)
        for (r = 0; r + 2 * TILE <= rows; r += 2 * TILE)
            product_square(c + i * c_gap + r * BLOCK, a + r * BLOCK, a_block, blocks,
                           panel + i * gap, r + 2 * TILE == rows);
    if (r + TILE <= rows) {
        product_strip(two, c + r * BLOCK, c_gap, a + r * BLOCK, a_block, blocks, panel, gap,
                      r + TILE == rows);
        r += TILE;
    }
    if (r < rows)
        product_rest(two, rows - r, c + r * BLOCK, c_gap, a + r * BLOCK, a_block, blocks, panel,
                     gap);
}

// n products of the same rows, two at a time: c: [rows][BLOCK] each c_gap from the last += a times
// a panel, each `gap` from the last, over blocks*BLOCK of depth.
static void products(long n, long rows, float *restrict c, long c_gap, const operand *restrict a,
                     long a_block, long blocks, const operand *restrict panels, long gap)
{
    long chunk = rows > 2 * TILE ? PRODUCT_BLOCKS : blocks;
    for (long q = 0; q < blocks; q += chunk) {
        long these = blocks - q < chunk ? blocks - q : chunk, i = 0;
        const operand *aq = a + q * a_block, *wq = panels + q * BLOCK * BLOCK;
        for (; i + 2 <= n; i += 2)
            product_rows(1, rows, c + i * c_gap, c_gap, aq, a_block, these, wq + i * gap, gap);
        if (i < n)
            product_rows(0, rows, c + i * c_gap, 0, aq, a_block, these, wq + i * gap, 0);
    }
}

// One: c: [rows][BLOCK] += a panel.
static void product(long rows, float *restrict c, const operand *restrict a, long a_block,
                    long blocks, const operand *restrict panel)
{
    products(1, rows, c, 0, a, a_block, blocks, panel, 0);
}

// c: [BLOCK rows of ld] = or += at b, over `blocks` blocks of depth. at: [blocks][BLOCK][BLOCK].
INLINE void outer_square(float *c, long ld, const operand *at, const operand *b, long blocks,
                         int add)
{
    if (add) {
        load_sums(c, ld * sizeof *c);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (long q = 0; q < blocks; q++)
        add_product(at + q * BLOCK * BLOCK, b + q * BLOCK * BLOCK);
    store_sums(c, ld * sizeof *c);
}

// c: [rows, columns] in rows of ld, rows at most BLOCK, = or += aT b; a: pairs of `depth` rows; b:
// the same for every block of columns, b_block operands from one to the next. depth is a multiple
// of BLOCK. a is transposed a chunk at a time, once for all of b.
static void outers(float *restrict c, long ld, long rows, long columns,
                   const operand *restrict a, const operand *restrict b, long b_block,
                   long depth, int add)
{
    enum { CHUNK = 512 };
    operand at[CHUNK * BLOCK] __attribute__((aligned(64)));
    float whole[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (long d = 0; d < depth; d += CHUNK, add = 1) {
        long blocks = (depth - d < CHUNK ? depth - d : CHUNK) / BLOCK;
        for (long i = 0; i < 2 * blocks; i++) // halves: [TILE pairs][TILE of BLOCK columns]
            transpose_16((float *)(at + i * TILE * BLOCK), TILE,
                         (const float *)(a + d * BLOCK) + i / 2 * TILE * BLOCK + i % 2 * TILE,
                         BLOCK);
        for (long j = 0; j < columns; j += BLOCK) {
            const operand *bj = b + j / BLOCK * b_block + d * BLOCK;
            if (rows == BLOCK && columns - j >= BLOCK) {
                outer_square(c + j, ld, at, bj, blocks, add);
                continue;
            }
            memset(whole, 0, sizeof whole);
            if (add)
                to_block(rows, whole, c + j, ld, columns - j);
            outer_square(whole, BLOCK, at, bj, blocks, add);
            from_block(rows, c + j, ld, columns - j, whole);
        }
    }
}
