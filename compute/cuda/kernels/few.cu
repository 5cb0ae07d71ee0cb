// The whole output layer for few tokens, such as characters: logits, softmax, loss and all three
// gradients in two launches, with the logits nowhere but in registers and shared memory.
//
// A block has kRows rows of x and all of w, both in shared memory in chunks of columns of H. Eight
// warps: for the logits each takes four of the rows and a quarter of a chunk's columns, and a lane
// every 32nd token; for the softmax each takes a row; then each thread takes four columns of dx for
// two rows, and of the block's part of dw for every so many tokens. head_few_sum adds the parts of
// all blocks, and their losses, in their order.
//
// Letters as in package compute. Of N = 1120, H = 256, V = 28: 140 blocks do 48 million
// operations in all, read x (1.1 MB) and w (29 KB each, from the L2 cache), and write dx (1.1 MB)
// and parts (4 MB, into the L2 cache, which head_few_sum reads): some microseconds, most of them
// the latency of a few loads and the two launches. What bounds the kernel is shared memory: a lane
// reads 16 bytes of w, and five lanes' worth of broadcasts, for 16 multiply-adds.
#include "rounding.cuh"
#include "sums.cuh"

using rounding::rounded;

constexpr int kRows = 8, kThreads = 256, kMostTokens = 128, kQuarters = 4;

struct shape {
    int N, H, V;
    int wide;  // H rounded up to four: a row of a block's part of dw
    int chunk; // columns at once, a multiple of 16
};

// Where everything is in shared memory. Rows of a tile are padded by 16 bytes, so that lanes that
// read the same column of neighbouring rows find it in different banks.
struct tiles {
    int pitch;
    float *x;       // [kRows, pitch]
    float *w;       // [V, pitch]
    float *parts;   // [kQuarters, kRows, V]: the logits' sums over a quarter of the columns
    float *exact;   // [V, kRows]: the gradient of the logits
    float *rounded; // [V, kRows]: as the products multiply it
    double *losses; // [kRows]
};

DEVICE tiles make_tiles(const shape &s)
{
    tiles t;
    t.pitch = s.chunk + 4;
    t.losses = (double *)shared_memory();
    t.x = (float *)(t.losses + kRows);
    t.w = t.x + kRows * t.pitch;
    t.exact = t.w + s.V * t.pitch;
    t.rounded = t.exact + s.V * kRows;
    t.parts = t.rounded + s.V * kRows;
    return t;
}

// The chunk of rows of a matrix of width H that begins at column first, rounded, and zeros where
// the matrix ends.
DEVICE void load_tile(float *tile, const float *from, int rows, int exist, const shape &s,
                      int first, int to)
{
    const int pitch = s.chunk + 4, fours = s.chunk / 4;
    const bool wide = s.H % 4 == 0 && (uintptr_t)from % 16 == 0;
    for (int i = threadIdx.x; i < rows * fours; i += kThreads) {
        const int row = i / fours, column = first + i % fours * 4;
        const float *at = from + (int64_t)row * s.H + column;
        float4 v = make_float4(0, 0, 0, 0);
        if (row < exist && column < s.H) {
            if (wide) {
                v = *(const float4 *)at;
            } else {
                v.x = at[0];
                v.y = column + 1 < s.H ? at[1] : 0;
                v.z = column + 2 < s.H ? at[2] : 0;
                v.w = column + 3 < s.H ? at[3] : 0;
            }
        }
        *(float4 *)(tile + row * pitch + i % fours * 4) = rounded(v, to);
    }
}

DEVICE float dot(const float4 &a, const float4 &b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

DEVICE void add(float4 &sum, float a, const float4 &b)
{
    sum.x = fmaf(a, b.x, sum.x);
    sum.y = fmaf(a, b.y, sum.y);
    sum.z = fmaf(a, b.z, sum.z);
    sum.w = fmaf(a, b.w, sum.w);
}

// parts = the logits without their bias.
DEVICE void multiply_rows(const shape &s, const tiles &t, const float *x, const float *w, int exist,
                          int to)
{
    constexpr int groups = kMostTokens / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int quad = warp / kQuarters * 4, quarter = warp % kQuarters;
    const int columns = s.chunk / kQuarters, from = quarter * columns;
    float sums[groups][4] = {};
    for (int first = 0; first < s.H; first += s.chunk) {
        __syncthreads(); // what was in the tiles has been read
        load_tile(t.x, x, kRows, exist, s, first, to);
        load_tile(t.w, w, s.V, s.V, s, first, to);
        __syncthreads();
        for (int h = from; h < from + columns; h += 4) {
            float4 rows[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                rows[r] = *(const float4 *)(t.x + (quad + r) * t.pitch + h);
#pragma unroll
            for (int g = 0; g < groups; g++) {
                if (32 * g >= s.V)
                    break;
                const int v = min(32 * g + lane, s.V - 1); // a lane too many repeats the last
                const float4 token = *(const float4 *)(t.w + v * t.pitch + h);
#pragma unroll
                for (int r = 0; r < 4; r++)
                    sums[g][r] = dot(token, rows[r], sums[g][r]);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < groups; g++) {
        const int v = 32 * g + lane;
        if (v < s.V)
#pragma unroll
            for (int r = 0; r < 4; r++)
                t.parts[(quarter * kRows + quad + r) * s.V + v] = sums[g][r];
    }
    __syncthreads();
}

// The softmax of the warp's row, its loss, and the gradient of its logits, with the target smoothed
// as compute.Output says.
DEVICE void softmax_row(const shape &s, const tiles &t, const float *bias, int target, float scale,
                        float smoothing, int to)
{
    constexpr int groups = kMostTokens / 32;
    const int row = threadIdx.x / 32, lane = threadIdx.x % 32;
    float logits[groups], largest = -INFINITY, wanted = 0, sum = 0, total = 0;
#pragma unroll
    for (int g = 0; g < groups; g++) {
        const int v = 32 * g + lane;
        logits[g] = -INFINITY;
        if (v >= s.V)
            continue;
        float logit = 0;
        for (int quarter = 0; quarter < kQuarters; quarter++)
            logit += t.parts[(quarter * kRows + row) * s.V + v];
        logits[g] = bias ? logit + bias[v] : logit;
        largest = fmaxf(largest, logits[g]);
    }
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, step));
#pragma unroll
    for (int g = 0; g < groups; g++) {
        const int v = 32 * g + lane;
        if (v == target)
            wanted = logits[g] - largest;
        if (v < s.V && smoothing > 0)
            total += logits[g] - largest;
        logits[g] = v < s.V ? expf(logits[g] - largest) : 0;
        sum += logits[g];
    }
    sum = sums::warp_sum(sum);
    double both = sums::warp_sum(wanted); // the others' are zeros
    both += smoothing * (sums::warp_sum(total) / (double)s.V - both);
    if (lane == 0)
        t.losses[row] = target < 0 ? 0 : log((double)sum) - both;
    const float factor = scale / sum, each = scale * smoothing / s.V;
#pragma unroll
    for (int g = 0; g < groups; g++) {
        const int v = 32 * g + lane;
        if (v >= s.V)
            continue;
        const float p = logits[g] * factor - each;
        const float d = target < 0 ? 0 : v == target ? p - scale * (1 - smoothing) : p;
        t.exact[v * kRows + row] = d;
        t.rounded[v * kRows + row] = rounded(d, to);
    }
    __syncthreads();
}

// dx = the gradient of the logits times w, of one chunk. A thread has four columns of two rows.
DEVICE void multiply_dx(const shape &s, const tiles &t, float *dx, int exist, int first)
{
    const int fours = s.chunk / 4;
    const bool wide = s.H % 4 == 0 && (uintptr_t)dx % 16 == 0;
    for (int i = threadIdx.x; i < fours * (kRows / 2); i += kThreads) {
        const int pair = i / fours * 2, column = i % fours * 4;
        float4 sums[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
#pragma unroll 4
        for (int v = 0; v < s.V; v++) {
            const float4 token = *(const float4 *)(t.w + v * t.pitch + column);
            const float2 d = *(const float2 *)(t.rounded + v * kRows + pair);
            add(sums[0], d.x, token);
            add(sums[1], d.y, token);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = pair + r, left = s.H - first - column;
            if (row >= exist || left <= 0)
                continue;
            float *at = dx + (int64_t)row * s.H + first + column;
            if (wide) {
                *(float4 *)at = sums[r];
                continue;
            }
            at[0] = sums[r].x;
            if (left > 1)
                at[1] = sums[r].y;
            if (left > 2)
                at[2] = sums[r].z;
            if (left > 3)
                at[3] = sums[r].w;
        }
    }
}

// The block's part of dw = the gradient of the logits, transposed, times x, of one chunk. A thread
// keeps four columns of all rows, and takes every so many tokens. part: [V, wide].
DEVICE void multiply_dw(const shape &s, const tiles &t, float *part, int first)
{
    const int fours = s.chunk / 4, column = threadIdx.x % fours * 4, at_once = kThreads / fours;
    if ((int)threadIdx.x >= at_once * fours || first + column >= s.wide)
        return;
    float4 rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++)
        rows[r] = *(const float4 *)(t.x + r * t.pitch + column);
    for (int v = threadIdx.x / fours; v < s.V; v += at_once) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
            const float4 d = *(const float4 *)(t.rounded + v * kRows + r);
            add(sum, d.x, rows[r]);
            add(sum, d.y, rows[r + 1]);
            add(sum, d.z, rows[r + 2]);
            add(sum, d.w, rows[r + 3]);
        }
        *(float4 *)(part + v * s.wide + first + column) = sum;
    }
}

// The loss of the block's rows, and with GRADIENT their dx and their part of dw and db. parts:
// [blocks, V*wide + V rounded up to four]; losses: [blocks].
template <bool GRADIENT>
DEVICE void few(const shape &s, const float *x, const float *w, const float *bias,
                const int *targets, float scale, float smoothing, int forward, int backward,
                float *dx, float *parts, double *losses)
{
    const tiles t = make_tiles(s);
    const int first_row = blockIdx.x * kRows, exist = min(kRows, s.N - first_row);
    const int row = threadIdx.x / 32, target = row < exist ? targets[first_row + row] : -1;
    x += (int64_t)first_row * s.H;
    multiply_rows(s, t, x, w, exist, forward);
    softmax_row(s, t, bias, target, scale, smoothing, backward);
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int r = 0; r < kRows; r++)
            sum += t.losses[r];
        losses[blockIdx.x] = sum;
    }
    if (!GRADIENT)
        return;
    float *part = parts + blockIdx.x * ((int64_t)s.V * s.wide + (s.V + 3) / 4 * 4);
    if ((int)threadIdx.x < s.V) {
        float sum = 0;
        for (int r = 0; r < kRows; r++)
            sum += t.exact[threadIdx.x * kRows + r];
        part[(int64_t)s.V * s.wide + threadIdx.x] = sum;
    }
    dx += (int64_t)first_row * s.H;
    for (int first = 0; first < s.H; first += s.chunk) {
        if (s.chunk < s.H || forward != backward) { // the tiles hold something else
            __syncthreads();
            load_tile(t.x, x, kRows, exist, s, first, backward);
            load_tile(t.w, w, s.V, s.V, s, first, backward);
            __syncthreads();
        }
        multiply_dx(s, t, dx, exist, first);
        multiply_dw(s, t, part, first);
    }
}

KERNEL_BOUNDS(head_few_loss, kThreads, 2, int N, int H, int V, int chunk, const float *x,
              const float *w, const float *bias, const int *targets, int forward, double *losses)
{
    const shape s = {N, H, V, (H + 3) / 4 * 4, chunk};
    few<false>(s, x, w, bias, targets, 0, 0, forward, forward, nullptr, nullptr, losses);
}

KERNEL_BOUNDS(head_few_gradient, kThreads, 2, int N, int H, int V, int chunk, const float *x,
              const float *w, const float *bias, const int *targets, int forward, double *losses,
              float scale, float smoothing, int backward, float *dx, float *parts)
{
    const shape s = {N, H, V, (H + 3) / 4 * 4, chunk};
    few<true>(s, x, w, bias, targets, scale, smoothing, forward, backward, dx, parts, losses);
}

// dw: [V, H] and db: [V] or null, from the parts of so many blocks; the first block of this kernel
// adds their losses, also for the host's memory. Blocks of sums::kColumns x sums::kParts threads.
KERNEL(head_few_sum, int blocks, int H, int V, const float *parts, const double *losses, float *dw,
       float *db, double *total, double *host)
{
    if (blockIdx.x == 0) {
        const double sum = sums::sum_doubles(losses, blocks, (double *)shared_memory());
        if (threadIdx.x == 0)
            *host = *total = sum;
        return;
    }
    const int wide = (H + 3) / 4 * 4;
    const int64_t weights = (int64_t)V * wide, width = weights + (V + 3) / 4 * 4;
    const int64_t i = (int64_t)(blockIdx.x - 1) * sums::kColumns + threadIdx.x % sums::kColumns;
    const float sum =
        sums::column_sum(parts, blocks, width, width, i, (float *)shared_memory());
    if (threadIdx.x >= sums::kColumns || i >= width)
        return;
    if (i >= weights) {
        if (db && i - weights < V)
            db[i - weights] = sum;
    } else if (i % wide < H) {
        dw[i / wide * H + i % wide] = sum;
    }
}
