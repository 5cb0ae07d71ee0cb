//go:build cgo

// Operations over flat vectors, shared over a team where they are long enough to be worth it.

#include <string.h>

#include "flat.h"

enum {
    LEAST = 1 << 17,          // elements below which a team takes longer than its caller alone
    GRAIN = 64,               // a share is a multiple of these elements: whole cache lines
    COLUMNS = 16,             // a share of a row is a multiple of these columns: one line
    SQUARES = 1 << 12,        // elements whose squares are summed at once
    SQUARES_AT_ONCE = 1 << 8, // such sums kept, and summed
};

// A call's arguments; each operation has its own meaning of them.
struct flat {
    const struct kernels *kernels;
    long rows, n, lanes;
    float a;
    float *y, *s1, *s2;
    const float *x;
    const int32_t *ids;
    const uint64_t *keys;
    const struct update *update;
    double *sums;
};

// The team for so many elements.
static struct team *worth(struct team *t, long elements) { return elements < LEAST ? 0 : t; }

static void add(void *with, const struct member *m)
{
    const struct flat *f = with;
    long i, end;
    rondo_share(m, f->n, GRAIN, &i, &end);
    f->kernels->add(end - i, f->y + i, f->x + i);
}

void rondo_add(const struct kernels *k, struct team *t, long n, float *y, const float *x)
{
    struct flat f = {.kernels = k, .n = n, .y = y, .x = x};
    rondo_team_run(worth(t, n), add, &f);
}

static void scale(void *with, const struct member *m)
{
    const struct flat *f = with;
    long i, end;
    rondo_share(m, f->n, GRAIN, &i, &end);
    f->kernels->scale(end - i, f->y + i, f->a);
}

void rondo_scale(const struct kernels *k, struct team *t, long n, float *x, float a)
{
    struct flat f = {.kernels = k, .n = n, .y = x, .a = a};
    rondo_team_run(worth(t, n), scale, &f);
}

static void clamp(void *with, const struct member *m)
{
    const struct flat *f = with;
    long i, end;
    rondo_share(m, f->n, GRAIN, &i, &end);
    f->kernels->clamp(end - i, f->y + i, f->a);
}

void rondo_clamp(const struct kernels *k, struct team *t, long n, float *x, float limit)
{
    struct flat f = {.kernels = k, .n = n, .y = x, .a = limit};
    rondo_team_run(worth(t, n), clamp, &f);
}

static void sum_squares(void *with, const struct member *m)
{
    const struct flat *f = with;
    long i, end;
    rondo_share(m, f->n, SQUARES, &i, &end);
    for (; i < end; i += SQUARES) {
        long some = end - i < SQUARES ? end - i : SQUARES;
        f->sums[i / SQUARES] = f->kernels->sum_squares(some, f->x + i);
    }
}

// The order of a sum of squares: over SQUARES elements, then over SQUARES_AT_ONCE such sums, then
// over these. It does not depend on the number of threads.
double rondo_sum_squares(const struct kernels *k, struct team *t, long n, const float *x)
{
    double sums[SQUARES_AT_ONCE], total = 0;
    for (long i = 0; i < n; i += (long)SQUARES * SQUARES_AT_ONCE) {
        long rest = n - i, most = (long)SQUARES * SQUARES_AT_ONCE;
        struct flat f = {.kernels = k, .n = rest < most ? rest : most, .x = x + i, .sums = sums};
        rondo_team_run(worth(t, f.n), sum_squares, &f);
        double part = 0;
        for (long j = 0; j * SQUARES < f.n; j++)
            part += sums[j];
        total += part;
    }
    return total;
}

static void update(void *with, const struct member *m)
{
    const struct flat *f = with;
    long i, end;
    rondo_share(m, f->n, GRAIN, &i, &end);
    f->kernels->update(f->update, end - i, f->y + i, f->x + i, f->s1 ? f->s1 + i : 0,
                       f->s2 ? f->s2 + i : 0);
}

void rondo_update(const struct kernels *k, struct team *t, struct update u, long n, float *p,
                  const float *g, float *s1, float *s2)
{
    struct flat f = {.kernels = k, .n = n, .y = p, .x = g, .s1 = s1, .s2 = s2, .update = &u};
    rondo_team_run(worth(t, n), update, &f);
}

static void add_bias(void *with, const struct member *m)
{
    const struct flat *f = with;
    long r, end;
    rondo_share(m, f->rows, 1, &r, &end);
    for (; r < end; r++)
        f->kernels->add(f->n, f->y + r * f->n, f->x);
}

void rondo_add_bias(const struct kernels *k, struct team *t, long rows, long n, float *x,
                    const float *b)
{
    struct flat f = {.kernels = k, .rows = rows, .n = n, .y = x, .x = b};
    rondo_team_run(worth(t, rows * n), add_bias, &f);
}

static void embed(void *with, const struct member *m)
{
    const struct flat *f = with;
    long r, end;
    rondo_share(m, f->rows, 1, &r, &end);
    for (; r < end; r++)
        memcpy(f->y + r * f->n, f->x + f->ids[r] * f->n, f->n * sizeof *f->y);
}

void rondo_embed(struct team *t, long rows, long n, float *y, const float *table,
                 const int32_t *ids)
{
    struct flat f = {.rows = rows, .n = n, .y = y, .x = table, .ids = ids};
    rondo_team_run(worth(t, rows * n), embed, &f);
}

// Each thread has some columns of all rows, so that a row of the table is summed in the order of
// the rows.
static void embed_backward(void *with, const struct member *m)
{
    const struct flat *f = with;
    long first, end;
    rondo_share(m, f->n, COLUMNS, &first, &end);
    for (long r = 0; r < f->rows && first < end; r++)
        f->kernels->add(end - first, f->y + f->ids[r] * f->n + first, f->x + r * f->n + first);
}

void rondo_embed_backward(const struct kernels *k, struct team *t, long rows, long n,
                          float *dtable, const float *dy, const int32_t *ids)
{
    struct flat f = {.kernels = k, .rows = rows, .n = n, .y = dtable, .x = dy, .ids = ids};
    rondo_team_run(worth(t, rows * n), embed_backward, &f);
}

static void dropout(void *with, const struct member *m)
{
    const struct flat *f = with;
    long r, end;
    rondo_share(m, f->rows, 1, &r, &end);
    f->kernels->dropout(r, end, f->lanes, f->n, f->y, f->x, f->a, f->keys);
}

void rondo_dropout(const struct kernels *k, struct team *t, long rows, long lanes, long n,
                   float *y, const float *x, float p, const uint64_t *keys)
{
    struct flat f = {.kernels = k, .rows = rows, .n = n, .lanes = lanes, .y = y, .x = x, .a = p,
                     .keys = keys};
    rondo_team_run(worth(t, rows * n), dropout, &f);
}

// The arguments of a copy of rows.
struct copy {
    const struct kernels *kernels;
    long rows, n, dst_row, src_row;
    float *dst;
    const float *src;
    const int32_t *ids;
    int add;
};

static void copy_rows(void *with, const struct member *m)
{
    const struct copy *c = with;
    long r, end;
    rondo_share(m, c->rows, 1, &r, &end);
    for (; r < end; r++) {
        float *to = c->dst + r * c->dst_row;
        long id = c->ids ? c->ids[r] : r;
        if (id < 0 && !c->add)
            memset(to, 0, c->n * sizeof *to);
        else if (id >= 0 && c->add)
            c->kernels->add(c->n, to, c->src + id * c->src_row);
        else if (id >= 0)
            memcpy(to, c->src + id * c->src_row, c->n * sizeof *to);
    }
}

void rondo_copy_rows(const struct kernels *k, struct team *t, long rows, long n, float *dst,
                     long dst_row, const float *src, long src_row, const int32_t *ids, int add)
{
    struct copy c = {k, rows, n, dst_row, src_row, dst, src, ids, add};
    rondo_team_run(worth(t, rows * n), copy_rows, &c);
}

// The poolings, in the order of compute.Pooling.
enum { MEAN_POOL, MAX_POOL };

struct pool {
    const struct kernels *kernels;
    int pooling;
    long steps, lanes, n;
    float *to; // y, or dx
    const float *x, *y, *dy;
    const int32_t *lengths;
};

static void pool(void *with, const struct member *m)
{
    const struct pool *p = with;
    const struct kernels *k = p->kernels;
    long b, end, n = p->n;
    rondo_share(m, p->lanes, 1, &b, &end);
    for (; b < end; b++) {
        const float *x = p->x + b * n;
        float *y = p->to + b * n;
        long length = p->lengths[b];
        if (length == 0) {
            memset(y, 0, n * sizeof *y);
            continue;
        }
        memcpy(y, x, n * sizeof *y);
        for (long t = 1; t < length; t++)
            (p->pooling == MAX_POOL ? k->largest : k->add)(n, y, x + t * p->lanes * n);
        if (p->pooling == MEAN_POOL)
            k->scale(n, y, 1 / (float)length);
    }
}

void rondo_pool(const struct kernels *k, struct team *t, int pooling, long lanes, long n,
                float *y, const float *x, const int32_t *lengths)
{
    struct pool p = {.kernels = k, .pooling = pooling, .lanes = lanes, .n = n, .to = y, .x = x,
                     .lengths = lengths};
    long steps = 0;
    for (long b = 0; b < lanes; b++)
        steps += lengths[b];
    rondo_team_run(worth(t, steps * n), pool, &p);
}

static void pool_backward(void *with, const struct member *m)
{
    const struct pool *p = with;
    long b, end, n = p->n, row = p->lanes * n;
    rondo_share(m, p->lanes, 1, &b, &end);
    for (; b < end; b++) {
        float *dx = p->to + b * n;
        const float *dy = p->dy + b * n;
        long length = p->lengths[b], t = 0;
        if (p->pooling == MAX_POOL && length > 0) {
            p->kernels->largest_backward(length, row, n, dx, dy, p->x + b * n, p->y + b * n);
            t = length;
        }
        for (; t < length; t++) {
            memcpy(dx + t * row, t ? dx : dy, n * sizeof *dx);
            if (t == 0)
                p->kernels->scale(n, dx, 1 / (float)length);
        }
        for (; t < p->steps; t++)
            memset(dx + t * row, 0, n * sizeof *dx);
    }
}

void rondo_pool_backward(const struct kernels *k, struct team *t, int pooling, long steps,
                         long lanes, long n, float *dx, const float *dy, const float *x,
                         const float *y, const int32_t *lengths)
{
    struct pool p = {k, pooling, steps, lanes, n, dx, x, y, dy, lengths};
    rondo_team_run(worth(t, steps * lanes * n), pool_backward, &p);
}

static void hyperbolic(void *with, const struct member *m)
{
    const struct flat *f = with;
    long i, end;
    rondo_share(m, f->n, GRAIN, &i, &end);
    if (f->x)
        f->kernels->tanh_backward(end - i, f->y + i, f->x + i);
    else
        f->kernels->function(2, end - i, f->y + i, f->y + i);
}

void rondo_tanh(const struct kernels *k, struct team *t, long n, float *x, const float *y)
{
    struct flat f = {.kernels = k, .n = n, .y = x, .x = y};
    rondo_team_run(worth(t, n), hyperbolic, &f);
}

struct lanes {
    const struct kernels *kernels;
    const struct attention *of;
};

static void attend(void *with, const struct member *m)
{
    const struct lanes *l = with;
    long b, end;
    rondo_share(m, l->of->B, 1, &b, &end);
    for (; b < end; b++)
        (l->of->dy ? l->kernels->attend_backward : l->kernels->attend)(l->of, b);
}

void rondo_attend(const struct kernels *k, struct team *t, struct attention a,
                  const int32_t *lengths)
{
    a.lengths = lengths;
    struct lanes l = {k, &a};
    rondo_team_run(worth(t, a.B * a.T * a.S * (a.H + a.W)), attend, &l);
}

struct norm {
    const struct kernels *kernels;
    const struct layer_norm *of;
};

static void norm_rows(void *with, const struct member *m)
{
    const struct norm *n = with;
    long r, end;
    rondo_share(m, n->of->rows, 1, &r, &end);
    (n->of->dy ? n->kernels->layer_norm_rows : n->kernels->layer_norm)(n->of, r, end);
}

static void norm_columns(void *with, const struct member *m)
{
    const struct norm *n = with;
    long first, end;
    rondo_share(m, n->of->width, COLUMNS, &first, &end);
    n->kernels->layer_norm_columns(n->of, first, end);
}

// The columns first, since the rows' dx may take the place of dy.
void rondo_layer_norm(const struct kernels *k, struct team *t, struct layer_norm of)
{
    struct norm n = {k, &of};
    struct team *some = worth(t, of.rows * of.width);
    if (of.dy)
        rondo_team_run(some, norm_columns, &n);
    rondo_team_run(some, norm_rows, &n);
}

void rondo_function(const struct kernels *k, int f, long n, float *y, const float *x)
{
    k->function(f, n, y, x);
}
