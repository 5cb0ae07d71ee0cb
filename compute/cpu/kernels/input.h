// The input side of a recurrent layer: the terms that it adds to all steps' sums before the
// recurrence, and their gradients. Token ids pick rows of a table; dense rows go through a product.

// Bytes of a dense input that go through the weights at a time, so that they stay in cache.
enum { INPUT_BYTES = 1 << 19 };

// Sets n rows to the bias of gate block i.
static void start_rows(const struct layer *l, float *restrict rows, long i, long n)
{
    const float *restrict bias = l->bias + i * BLOCK;
    for (long r = 0; r < n; r++)
        copy_row(rows + r * BLOCK, bias);
}

// For ids: gives each of the segment's tokens a row of the table. A table with a row for every
// token of the vocabulary needs no numbers.
static void number_ids(struct input *in, long n, const int32_t *ids)
{
    if (!in->compact) {
        in->slots = ids;
        return;
    }
    in->tokens = 0;
    for (long i = 0; i < n; i++) {
        if (!in->slot_of[ids[i]]) {
            in->token[in->tokens] = ids[i];
            in->slot_of[ids[i]] = ++in->tokens;
        }
        in->numbers[i] = in->slot_of[ids[i]] - 1;
    }
    for (long r = 0; r < in->tokens; r++)
        in->slot_of[in->token[r]] = 0;
    in->slots = in->numbers;
}

// Row r of block i of the table.
INLINE float *table_at(const struct layer *l, long i, long r)
{
    return l->in->table + (i * l->in->rows_kept + r) * BLOCK;
}

// Fills the table [K*U][rows][BLOCK]: the terms that a token adds to the sums, biases included.
static void fill_table(const struct member *m, struct layer *l, const float *ih)
{
    const struct input *in = l->in;
    long i, end;
    for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++) {
        long units = columns_of(l->H, i % l->U);
        const float *w = ih + (i / l->U * l->H + i % l->U * BLOCK) * l->D;
        if (in->compact)
            for (long j = 0; j < BLOCK; j++)
                for (long r = 0; r < in->tokens; r++)
                    table_at(l, i, r)[j] = j < units ? w[j * l->D + in->token[r]] : 0;
        else
            transpose_to_block(table_at(l, i, 0), w, units, l->D, l->D, l->D);
        for (long r = 0; r < in->tokens; r++)
            for (int j = 0; j < BLOCK; j += VW)
                add_to(table_at(l, i, r) + j, load(l->bias + i * BLOCK + j));
    }
}

// Dense input as operands: steps of its blocks to each thread. Pairs begin each step anew.
static void put_input(const struct member *m, struct layer *l, const float *x)
{
    long i, end;
    for (rondo_share(m, l->X * l->T, 1, &i, &end); i < end; i++) {
        long v = i / l->T, t = i % l->T, n = columns_of(l->D, v);
        const float *from = x + t * l->B * l->D + v * BLOCK;
        put_rows(l->B, operands_at(&l->in->rows, v, t, 0), from, l->D, n);
        if (BF16 && !l->inference)
            put_pairs(l->B, operands_at(&l->in->pairs, v, t, 0), from, l->D, n);
    }
}

// The number of rows, each of so many blocks, to multiply by the weights at a time.
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
        for (long i = first, some; i < end; i += some) {
            some = least(PRODUCTS, end - i);
            for (long j = i; j < i + some; j++)
                start_rows(l, sums_at(l, j, n), j, rows);
            products(some, rows, sums_at(l, i, n), l->gates.stride * BLOCK,
                     operands_at(x, 0, 0, n), x->stride * BLOCK, l->X,
                     (operand *)l->in->panels + i * depth * BLOCK, depth * BLOCK);
        }
    }
}

static void zero_table(const struct member *m, struct layer *l)
{
    long i, end;
    for (rondo_share(m, l->K * l->U, 1, &i, &end); i < end; i++)
        memset(table_at(l, i, 0), 0, l->in->tokens * BLOCK * sizeof *l->in->table);
}

// Adds a strip's gradients of the sums of gate g to the table's rows of its ids.
static void scatter(struct layer *l, long g, const struct strip *s)
{
    float *table = table_at(l, g * l->U + s->u, 0);
    const float *d = gradient_at(l, apart(l, g), s);
    const int32_t *slots = l->in->slots + s->t * l->B + s->b;
    for (long b = 0; b < s->lanes; b++)
        for (int j = 0; j < BLOCK; j += VW)
            add_to(table + slots[b] * BLOCK + j, load(d + b * BLOCK + j));
}

// Adds step t to the gradient of W_ih from ids. A thread adds the units that it has. Threads that
// have lanes divide the units for this, so that each sum has one owner and one order.
static void scatter_step(const struct member *m, const struct field *f, struct layer *l, long t)
{
    long i = 0, end = l->K * (f->ue - f->u);
    if (f->apart) {
        rondo_team_meet(m);
        rondo_share(m, l->K * l->U, 1, &i, &end);
    }
    for (; i < end; i++) {
        struct strip s = {t, f->u + i / l->K, 0, l->B};
        scatter(l, i % l->K, &s);
    }
}

// The gradient of W_ih's rows for block i of the gates, from the table's.
static void table_gradient(const struct layer *l, long i, float *dih)
{
    const struct input *in = l->in;
    long units = columns_of(l->H, i % l->U);
    dih += (i / l->U * l->H + i % l->U * BLOCK) * l->D;
    if (!in->compact) {
        transpose(dih, l->D, table_at(l, i, 0), BLOCK, l->D, units);
        return;
    }
    memset(dih, 0, units * l->D * sizeof *dih);
    for (long j = 0; j < units; j++)
        for (long r = 0; r < in->tokens; r++)
            dih[j * l->D + in->token[r]] = table_at(l, i, r)[j];
}

// dx: [N, D], from the input side's gradients: rows of it to each thread.
static void input_gradient(const struct member *m, struct layer *l, float *dx)
{
    const struct tensor *d = &l->d_rows;
    const operand *panels = l->in->back;
    float *tile = l->tile + m->index * l->tile_rows * BLOCK;
    const long size = l->U * BLOCK * BLOCK; // of a gate's panel
    long chunk = rows_at_once(l->K * l->U), n, end;
    for (rondo_share(m, l->N, 16, &n, &end); n < end; n += chunk) {
        long rows = least(chunk, end - n), most = least(PRODUCTS, l->tile_rows / rows);
        for (long v = 0, some; v < l->X; v += some) {
            some = least(most, l->X - v);
            memset(tile, 0, some * rows * BLOCK * sizeof *tile);
            for (long g = 0; g < l->K; g++)
                products(some, rows, tile, rows * BLOCK,
                         operands_at(d, apart(l, g) * l->U, 0, n), d->stride * BLOCK, l->U,
                         panels + (v * l->K + g) * size, l->K * size);
            for (long j = 0; j < some; j++)
                from_block(rows, dx + n * l->D + (v + j) * BLOCK, l->D, columns_of(l->D, v + j),
                           tile + j * rows * BLOCK);
        }
    }
}
