// The output layer: logits of a chunk of rows, their softmax cross-entropy and its gradient.

// Added where there is no token: far below any logit, and its difference from one is finite.
static const float NO_TOKEN = -1e30f;

// The log of the softmax at the target of row r, negated. With a gradient to make, turns the row
// into scale (softmax - onehot(target)); a negative target makes both zero.
static double softmax_row(struct head *o, long r, int32_t target, float scale, int gradient)
{
    float *row = o->logits + r * BLOCK;
    long block = o->S * BLOCK;
    if (target < 0) {
        for (long v = 0; gradient && v < o->Y; v++)
            memset(row + v * block, 0, BLOCK * sizeof *row);
        return 0;
    }
    vf top = splat(NO_TOKEN), sum = splat(0);
    for (long v = 0; v < o->Y; v++)
        for (int j = 0; j < BLOCK; j += VW)
            top = larger(top, load(row + v * block + j)); // a NaN that this loses comes back in sum
    float largest = horizontal_largest(top);
    float *wanted = row + target / BLOCK * block + target % BLOCK;
    double loss = (double)largest - *wanted;
    for (long v = 0; v < o->Y; v++)
        for (int j = 0; j < BLOCK; j += VW) {
            vf e = exponential(load(row + v * block + j) - splat(largest));
            store(row + v * block + j, e);
            sum += e;
        }
    float total = horizontal_sum(sum);
    if (gradient) {
        for (long v = 0; v < o->Y; v++)
            for (int j = 0; j < BLOCK; j += VW)
                store(row + v * block + j, load(row + v * block + j) * splat(scale / total));
        *wanted -= scale;
    }
    return loss + log(total);
}

static void pack_head(struct head *o, const float *w, const float *b, int gradient)
{
    long depth = o->U * BLOCK;
    for (long v = 0; v < o->Y; v++) {
        long tokens = columns_of(o->V, v);
        transpose_to_block((float *)o->weights + v * depth * BLOCK, w + v * BLOCK * o->H, tokens, o->H,
                           o->H, depth);
        for (long j = 0; j < BLOCK; j++)
            o->bias[v * BLOCK + j] = j >= tokens ? NO_TOKEN : b ? b[v * BLOCK + j] : 0;
    }
    for (long u = 0; gradient && u < o->U; u++) {
        float *back = (float *)o->weights_back + u * o->Y * BLOCK * BLOCK;
        to_block(o->V, back, w + u * BLOCK, o->H, columns_of(o->H, u));
        memset(back + o->V * BLOCK, 0, (o->Y * BLOCK - o->V) * BLOCK * sizeof *back);
    }
}

// The gradients that a chunk of n rows from `first` on gives.
static void head_gradients(struct head *o, long first, long n, float *dx, float *dw, float *db)
{
    long block = o->S * BLOCK;
    for (long u = 0; u < o->U; u++) {
        memset(o->tile, 0, n * BLOCK * sizeof *o->tile);
        product(n, o->tile, o->logits, block, o->Y, (float *)o->weights_back + u * o->Y * BLOCK * BLOCK);
        from_block(n, dx + first * o->H + u * BLOCK, o->H, columns_of(o->H, u), o->tile);
    }
    for (long r = 0; r < n; r += GRADIENT_ROWS)
        for (long v = 0; v < o->Y; v++)
            for (long u = 0; u < o->U; u++)
                outer(dw + v * BLOCK * o->H + u * BLOCK, o->H, columns_of(o->V, v),
                      columns_of(o->H, u), o->logits + v * block + r * BLOCK,
                      o->x + u * block + r * BLOCK, least(GRADIENT_ROWS, n - r), first + r > 0);
    for (long v = 0; db && v < o->Y; v++) {
        float sums[BLOCK];
        for (int col = 0; col < BLOCK; col += VW) {
            vf sum = splat(0);
            for (long r = 0; r < n; r++)
                sum += load(o->logits + v * block + r * BLOCK + col);
            store(sums + col, sum);
        }
        for (long j = 0; j < columns_of(o->V, v); j++)
            db[v * BLOCK + j] += sums[j];
    }
}

// The summed loss; the gradients too unless dx is null.
static void head_run(const struct member *m, struct head *o, const struct head_call *call)
{
    const float *x = call->x, *w = call->w, *b = call->b;
    const int32_t *targets = call->targets;
    float scale = call->scale, *dx = call->dx, *dw = call->dw, *db = call->db;
    if (m->index)
        return;
    double loss = 0;
    long block = o->S * BLOCK;
    pack_head(o, w, b, dx != 0);
    if (db)
        memset(db, 0, o->V * sizeof *db);
    for (long first = 0; first < o->N; first += o->rows) {
        long n = least(o->rows, o->N - first);
        for (long u = 0; u < o->U; u++)
            to_block(n, o->x + u * block, x + first * o->H + u * BLOCK, o->H,
                     columns_of(o->H, u));
        for (long v = 0; v < o->Y; v++) {
            for (long r = 0; r < n; r++)
                memcpy(o->logits + v * block + r * BLOCK, o->bias + v * BLOCK,
                       BLOCK * sizeof *o->bias);
            product(n, o->logits + v * block, o->x, block, o->U,
                    (float *)o->weights + v * o->U * BLOCK * BLOCK);
        }
        for (long r = 0; r < n; r++)
            loss += softmax_row(o, r, targets[first + r], scale, dx != 0);
        if (dx)
            head_gradients(o, first, n, dx, dw, db);
    }
    o->loss = loss;
}
