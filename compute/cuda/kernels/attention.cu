// Attention of a decoder's queries over the steps of their lanes' sources. A warp has a row, so that
// a lane's keys and values are read from the L2 cache once per query.
#include "sums.cuh"

// x = tanh(x).
KERNEL(attention_tanh, int64_t n, float *x)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        x[i] = tanhf(x[i]);
}

// dy = dy (1 - y y).
KERNEL(attention_tanh_backward, int64_t n, float *dy, const float *y)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        dy[i] *= 1 - y[i] * y[i];
}

// The rows, one warp each, in turn.
template <class F> DEVICE void each_row(int64_t rows, F of)
{
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows;
         row += warps)
        of(row);
}

// The sum of n products, in every thread of the warp.
DEVICE float dot(int n, const float *a, const float *b)
{
    float sum = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32)
        sum += a[i] * b[i];
    return sums::warp_sum(sum);
}

// y: n columns = the sum of so many rows of x, gap apart, with weights gap apart.
DEVICE void weighted(int n, float *y, int rows, const float *x, int64_t x_gap, const float *weights,
                     int64_t weights_gap)
{
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        float sum = 0;
#pragma unroll 4
        for (int r = 0; r < rows; r++)
            sum += weights[r * weights_gap] * x[r * x_gap + i];
        y[i] = sum;
    }
}

// A row is a query: [T, B]. q: [T, B, H], k: [S, B, H], v: [S, B, W], weights: [B, T, S],
// y: [T, B, W].
KERNEL(attention_forward, int T, int S, int B, int H, int W, const int *lengths, const float *q,
       const float *k, const float *v, float *weights, float *y)
{
    const int lane = threadIdx.x % 32;
    each_row((int64_t)T * B, [=](int64_t row) {
        const int b = row % B, length = lengths[b];
        float *w = weights + ((int64_t)b * T + row / B) * S;
        float top = -INFINITY, sum = 0;
        for (int s = 0; s < length; s++) {
            const float score = dot(H, q + row * H, k + ((int64_t)s * B + b) * H);
            top = score > top ? score : top;
            if (lane == 0)
                w[s] = score;
        }
        __syncwarp();
        for (int s = lane; s < length; s += 32) {
            w[s] = expf(w[s] - top);
            sum += w[s];
        }
        sum = sums::warp_sum(sum);
        for (int s = lane; s < S; s += 32)
            w[s] = s < length ? w[s] / sum : 0;
        __syncwarp();
        weighted(W, y + row * W, length, v + (int64_t)b * W, (int64_t)B * W, w, 1);
    });
}

// A row is a query. weights become the gradients of the scores; dq: [T, B, H].
KERNEL(attention_queries, int T, int S, int B, int H, int W, const int *lengths, const float *k,
       const float *v, float *weights, const float *y, const float *dy, float *dq)
{
    const int lane = threadIdx.x % 32;
    each_row((int64_t)T * B, [=](int64_t row) {
        const int b = row % B, length = lengths[b];
        float *w = weights + ((int64_t)b * T + row / B) * S;
        const float mean = dot(W, dy + row * W, y + row * W);
        for (int s = 0; s < length; s++) {
            const float d = dot(W, dy + row * W, v + ((int64_t)s * B + b) * W) - mean;
            if (lane == 0)
                w[s] *= d;
        }
        __syncwarp();
        weighted(H, dq + row * H, length, k + (int64_t)b * H, (int64_t)B * H, w, 1);
    });
}

// A row is a source step: [S, B]. dx: [S, B, n] = the sum over the lane's queries of x: [T, B, n]
// with their weights: dv of dy, and dk of q once the weights are the scores' gradients.
KERNEL(attention_steps, int T, int S, int B, int n, const int *lengths, const float *x,
       const float *weights, float *dx)
{
    each_row((int64_t)S * B, [=](int64_t row) {
        const int b = row % B, s = row / B;
        weighted(n, dx + row * n, s < lengths[b] ? T : 0, x + (int64_t)b * n, (int64_t)B * n,
                 weights + (int64_t)b * T * S + s, S);
    });
}
