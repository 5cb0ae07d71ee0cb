// The input side of a recurrent layer: what it adds to the sums of all steps, before the
// recurrence, and its gradients. Token ids pick rows of a table; dense rows go through a product.

// Bytes of a dense input that go through the weights at a time, so that they stay in cache.
enum { INPUT_BYTES = 1 << 19 };

// Sets n rows to the bias of gate block i.
static void start_rows(const struct layer *l, float *restrict rows, long i, long n)
{
    const float *restrict bias = l->bias + i * BLOCK;
    for (long r = 0; r < n; r++)
        copy_row(rows + r * BLOCK, bias);
}

// For ids: the table [K*U][D][BLOCK] of what each adds to the sums, biases included.
static void fill_table(const struct member *m, struct layer *l, const float *ih)
{
    long i, end;
    for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++) {
        long first = i / l->U * l->H + i % l->U * BLOCK;
        float *table = l->in->table + i * l->D * BLOCK;
        transpose_to_block(table, ih + first * l->D, columns_of(l->H, i % l->U), l->D, l->D, l->D);
        for (long d = 0; d < l->D; d++)
            for (int j = 0; j < BLOCK; j += VW)
                add_to(table + d * BLOCK + j, load(l->bias + i * BLOCK + j));
    }
}

// Dense input as operands: blocks of it to each thread. Pairs begin each step on an even row.
static void put_input(const struct member *m, struct layer *l, const float *x)
{
    long v, end;
    for (rondo_share(m, l->X, 1, &v, &end); v < end; v++) {
        const float *from = x + v * BLOCK;
        long n = columns_of(l->D, v);
        put_rows(l->N, operands_at(&l->in->rows, v, 0, 0), from, l->D, n);
        if (!BF16 || l->inference)
            continue;
        long steps = l->in->pairs.lanes == l->B ? 1 : l->T, rows = l->N / steps;
        for (long t = 0; t < steps; t++)
            put_pairs(rows, operands_at(&l->in->pairs, v, t, 0), from + t * rows * l->D, l->D, n);
    }
}

// Rows of so many blocks of operands that go through weights at a time.
INLINE long rows_at_once(long blocks)
{
    long rows = INPUT_BYTES / (blocks * BLOCK * (long)sizeof(operand)) / 16 * 16;
    return rows < 64 ? 64 : least(rows, INPUT_ROWS);
}

// The sums of all steps from dense input: panels to each thread.
static void input_sums(const struct member *m, struct layer *l)
{
    const struct tensor *x = &l->in->rows;
    long first, end, chunk = rows_at_once(l->X), depth = l->X * BLOCK;
    rondo_share(m, l->K * l->U, 1, &first, &end);
    for (long n = 0; n < l->N; n += chunk) {
        long rows = least(chunk, l->N - n);
        for (long i = first; i < end; i++) {
            float *sums = sums_at(l, i, n);
            start_rows(l, sums, i, rows);
            product(rows, sums, operands_at(x, 0, 0, n), x->stride * BLOCK, l->X,
                    (operand *)l->in->panels + i * depth * BLOCK);
        }
    }
}

static void zero_table(const struct member *m, struct layer *l)
{
    long i, end;
    rondo_share(m, l->K * l->U, 1, &i, &end);
    memset(l->in->table + i * l->D * BLOCK, 0, (end - i) * l->D * BLOCK * sizeof *l->in->table);
}

// Adds a strip's gradients of the sums of gate g to the table's rows of its ids.
static void scatter(struct layer *l, long g, const struct strip *s, const int32_t *ids)
{
    float *table = l->in->table + (g * l->U + s->u) * l->D * BLOCK;
    const float *d = gradient_at(l, apart(l, g), s);
    ids += s->t * l->B + s->b;
    for (long b = 0; b < s->lanes; b++)
        for (int j = 0; j < BLOCK; j += VW)
            add_to(table + ids[b] * BLOCK + j, load(d + b * BLOCK + j));
}

// The gradients of W_ih from ids at step t, by the thread that has the units. One that has lanes
// takes blocks of all lanes too, so that each sum has one owner and one order.
static void scatter_step(const struct member *m, const struct field *f, struct layer *l, long t,
                         const int32_t *ids)
{
    long i = 0, end = l->K * (f->ue - f->u);
    if (f->apart) {
        rondo_team_meet(m);
        rondo_share(m, l->K * l->U, 1, &i, &end);
    }
    for (; i < end; i++) {
        struct strip s = {t, f->u + i / l->K, 0, l->B};
        scatter(l, i % l->K, &s, ids);
    }
}

// dx: [N, D], from the input side's gradients: rows of it to each thread.
static void input_gradient(const struct member *m, struct layer *l, float *dx)
{
    const struct tensor *d = &l->d_rows;
    const operand *panels = l->in->back;
    float *tile = l->tile + m->index * l->tile_rows * BLOCK;
    long chunk = rows_at_once(l->K * l->U), n, end;
    for (rondo_share(m, l->N, chunk, &n, &end); n < end; n += chunk) {
        long rows = least(chunk, end - n);
        for (long v = 0; v < l->X; v++) {
            memset(tile, 0, rows * BLOCK * sizeof *tile);
            for (long g = 0; g < l->K; g++)
                product(rows, tile, operands_at(d, apart(l, g) * l->U, 0, n), d->stride * BLOCK,
                        l->U, panels + (v * l->K + g) * l->U * BLOCK * BLOCK);
            from_block(rows, dx + n * l->D + v * BLOCK, l->D, columns_of(l->D, v), tile);
        }
    }
}
