// Kernels over flat vectors: whole vectors first, then the rest, one by one or as a vector of which
// the first elements count. An element's arithmetic does not depend on its place or on the
// instruction set: nothing is fused.

static void add(long n, float *y, const float *x)
{
    long i = 0;
    for (; i + VW <= n; i += VW)
        store(y + i, load(y + i) + load(x + i));
    for (; i < n; i++)
        y[i] += x[i];
}

static void scale(long n, float *x, float a)
{
    long i = 0;
    for (; i + VW <= n; i += VW)
        store(x + i, load(x + i) * splat(a));
    for (; i < n; i++)
        x[i] *= a;
}

static void clamp(long n, float *x, float bound)
{
    long i = 0;
    for (; i + VW <= n; i += VW)
        store(x + i, limit(load(x + i), -bound, bound));
    store_first(x + i, limit(load_first(x + i, n - i), -bound, bound), n - i);
}

// 16 sums in float64, of every 16th element each, added up in order. A float's square is exact in
// float64.
static double sum_squares(long n, const float *restrict x)
{
    enum { LANES = 16 };
    double sum[LANES] = {0}, total = 0;
    long i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            sum[j] += (double)x[i + j] * x[i + j];
    for (int j = 0; i + j < n; j++)
        sum[j] += (double)x[i + j] * x[i + j];
    for (int j = 0; j < LANES; j++)
        total += sum[j];
    return total;
}

// Rows first to end-1 of x, y: [.., h], row r being lane r % lanes at step r / lanes;
// compute.DropoutKeep's hash, whose upper 24 bits as a fraction are compared with p. A row's h
// elements are consecutive indices.
static void dropout(long first, long end, long lanes, long h, float *y, const float *x, float p,
                    const uint64_t *keys)
{
    const float kept = 1 / (1 - p);
    const uint64_t odd = 0x9E3779B97F4A7C15u, lowest = (uint64_t)ceilf(p * 0x1p24f);
    for (long r = first; r < end; r++) {
        uint64_t start = keys[r % lanes] + (uint64_t)(r / lanes * h + 1) * odd;
        const float *from = x + r * h;
        float *to = y + r * h;
        for (long j = 0; j < h; j++) {
            uint64_t z = start + (uint64_t)j * odd;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            z ^= z >> 31;
            to[j] = z >> 40 >= lowest ? from[j] * kept : 0;
        }
    }
}

// dy = dy (1 - y y).
static void tanh_backward(long n, float *dy, const float *y)
{
    for (long i = 0; i < n; i += VW) {
        vf v = load_first(y + i, n - i);
        store_first(dy + i, load_first(dy + i, n - i) * (splat(1) - v * v), n - i);
    }
}

// y = the larger of y and x, or NaN if one is.
static void largest(long n, float *y, const float *x)
{
    for (long i = 0; i < n; i += VW) {
        vf was = load_first(y + i, n - i), other = load_first(x + i, n - i);
        vi keep = (was >= other) | (was != was);
        store_first(y + i, (vf)(((vi)was & keep) | ((vi)other & ~keep)), n - i);
    }
}

// dx: n columns of so many steps, row elements apart: dy in the first step in which x is not below
// y, and 0 in the others.
static void largest_backward(long steps, long row, long n, float *dx, const float *dy,
                             const float *x, const float *y)
{
    for (long j = 0; j < n; j += VW) {
        vf left = load_first(dy + j, n - j), top = load_first(y + j, n - j);
        for (long at = j; at < steps * row; at += row) {
            vi takes = ~(vi)(load_first(x + at, n - j) < top);
            store_first(dx + at, (vf)((vi)left & takes), n - j);
            left = (vf)((vi)left & ~takes);
        }
    }
}

// f is 0 (exp), 1 (sigmoid) or 2 (tanh).
static void function(int f, long n, float *y, const float *x)
{
    for (long i = 0; i < n; i += VW) {
        vf v = load_first(x + i, n - i);
        store_first(y + i, f == 0 ? exponential(v) : f == 1 ? sigmoid(v) : tangent(v), n - i);
    }
}
