// General products c = alpha op(a) op(b) + beta c, of row-major matrices. All threads together pack
// op(b) into panels, GEMM_DEPTH by GEMM_COLUMNS at a time. Then each thread packs GEMM_ROWS of
// op(a) at a time and multiplies them by one panel after the other. The threads divide c's rows, or
// its columns if it has few rows.

// The panels of columns `first` to `end` within the part of op(b) that begins at [p, j] and is
// `depth` deep.
INLINE void pack_panels(const struct gemm *g, long j, long p, long depth, long first, long end)
{
    const long padded = blocks_of(depth) * BLOCK;
    for (long v = first; v < end; v += BLOCK) {
        operand *panel = (operand *)g->panels + v * padded;
        long column = j + v, n = columns_of(g->n, column / BLOCK);
        if (g->trans_b)
            pack_columns(panel, g->b + column * g->k + p, n, depth, g->k, padded);
        else
            pack_rows(panel, g->b + p * g->n + column, depth, g->n, n, padded);
    }
}

// dst: [blocks][rows][BLOCK], the rows of op(a) from [r, p] on, `depth` deep. tile: scratch memory,
// [rows][BLOCK].
INLINE void pack_left(const struct gemm *g, operand *dst, long r, long rows, long p, long depth,
                      float *tile)
{
    for (long q = 0; q < depth; q += BLOCK, dst += rows * BLOCK) {
        long n = depth - q < BLOCK ? depth - q : BLOCK;
        if (!g->trans_a) {
            put_rows(rows, dst, g->a + r * g->k + p + q, g->k, n);
            continue;
        }
        transpose(tile, BLOCK, g->a + (p + q) * g->m + r, g->m, n, rows);
        put_rows(rows, dst, tile, BLOCK, n);
    }
}

// c: the first n columns of [rows, ld] = alpha tile + beta c; with beta zero, c is not read.
INLINE void put_tile(long rows, float *c, long ld, long n, const float *tile, float alpha,
                     float beta)
{
    for (long r = 0; r < rows; r++, c += ld, tile += BLOCK) {
        for (long i = 0; i < BLOCK && n == BLOCK; i += VW) {
            vf v = splat(alpha) * load(tile + i);
            store(c + i, beta ? fused(splat(beta), load(c + i), v) : v);
        }
        for (long i = 0; i < n && n < BLOCK; i++)
            c[i] = alpha * tile[i] + (beta ? beta * c[i] : 0);
    }
}

// Adds the product of op(a)'s columns from p on and the panels to c's rows r to r_end, columns
// j+first to j+end. With p 0, c is first multiplied by beta.
static void gemm_part(const struct gemm *g, int thread, long r, long r_end, long j, long first,
                      long end, long p, long depth)
{
    const long blocks = blocks_of(depth);
    operand *left = (operand *)g->left + thread * (long)GEMM_ROWS * GEMM_DEPTH;
    float *tile = g->tile + thread * (long)GEMM_ROWS * BLOCK;
    for (; r < r_end; r += GEMM_ROWS) {
        long rows = r_end - r < GEMM_ROWS ? r_end - r : GEMM_ROWS;
        pack_left(g, left, r, rows, p, depth, tile);
        for (long v = first; v < end; v += BLOCK) {
            memset(tile, 0, rows * BLOCK * sizeof *tile);
            product(rows, tile, left, rows * BLOCK, blocks,
                    (const operand *)g->panels + v * blocks * BLOCK);
            put_tile(rows, g->c + r * g->n + j + v, g->n, columns_of(g->n, (j + v) / BLOCK), tile,
                     g->alpha, p ? 1 : g->beta);
        }
    }
}

static void gemm(const struct member *m, const struct gemm *g)
{
    // An element's sum has the same order for any number of threads.
    long r = 0, r_end = g->m;
    const int by_rows = g->m >= (long)m->count * BLOCK || g->m >= g->n;
    if (by_rows)
        rondo_share(m, g->m, BLOCK / 2, &r, &r_end);
    for (long j = 0; j < g->n; j += GEMM_COLUMNS)
        for (long p = 0; p < g->k; p += GEMM_DEPTH) {
            long width = g->n - j < GEMM_COLUMNS ? g->n - j : GEMM_COLUMNS;
            long depth = g->k - p < GEMM_DEPTH ? g->k - p : GEMM_DEPTH;
            long first, end;
            rondo_share(m, width, BLOCK, &first, &end);
            pack_panels(g, j, p, depth, first, end);
            if (by_rows) { // of all panels
                rondo_team_meet(m);
                first = 0;
                end = width;
            }
            gemm_part(g, m->index, r, r_end, j, first, end, p, depth);
            rondo_team_meet(m); // the next panels may be another thread's
        }
}
