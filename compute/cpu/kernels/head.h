// The output layer: logits, their softmax cross-entropy and its gradient, in two passes over the
// vocabulary. The first computes a strip's logits, replaces them by e^(logit-top) while they are in
// cache, where top is the row's largest logit of the strip, and updates every row's largest logit
// and sum (the online softmax of Milakov and Gimelshein, arXiv:1805.02867). The second computes a
// strip's gradient as operands and multiplies it by the weights and by the input.
//
// Each thread has some rows of a chunk. For the weights' gradient it has some blocks instead.

// The bias of columns past the vocabulary: far below any logit, yet their difference is finite.
static const float NO_TOKEN = -1e30f;

// HEAD_DEPTH: rows that the weights' gradient sums at a time. HEAD_PACK: blocks of depth that a
// thread packs at a time.
enum { HEAD_DEPTH = 640, HEAD_PACK = 4 };

// The chunk of rows and the strip of tokens that a thread works on.
struct place {
    const struct member *m;
    struct head *o;
    const struct head_call *c;
    long first, n, depth; // the chunk's first row, its rows, and its rows padded to pairs
    long begin, end;      // this thread's rows of `depth`
    long v, blocks;       // the strip's first block, and its blocks
    int turn;             // the strip's weights are in pack 0 or 1
};

INLINE long head_rows(const struct place *p, long r, long most)
{
    long rows = (p->end < p->n ? p->end : p->n) - r;
    return rows < 0 ? 0 : rows < most ? rows : most;
}

// Converts this thread's rows of x to operands.
static void load_rows(const struct place *p)
{
    struct head *o = p->o;
    long n = head_rows(p, p->begin, p->end), rest = p->end - p->begin - n;
    for (long u = 0; u < o->U; u++) {
        const float *x = p->c->x + (p->first + p->begin) * o->H + u * BLOCK;
        operand *rows = (operand *)o->x_rows + (u * o->S + p->begin) * BLOCK;
        put_rows(n, rows, x, o->H, columns_of(o->H, u));
        if (!p->c->dx)
            continue;
        operand *pairs = (operand *)o->x_pairs + (u * o->S + p->begin) * BLOCK;
        if (BF16)
            put_pairs(n, pairs, x, o->H, columns_of(o->H, u));
        if (rest > BF16)
            memset(pairs + (n + (n & BF16)) * BLOCK, 0,
                   (rest - (n & BF16)) * BLOCK * sizeof *pairs);
    }
}

INLINE float *strip_bias(const struct place *p, long v)
{
    return p->o->bias + (p->turn * p->o->strip + v) * BLOCK;
}

// The panel of block v of the strip, from block u of its depth on.
INLINE operand *strip_panel(const struct place *p, long v, long u)
{
    const struct head *o = p->o;
    return (operand *)o->weights +
           (((p->turn * o->strip + v) * o->U + u) * BLOCK) * BLOCK;
}

// Packs this thread's share of a strip's weights, for the logits or for dx or for both.
static void pack_strip(const struct place *p, int logits, int back)
{
    struct head *o = p->o;
    long parts = blocks_up(o->U, HEAD_PACK), begin, end;
    rondo_share(p->m, p->blocks * parts, 1, &begin, &end);
    for (long i = begin; i < end; i++) {
        long v = i / parts, u = i % parts * HEAD_PACK, blocks = least(HEAD_PACK, o->U - u);
        long tokens = columns_of(o->V, p->v + v), units = least(blocks * BLOCK, o->H - u * BLOCK);
        const float *w = p->c->w + (p->v + v) * BLOCK * o->H + u * BLOCK;
        if (logits)
            pack_columns(strip_panel(p, v, u), w, tokens, units, o->H, blocks * BLOCK);
        for (long j = 0; back && j < blocks; j++)
            pack_rows((operand *)o->weights_back + ((u + j) * p->blocks + v) * BLOCK * BLOCK,
                      w + j * BLOCK, tokens, o->H, columns_of(units, j), BLOCK);
        if (!logits || u > 0)
            continue;
        const float *b = p->c->b ? p->c->b + (p->v + v) * BLOCK : 0;
        for (long j = 0; j < BLOCK; j++)
            strip_bias(p, v)[j] = j >= tokens ? NO_TOKEN : b ? b[j] : 0;
    }
}

// The strip's logits of rows r on. *block: floats from one block to the next.
INLINE float *logits_at(const struct place *p, long r, long *block)
{
    const struct head *o = p->o;
    *block = (o->kept ? o->S : HEAD_TILE) * BLOCK;
    return o->kept ? o->logits + (p->v * o->S + r) * BLOCK
                   : o->logits + p->m->index * o->strip * HEAD_TILE * BLOCK;
}

// Computes the strip's logits of n rows from r on.
static void multiply(const struct place *p, long r, long n)
{
    struct head *o = p->o;
    long block;
    float *logits = logits_at(p, r, &block);
    for (long v = 0, some; v < p->blocks; v += some, logits += some * block) {
        some = least(PRODUCTS, p->blocks - v);
        for (long j = 0; j < some; j++)
            for (long i = 0; i < n; i++)
                copy_row(logits + j * block + i * BLOCK, strip_bias(p, v + j));
        products(some, n, logits, block, (operand *)o->x_rows + r * BLOCK, o->S * BLOCK, o->U,
                 strip_panel(p, v, 0), o->U * BLOCK * BLOCK);
    }
}

INLINE float largest_in(const float *row, long block, long blocks)
{
    vf top = splat(NO_TOKEN);
    for (long v = 0; v < blocks; v++)
        for (int j = 0; j < BLOCK; j += VW)
            top = larger(top, load(row + v * block + j)); // a NaN that this loses comes back in sum
    return horizontal_largest(top);
}

// Replaces a row of logits by e^(logit-top), and returns their sum.
INLINE float exp_row(float *row, long block, long blocks, float top)
{
    vf sum = splat(0);
    for (long v = 0; v < blocks; v++)
        for (int j = 0; j < BLOCK; j += VW) {
            vf e = exponential(load(row + v * block + j) - splat(top));
            store(row + v * block + j, e);
            sum += e;
        }
    return horizontal_sum(sum);
}

// The sum of a row's first n logits.
INLINE float sum_row(const float *row, long block, long n)
{
    float sum = 0;
    for (; n > 0; n -= BLOCK, row += block)
        for (long j = 0; j < BLOCK && j < n; j++)
            sum += row[j];
    return sum;
}

INLINE void clear_row(float *row, long block, long blocks)
{
    for (long v = 0; v < blocks; v++)
        memset(row + v * block, 0, BLOCK * sizeof *row);
}

// Merges a group of rows' largest logits and sums in the strip with those of the strips before it.
INLINE void merge_sums(const struct place *p, long r, const float *tops, const float *sums)
{
    struct head *o = p->o;
    for (int i = 0; i < HEAD_GROUP; i += VW) {
        vf top = load(tops + i), sum = load(sums + i);
        if (o->kept)
            store(o->tops + p->v / o->strip * o->S + r + i, top);
        if (p->v > 0) {
            vf before = load(o->top + r + i), both = larger(before, top);
            sum = load(o->sum + r + i) * exponential(before - both) +
                  sum * exponential(top - both);
            top = both;
        }
        store(o->top + r + i, top);
        store(o->sum + r + i, sum);
    }
}

// The strip's tokens.
INLINE long strip_tokens(const struct place *p)
{
    return least(p->blocks * BLOCK, p->o->V - p->v * BLOCK);
}

// Replaces the strip's logits of n rows from r on by e^(logit-top), with the strip's top, and a row
// without a target by zeros.
static void exp_strip(const struct place *p, long r, long n)
{
    struct head *o = p->o;
    const int32_t *targets = p->c->targets + p->first;
    long block;
    float *logits = logits_at(p, r, &block);
    for (long g = 0; g < n; g += HEAD_GROUP) {
        float tops[HEAD_GROUP] = {0}, sums[HEAD_GROUP] = {0};
        for (long i = 0; i < HEAD_GROUP && g + i < n; i++) {
            float *row = logits + (g + i) * BLOCK;
            long target = targets[r + g + i], at = target - p->v * BLOCK;
            if (target < 0) {
                clear_row(row, block, p->blocks);
                sums[i] = 1;
                continue;
            }
            if (at >= 0 && at < p->blocks * BLOCK)
                o->target_logit[r + g + i] = row[at / BLOCK * block + at % BLOCK];
            if (p->c->smoothing > 0)
                o->total[r + g + i] = (p->v > 0 ? o->total[r + g + i] : 0) +
                                      sum_row(row, block, strip_tokens(p));
            tops[i] = largest_in(row, block, p->blocks);
            sums[i] = exp_row(row, block, p->blocks, tops[i]);
        }
        merge_sums(p, r + g, tops, sums);
    }
}

// Computes the strip's logits of n rows from r on again, and e^(logit-top) with the top of all
// strips.
static void recompute_strip(const struct place *p, long r, long n)
{
    long block;
    float *row = logits_at(p, r, &block);
    multiply(p, r, n);
    for (long i = 0; i < n; i++, row += BLOCK)
        if (p->c->targets[p->first + r + i] < 0)
            clear_row(row, block, p->blocks);
        else
            exp_row(row, block, p->blocks, p->o->top[r + i]);
}

// The loss of this thread's rows.
static void row_losses(const struct place *p)
{
    struct head *o = p->o;
    for (long r = p->begin; r < p->end && r < p->n; r++) {
        double wanted = o->target_logit[r];
        if (p->c->smoothing > 0)
            wanted += p->c->smoothing * ((double)o->total[r] / o->V - wanted);
        o->losses[r] = p->c->targets[p->first + r] < 0
                           ? 0
                           : (double)o->top[r] - wanted + log(o->sum[r]);
    }
}

// The factors from the strip's e^(logit-top) to scale * softmax, for a tile of rows.
INLINE void scales(const struct place *p, long r, float *to)
{
    const struct head *o = p->o;
    for (long i = 0; i < HEAD_TILE && r + i < p->end; i += VW) {
        vf share = splat(p->c->scale) / load(o->sum + r + i);
        if (o->kept)
            share *= exponential(load(o->tops + p->v / o->strip * o->S + r + i) -
                                 load(o->top + r + i));
        store(to + i, share);
    }
}

// d: the gradient scale * (softmax - wanted) of a group's n rows and a block of tokens from `token`
// on, the other rows zeros; wanted = (1-smoothing) * onehot(target) + smoothing/V. bias: its sum.
INLINE void group_gradient(const struct place *p, long r, long n, const float *logits,
                       const float *to, long token, float *d, float *bias)
{
    const int32_t *targets = p->c->targets + p->first + r;
    float each = p->c->scale * p->c->smoothing / p->o->V;
    for (long i = 0; i < n; i++) {
        vf less = splat(targets[i] < 0 ? 0 : each); // also where there is no token: unused
        for (int j = 0; j < BLOCK; j += VW)
            store(d + i * BLOCK + j, load(logits + i * BLOCK + j) * splat(to[i]) - less);
    }
    memset(d + n * BLOCK, 0, (HEAD_GROUP - n) * BLOCK * sizeof *d);
    for (long i = 0; i < n; i++)
        if (targets[i] >= token && targets[i] < token + BLOCK)
            d[i * BLOCK + targets[i] - token] -= p->c->scale * (1 - p->c->smoothing);
    for (int j = 0; j < BLOCK; j += VW) {
        vf sum = load(d + j);
        for (long i = 1; i < HEAD_GROUP; i++)
            sum += load(d + i * BLOCK + j);
        store(bias + j, sum);
    }
}

// Computes the strip's gradient for a tile of rows from r on, as operands, and its sums over groups
// of rows for the bias.
static void strip_gradient(const struct place *p, long r)
{
    struct head *o = p->o;
    float to[HEAD_TILE], d[HEAD_GROUP * BLOCK] __attribute__((aligned(64)));
    long block;
    const float *logits = logits_at(p, r, &block);
    scales(p, r, to);
    for (long v = 0; v < p->blocks; v++, logits += block)
        for (long g = 0; g < HEAD_TILE && r + g < p->end; g += HEAD_GROUP) {
            long at = (v * o->S + r + g) * BLOCK;
            group_gradient(p, r + g, head_rows(p, r + g, HEAD_GROUP), logits + g * BLOCK, to + g,
                       (p->v + v) * BLOCK, d,
                       o->dbias + ((r + g) / HEAD_GROUP * o->strip + v) * BLOCK);
            put_rows(HEAD_GROUP, (operand *)o->d_rows + at, d, BLOCK, BLOCK);
            if (BF16)
                put_pairs(HEAD_GROUP, (operand *)o->d_pairs + at, d, BLOCK, BLOCK);
        }
}

// Adds the strip's part of dx of n rows from r on.
static void multiply_back(const struct place *p, long r, long n)
{
    struct head *o = p->o;
    const int last = p->v + p->blocks == o->Y, only = last && p->v == 0;
    const long panel = p->blocks * BLOCK * BLOCK, block = (only ? HEAD_TILE : o->S) * BLOCK;
    float *dx = o->dx + (only ? p->m->index * PRODUCTS * HEAD_TILE : r) * BLOCK;
    for (long u = 0, some; u < o->U; u += some) {
        float *sums = only ? dx : dx + u * block;
        some = least(PRODUCTS, o->U - u);
        for (long j = 0; p->v == 0 && j < some; j++)
            memset(sums + j * block, 0, n * BLOCK * sizeof *sums);
        products(some, n, sums, block, (operand *)o->d_rows + r * BLOCK, o->S * BLOCK, p->blocks,
                 (operand *)o->weights_back + u * panel, panel);
        for (long j = 0; last && j < some; j++)
            from_block(n, p->c->dx + (p->first + r) * o->H + (u + j) * BLOCK, o->H,
                       columns_of(o->H, u + j), sums + j * block);
    }
}

// The bias's gradient of the strip's block v.
static void sum_bias(const struct place *p, long v)
{
    struct head *o = p->o;
    float sums[BLOCK] = {0}, *db = p->c->db + (p->v + v) * BLOCK;
    for (long g = 0; g < p->depth / HEAD_GROUP; g++) {
        const float *part = o->dbias + (g * o->strip + v) * BLOCK;
        for (int j = 0; j < BLOCK; j += VW)
            store(sums + j, load(sums + j) + load(part + j));
    }
    for (long j = 0; j < columns_of(o->V, p->v + v); j++)
        db[j] = p->first > 0 ? db[j] + sums[j] : sums[j];
}

// This thread's share of the blocks of the weights' gradient, over all rows of the chunk.
static void sum_weights(const struct place *p)
{
    struct head *o = p->o;
    long begin, end;
    rondo_share(p->m, p->blocks * o->U, 1, &begin, &end);
    for (long r = 0; r < p->depth; r += HEAD_DEPTH)
        for (long i = begin, run; i < end; i += run) {
            long v = i / o->U, u = i % o->U;
            run = least(end - i, o->U - u);
            outers(p->c->dw + (p->v + v) * BLOCK * o->H + u * BLOCK, o->H,
                   columns_of(o->V, p->v + v), least(run * BLOCK, o->H - u * BLOCK),
                   (operand *)o->d_pairs + (v * o->S + r) * BLOCK,
                   (operand *)o->x_pairs + (u * o->S + r) * BLOCK, o->S * BLOCK,
                   least(HEAD_DEPTH, p->depth - r), p->first + r > 0);
        }
    for (long i = begin; p->c->db && i < end; i++)
        if (i % o->U == 0)
            sum_bias(p, i / o->U);
}

// The first pass over a strip.
static void strip_forward(struct place *p)
{
    struct head *o = p->o;
    pack_strip(p, 1, p->c->dx && p->blocks == o->Y);
    rondo_team_meet(p->m);
    for (long r = p->begin; r < p->end; r += HEAD_TILE) {
        long n = head_rows(p, r, HEAD_TILE);
        multiply(p, r, n);
        exp_strip(p, r, n);
    }
    p->turn ^= 1; // no thread reads the other pack after the meeting
}

// The second pass over a strip. The weights of an only strip are still packed.
static void strip_backward(struct place *p)
{
    struct head *o = p->o;
    if (p->blocks < o->Y) {
        pack_strip(p, !o->kept, 1);
        rondo_team_meet(p->m);
    }
    for (long r = p->begin; r < p->end; r += HEAD_TILE) {
        long n = head_rows(p, r, HEAD_TILE);
        if (!o->kept)
            recompute_strip(p, r, n);
        strip_gradient(p, r);
        multiply_back(p, r, n);
    }
    rondo_team_meet(p->m);
    sum_weights(p);
    p->turn ^= 1;
}

// Computes the summed loss, and unless dx is null the gradients.
static void head_run(const struct member *m, struct head *o, const struct head_call *c)
{
    struct place p = {.m = m, .o = o, .c = c};
    double loss = 0;
    for (; p.first < c->n; p.first += o->rows) {
        p.n = least(o->rows, c->n - p.first);
        p.depth = blocks_up(p.n, HEAD_PAIRS) * HEAD_PAIRS;
        rondo_share(m, p.depth, HEAD_GROUP, &p.begin, &p.end);
        load_rows(&p);
        for (p.v = 0; p.v < o->Y; p.v += o->strip) {
            p.blocks = least(o->strip, o->Y - p.v);
            strip_forward(&p);
        }
        row_losses(&p);
        for (p.v = 0; c->dx && p.v < o->Y; p.v += o->strip) {
            p.blocks = least(o->strip, o->Y - p.v);
            strip_backward(&p);
        }
        rondo_team_meet(m);
        for (long r = 0; m->index == 0 && r < p.n; r++)
            loss += o->losses[r];
    }
    if (m->index == 0)
        o->loss = loss;
}
