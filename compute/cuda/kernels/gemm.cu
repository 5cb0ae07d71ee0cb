// Products by the GPU's scalar cores: float32 operands, or operands rounded to less on GPUs without
// tensor cores for them. Names as in gemm.cuh.
//
// Both operands lie in shared memory as [STEP][lines]. A thread owns a ROWS x COLUMNS block of c in
// registers, in pieces of four neighbours that lie LINES/pieces apart, so that the threads of a
// warp read shared memory side by side: for each k it reads ROWS + COLUMNS floats and does
// ROWS*COLUMNS fused multiply-adds. A tile of X x Y moves (X+Y) k floats from memory (or the L2
// cache) for 2 X Y k operations: 16 operations a byte at 128 x 128, 8 at 64 x 64.
#include "gemm.cuh"

using namespace gemm;
using namespace rounding;

// A tile in shared memory: [STEP][LINES + kPad]. The pad keeps rows aligned to 16 bytes and spreads
// the stores of an operand that has to be transposed over the banks.
constexpr int kPad = 4;

template <int LINES, int STEP, int THREADS>
DEVICE void keep(float *tile, const float4 (&part)[LINES * STEP / 4 / THREADS], bool k_contiguous,
                 int to)
{
#pragma unroll
    for (int i = 0; i < LINES * STEP / 4 / THREADS; i++) {
        int line, k;
        group_at<LINES, STEP, THREADS>(i, k_contiguous, line, k);
        const float4 v = rounded(part[i], to);
        float *at = tile + k * (LINES + kPad) + line;
        if (k_contiguous) {
            at[0] = v.x;
            at[LINES + kPad] = v.y;
            at[2 * (LINES + kPad)] = v.z;
            at[3 * (LINES + kPad)] = v.w;
        } else {
            *(float4 *)at = v;
        }
    }
}

// Of thread at of the LINES/COUNT that share a tile's lines: its COUNT lines of one k.
template <int LINES, int COUNT> DEVICE void pick(float (&v)[COUNT], const float *row, int at)
{
#pragma unroll
    for (int piece = 0; piece < COUNT / 4; piece++) {
        const float4 four = *(const float4 *)(row + piece * (4 * LINES / COUNT) + 4 * at);
        v[4 * piece] = four.x;
        v[4 * piece + 1] = four.y;
        v[4 * piece + 2] = four.z;
        v[4 * piece + 3] = four.w;
    }
}

// sums += the products of one step, whose tiles begin at now.
template <int X, int Y, int STEP, int ROWS, int COLUMNS>
DEVICE void multiply_step(float (&sums)[ROWS][COLUMNS], const float *now, int down, int across)
{
    const float *then = now + STEP * (X + kPad);
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        float u[ROWS], v[COLUMNS];
        pick<X, ROWS>(u, now + k * (X + kPad), down);
        pick<Y, COLUMNS>(v, then + k * (Y + kPad), across);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                sums[i][j] = fmaf(u[i], v[j], sums[i][j]);
    }
}

// The tile X x Y of c by X/ROWS * Y/COLUMNS threads.
template <int X, int Y, int STEP, int ROWS, int COLUMNS> DEVICE void multiply(product p, int to)
{
    constexpr int threads = X / ROWS * (Y / COLUMNS);
    constexpr int tile_a = STEP * (X + kPad), tile = tile_a + STEP * (Y + kPad);
    float *shared = (float *)shared_memory(); // two tiles of both operands
    const operand a = operand_a(p, blockIdx.x * X), b = operand_b(p, blockIdx.y * Y);
    int begin, end;
    float *c;
    slice_of(p, begin, end, c);
    const int across = threadIdx.x % (Y / COLUMNS), down = threadIdx.x / (Y / COLUMNS);
    float4 next_a[X * STEP / 4 / threads], next_b[Y * STEP / 4 / threads];
    float sums[ROWS][COLUMNS] = {};

    // A round fetches step k0 + STEP, multiplies step k0, and puts what it has fetched into the
    // other tile, of which the multiplications ended before the last barrier.
    int stage = 0;
    for (int k0 = begin - STEP; k0 < end; k0 += STEP) {
        const bool more = k0 + STEP < end;
        if (more) {
            fetch<X, STEP, threads>(next_a, a, k0 + STEP, end);
            fetch<Y, STEP, threads>(next_b, b, k0 + STEP, end);
        }
        if (k0 >= begin)
            multiply_step<X, Y, STEP>(sums, shared + (stage ^ 1) * tile, down, across);
        if (more) {
            keep<X, STEP, threads>(shared + stage * tile, next_a, a.k_contiguous, to);
            keep<Y, STEP, threads>(shared + stage * tile + tile_a, next_b, b.k_contiguous, to);
        }
        __syncthreads();
        stage ^= 1;
    }
    const bool wide = whole<4>(p);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = a.first + i / 4 * (4 * X / ROWS) + 4 * down + i % 4;
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) {
            const float four[4] = {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
            put(p, c, row, b.first + j / 4 * (4 * Y / COLUMNS) + 4 * across, four, wide);
        }
    }
}

// 256 threads of 8 x 8: 64 sums, 16 operands and 8 elements of the next step are what 128 registers
// hold, so that two blocks share a multiprocessor and one multiplies while the other waits. Shared
// memory: 16,896 bytes.
KERNEL_BOUNDS(gemm_128, 256, 2, int m, int n, int k, int trans_a, int trans_b, float alpha,
              const float *a, const float *b, float beta, float *c, int slice, int to)
{
    multiply<128, 128, 8, 8, 8>({m, n, k, trans_a != 0, trans_b != 0, alpha, beta, a, b, c, slice},
                                to);
}

// 256 threads of 4 x 4, for products of few tiles: what counts is how many blocks there are, and
// how many warps each has to hide memory's latency with. Shared memory: 17,408 bytes.
KERNEL_BOUNDS(gemm_64, 256, 2, int m, int n, int k, int trans_a, int trans_b, float alpha,
              const float *a, const float *b, float beta, float *c, int slice, int to)
{
    multiply<64, 64, 16, 4, 4>({m, n, k, trans_a != 0, trans_b != 0, alpha, beta, a, b, c, slice},
                               to);
}

// c: [count] = alpha times the sum of slices: [slices, count], in their order, + beta c. 4 bytes an
// element of each slice.
KERNEL(gemm_sum_slices, int64_t count, int slices, float alpha, const float *from, float beta,
       float *c)
{
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        float sum = 0;
#pragma unroll 8
        for (int s = 0; s < slices; s++)
            sum += from[s * count + i];
        c[i] = beta == 0 ? alpha * sum : alpha * sum + beta * c[i];
    }
}

// to = from, rounded: the operands of a library that multiplies 16-bit numbers. 6 bytes an element.
KERNEL(gemm_round, int64_t n, const float *from, uint16_t *to, int format)
{
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    const bool wide = (uintptr_t)from % 16 == 0 && (uintptr_t)to % 8 == 0;
    const int64_t fours = wide ? n / 4 : 0, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const bool half = format == kFP16;
    for (int64_t i = first; i < fours; i += threads) {
        const float4 v = ((const float4 *)from)[i];
        ((uint2 *)to)[i] = half ? make_uint2(pack(to_fp16(v.x), to_fp16(v.y)),
                                             pack(to_fp16(v.z), to_fp16(v.w)))
                                : make_uint2(pack(to_bf16(v.x), to_bf16(v.y)),
                                             pack(to_bf16(v.z), to_bf16(v.w)));
    }
    for (int64_t i = 4 * fours + first; i < n; i += threads)
        to[i] = half ? to_fp16(from[i]) : to_bf16(from[i]);
}
