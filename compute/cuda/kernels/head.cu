// Softmax and cross-entropy of rows of logits, and their gradient, in place. A block has a row.
//
// Letters as in package compute. Where a row of V logits fits in shared memory, it is read once,
// 4 V bytes, and the gradient written, 4 V more; a longer one is read three times, of which the
// last two find it in the L2 cache. Two exponentials a logit stay hidden behind that.
#include "sums.cuh"

// The largest value of every thread's; NaN only if all are. between: [sums::kWarps], shared.
DEVICE float block_max(float value, float *between)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(kWarp, value, step));
    if (lane == 0)
        between[threadIdx.x / 32] = value;
    __syncthreads();
    value = between[lane < warps ? lane : 0];
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(kWarp, value, step));
    return value;
}

// So many neighbouring numbers, which move at once.
template <int N> struct alignas(4 * N) some {
    float v[N];
};
template <int N> struct alignas(2 * N) some_halves {
    uint16_t v[N];
};

// losses[row] = -log softmax(logits + bias)[target], 0 without a target, which is negative; logits:
// [rows, V]; bias: [V] or null. With GRADIENT the targets are smoothed, as compute.Output says, and
// the row becomes scale (softmax - (1-smoothing) onehot(target) - smoothing/V), or zeros.
// halves, if not null, receives the same in bfloat16. A NaN among the logits reaches the sum, and
// with it the loss and all of the gradient.
// Shared memory: two numbers of every warp, then, if CACHED, the row. A thread takes N neighbouring
// numbers at a time, into whose groups a row is cut.
template <bool GRADIENT, bool CACHED, int N>
DEVICE void cross_entropy(int V, float *logits, const float *bias, const int *targets, float scale,
                          float smoothing, double *losses, uint16_t *halves)
{
    const int64_t row = blockIdx.x;
    const int target = targets[row], groups = V / N, threads = blockDim.x;
    some<N> *x = (some<N> *)(logits + row * V);
    const auto write = [=](int i, const some<N> &gradient) {
        x[i] = gradient;
        if (halves) {
            some_halves<N> rounded;
#pragma unroll
            for (int k = 0; k < N; k++)
                rounded.v[k] = any_to_bf16(gradient.v[k]);
            ((some_halves<N> *)(halves + row * V))[i] = rounded;
        }
    };
    if (target < 0) {
        if (GRADIENT)
            for (int i = threadIdx.x; i < groups; i += threads)
                write(i, some<N>{});
        if (threadIdx.x == 0)
            losses[row] = 0;
        return;
    }
    float *between = (float *)shared_memory();
    some<N> *cache = (some<N> *)(between + 2 * sums::kWarps);
    const auto read = [=](int i) {
        some<N> l = x[i];
        if (bias) {
            const some<N> b = ((const some<N> *)bias)[i];
#pragma unroll
            for (int k = 0; k < N; k++)
                l.v[k] += b.v[k];
        }
        return l;
    };
    const auto read_again = [=](int i) { return CACHED ? cache[i] : read(i); };
    float largest = -INFINITY;
#pragma unroll 4
    for (int i = threadIdx.x; i < groups; i += threads) {
        const some<N> l = read(i);
        if (CACHED)
            cache[i] = l;
#pragma unroll
        for (int k = 0; k < N; k++)
            largest = fmaxf(largest, l.v[k]);
    }
    largest = block_max(largest, between);
    // Every thread reads it before the next barrier, behind which the row is overwritten.
    const float wanted = read_again(target / N).v[target % N] - largest;
    float sum = 0, total = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < groups; i += threads) {
        const some<N> l = read_again(i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum += expf(l.v[k] - largest);
            if (GRADIENT)
                total += l.v[k] - largest;
        }
    }
    sum = sums::block_sum(sum, between + sums::kWarps);
    double both = wanted;
    if (GRADIENT && smoothing > 0)
        both += smoothing * (sums::block_sum(total, between) / (double)V - both);
    if (threadIdx.x == 0)
        losses[row] = log((double)sum) - both;
    if (!GRADIENT)
        return;
    const float factor = scale / sum, each = scale * smoothing / V;
#pragma unroll 4
    for (int i = threadIdx.x; i < groups; i += threads) {
        some<N> p = read_again(i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            p.v[k] = expf(p.v[k] - largest) * factor - each;
            if (i * N + k == target)
                p.v[k] -= scale * (1 - smoothing);
        }
        write(i, p);
    }
}

// The same in fours where every row and the bias begin on 16 bytes.
template <bool GRADIENT, bool CACHED>
DEVICE void cross_entropy_in_fours(int V, float *logits, const float *bias, const int *targets,
                                   float scale, float smoothing, double *losses,
                                   uint16_t *halves)
{
    if (V % 4 == 0 && (((uintptr_t)logits | (uintptr_t)bias) & 15) == 0)
        cross_entropy<GRADIENT, CACHED, 4>(V, logits, bias, targets, scale, smoothing, losses,
                                           halves);
    else
        cross_entropy<GRADIENT, CACHED, 1>(V, logits, bias, targets, scale, smoothing, losses,
                                           halves);
}

#define CROSS_ENTROPY(name, gradient, cached)                                                     \
    KERNEL(name, int V, float *logits, const float *bias, const int *targets, float scale,        \
           float smoothing, double *losses, uint16_t *halves)                                     \
    {                                                                                             \
        cross_entropy_in_fours<gradient, cached>(V, logits, bias, targets, scale, smoothing,      \
                                                 losses, halves);                                 \
    }

CROSS_ENTROPY(head_loss, false, false)
CROSS_ENTROPY(head_loss_cached, false, true)
CROSS_ENTROPY(head_gradient, true, false)
CROSS_ENTROPY(head_gradient_cached, true, true)
