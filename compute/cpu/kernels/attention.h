// Attention of one lane's queries over the steps of its source (compute.Attention).

// The sum of n products.
INLINE float inner(long n, const float *a, const float *b)
{
    vf sum = splat(0);
    long i = 0;
    for (; i + VW <= n; i += VW)
        sum = fused(load(a + i), load(b + i), sum);
    if (i < n)
        sum = fused(load_first(a + i, n - i), load_first(b + i, n - i), sum);
    return horizontal_sum(sum);
}

// y += f x.
INLINE void add_scaled(long n, float *y, float f, const float *x)
{
    long i = 0;
    for (; i + VW <= n; i += VW)
        store(y + i, fused(splat(f), load(x + i), load(y + i)));
    if (i < n)
        store_first(y + i, fused(splat(f), load_first(x + i, n - i), load_first(y + i, n - i)),
                    n - i);
}

// x = its softmax.
static void softmax(long n, float *x)
{
    float top = x[0], sum = 0;
    for (long i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (long i = 0; i < n; i += VW) {
        vf e = exponential(load_first(x + i, n - i) - splat(top));
        store_first(x + i, e, n - i);
    }
    for (long i = 0; i < n; i++)
        sum += x[i];
    scale(n, x, 1 / sum);
}

static void attend(const struct attention *a, long b)
{
    const long H = a->H, W = a->W, length = a->lengths[b];
    for (long t = 0; t < a->T; t++) {
        const float *q = a->q + (t * a->B + b) * H;
        float *weights = a->weights + (b * a->T + t) * a->S, *y = a->y + (t * a->B + b) * W;
        memset(weights, 0, a->S * sizeof *weights);
        memset(y, 0, W * sizeof *y);
        if (length == 0)
            continue;
        for (long s = 0; s < length; s++)
            weights[s] = inner(H, q, a->k + (s * a->B + b) * H);
        softmax(length, weights);
        for (long s = 0; s < length; s++)
            add_scaled(W, y, weights[s], a->v + (s * a->B + b) * W);
    }
}

static void attend_backward(const struct attention *a, long b)
{
    const long H = a->H, W = a->W;
    for (long s = 0; s < a->S; s++) {
        memset(a->dk + (s * a->B + b) * H, 0, H * sizeof *a->dk);
        memset(a->dv + (s * a->B + b) * W, 0, W * sizeof *a->dv);
    }
    for (long t = 0; t < a->T; t++) {
        const long row = t * a->B + b;
        const float *weights = a->weights + (b * a->T + t) * a->S, *q = a->q + row * H;
        const float *dy = a->dy + row * W;
        float *dq = a->dq + row * H, mean = inner(W, dy, a->y + row * W);
        memset(dq, 0, H * sizeof *dq);
        for (long s = 0; s < a->lengths[b]; s++) {
            const long at = s * a->B + b;
            const float d = weights[s] * (inner(W, dy, a->v + at * W) - mean);
            add_scaled(W, a->dv + at * W, weights[s], dy);
            add_scaled(H, dq, d, a->k + at * H);
            add_scaled(H, a->dk + at * H, d, q);
        }
    }
}
