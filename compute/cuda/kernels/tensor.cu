// Products by tensor cores. The operands are float32 in memory and rounded once, on their way into
// shared memory; sums are float32. Names as in gemm.cuh.
//
// An operand's tile lies in shared memory as it does in memory: as [lines][step] where k is
// contiguous, else as [step][lines], so that neighbouring threads store side by side; ldmatrix
// transposes on its way to registers what has to be. A step is 32 of k in 16 bits or 16 of tf32: 64
// bytes either way, and two instructions of a warp. Rows are padded by 16 bytes (32 for tf32 as
// [step][lines]), so that the eight rows of an ldmatrix, or the lanes of a load, are in different
// banks. What a tile moves is as in gemm.cu; the operations are 8 to 16 times as fast, so that the
// tile of 128 x 128 is bound by its loads: a library's kernels, where there are any, do better.
#include "gemm.cuh"
#include "mma.cuh"

// GPUs older than sm_80 have none of these kernels: gemm.cu's round and multiply there.
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800

using namespace gemm;
using namespace rounding;

template <format R> constexpr int kBytes = R == kTF32 ? 4 : 2;
template <format R> constexpr int kStep = 64 / kBytes<R>;

// Bytes of a line in a tile whose k is contiguous; a tile in the other order needs no more.
constexpr int kLine = 80;

// How far neighbours are from each other in a tile, in bytes.
struct layout {
    int line, k;
};

template <format R, int LINES> DEVICE layout layout_of(const operand &o)
{
    constexpr int bytes = kBytes<R>;
    if (o.k_contiguous)
        return {kLine, bytes};
    return {bytes, bytes * (LINES + 8)};
}

// Four neighbours, rounded, into shared memory.
template <format R> DEVICE void store_four(unsigned char *to, const float4 &v)
{
    if constexpr (R == kTF32)
        *(float4 *)to = make_float4(to_tf32(v.x), to_tf32(v.y), to_tf32(v.z), to_tf32(v.w));
    else if constexpr (R == kBF16)
        *(uint2 *)to = make_uint2(pack(to_bf16(v.x), to_bf16(v.y)),
                                  pack(to_bf16(v.z), to_bf16(v.w)));
    else
        *(uint2 *)to = make_uint2(pack(to_fp16(v.x), to_fp16(v.y)),
                                  pack(to_fp16(v.z), to_fp16(v.w)));
}

template <format R, int LINES, int THREADS>
DEVICE void keep(unsigned char *tile, const float4 (&part)[LINES * kStep<R> / 4 / THREADS],
                 const operand &o, const layout &at)
{
#pragma unroll
    for (int i = 0; i < LINES * kStep<R> / 4 / THREADS; i++) {
        int line, k;
        group_at<LINES, kStep<R>, THREADS>(i, o.k_contiguous, line, k);
        store_four<R>(tile + line * at.line + k * at.k, part[i]);
    }
}

// The four 8x8 matrices that begin at lines and k (0, 0), then, of A, (8, 0), (0, half), (8, half),
// and of B, (0, half), (8, 0), (8, half); half is 16 bytes of k. That is one fragment of A, or two
// of B, whose lines are its columns. from: where the first begins.
template <format R, bool A>
DEVICE void load(uint32_t (&r)[4], const unsigned char *from, bool k_contiguous, const layout &at)
{
    constexpr int half = 16 / kBytes<R>;
    const int lane = threadIdx.x % 32, row = lane % 8;
    // Which of the two lines' halves, and of the two k's, the matrix whose row this lane gives has.
    const int lower = A ? lane / 8 % 2 : lane / 16, later = A ? lane / 16 : lane / 8 % 2;
    if (k_contiguous) {
        ldmatrix_x4(r, from + (8 * lower + row) * at.line + half * later * at.k);
    } else if constexpr (R != kTF32) {
        ldmatrix_x4_trans(r, from + 8 * lower * at.line + (half * later + row) * at.k);
    } else {
        from += lane / 4 * at.line + lane % 4 * at.k;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int down = A ? i % 2 : i / 2, along = A ? i / 2 : i % 2;
            r[i] = *(const uint32_t *)(from + 8 * down * at.line + half * along * at.k);
        }
    }
}

template <format R>
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    if constexpr (R == kTF32)
        mma_tf32(d, a, b);
    else if constexpr (R == kBF16)
        mma_bf16(d, a, b);
    else
        mma_fp16(d, a, b);
}

// sums += the products of one step: the warp's rows of a and its columns of b, which begin there.
template <format R, int HIGH, int WIDE>
DEVICE void multiply_step(float (&sums)[HIGH][WIDE][4], const unsigned char *rows,
                          bool rows_contiguous, const layout &in_a, const unsigned char *columns,
                          bool columns_contiguous, const layout &in_b)
{
#pragma unroll
    for (int k = 0; k < kStep<R>; k += kStep<R> / 2) {
        uint32_t u[HIGH][4], v[WIDE / 2][4];
#pragma unroll
        for (int i = 0; i < HIGH; i++)
            load<R, true>(u[i], rows + 16 * i * in_a.line + k * in_a.k, rows_contiguous, in_a);
#pragma unroll
        for (int j = 0; j < WIDE / 2; j++)
            load<R, false>(v[j], columns + 16 * j * in_b.line + k * in_b.k, columns_contiguous,
                           in_b);
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const uint32_t pair[2] = {v[j / 2][j % 2 * 2], v[j / 2][j % 2 * 2 + 1]};
                mma<R>(sums[i][j], u[i], pair);
            }
    }
}

// The tile X x Y of c by DOWN x ACROSS warps, of which each owns a tile of X/DOWN x Y/ACROSS.
template <format R, int X, int Y, int DOWN, int ACROSS> DEVICE void multiply(product p)
{
    constexpr int threads = 32 * DOWN * ACROSS, step = kStep<R>;
    constexpr int high = X / DOWN / 16, wide = Y / ACROSS / 8; // instructions of a warp
    constexpr int tile_a = X * kLine, tile = tile_a + Y * kLine;
    unsigned char *shared = shared_memory(); // two tiles of both operands
    const operand a = operand_a(p, blockIdx.x * X), b = operand_b(p, blockIdx.y * Y);
    const layout in_a = layout_of<R, X>(a), in_b = layout_of<R, Y>(b);
    int begin, end;
    float *c;
    slice_of(p, begin, end, c);
    const int warp = threadIdx.x / 32;
    const int top = warp / ACROSS * (X / DOWN), left = warp % ACROSS * (Y / ACROSS);
    float4 next_a[X * step / 4 / threads], next_b[Y * step / 4 / threads];
    float sums[high][wide][4] = {};

    // As in gemm.cu: fetch the next step, multiply this one, keep the next in the other tile.
    int stage = 0;
    for (int k0 = begin - step; k0 < end; k0 += step) {
        const bool more = k0 + step < end;
        if (more) {
            fetch<X, step, threads>(next_a, a, k0 + step, end);
            fetch<Y, step, threads>(next_b, b, k0 + step, end);
        }
        if (k0 >= begin) {
            const unsigned char *now = shared + (stage ^ 1) * tile;
            multiply_step<R>(sums, now + top * in_a.line, a.k_contiguous, in_a,
                             now + tile_a + left * in_b.line, b.k_contiguous, in_b);
        }
        if (more) {
            keep<R, X, threads>(shared + stage * tile, next_a, a, in_a);
            keep<R, Y, threads>(shared + stage * tile + tile_a, next_b, b, in_b);
        }
        __syncthreads();
        stage ^= 1;
    }
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bool pairs = whole<2>(p);
#pragma unroll
    for (int i = 0; i < high; i++)
#pragma unroll
        for (int j = 0; j < wide; j++) {
            const int row = a.first + top + 16 * i + g, column = b.first + left + 8 * j + 2 * t;
            const float(&d)[4] = sums[i][j];
            put(p, c, row, column, {d[0], d[1]}, pairs);
            put(p, c, row + 8, column, {d[2], d[3]}, pairs);
        }
}

// tensor_128: 8 warps of 64 x 32, of which the sums alone take 64 registers and a step of both
// operands 32 or 16; tensor_64: 4 warps of 32 x 32, for products of few tiles. Shared memory:
// 40,960 and 20,480 bytes.
#define TENSOR(name, threads, blocks, ...)                                                         \
    KERNEL_BOUNDS(name, threads, blocks, int m, int n, int k, int trans_a, int trans_b,            \
                  float alpha, const float *a, const float *b, float beta, float *c, int slice)    \
    {                                                                                              \
        multiply<__VA_ARGS__>(                                                                     \
            {m, n, k, trans_a != 0, trans_b != 0, alpha, beta, a, b, c, slice});                   \
    }

TENSOR(tensor_tf32_128, 256, 1, kTF32, 128, 128, 2, 4)
TENSOR(tensor_bf16_128, 256, 1, kBF16, 128, 128, 2, 4)
TENSOR(tensor_fp16_128, 256, 1, kFP16, 128, 128, 2, 4)
TENSOR(tensor_tf32_64, 128, 3, kTF32, 64, 64, 2, 2)
TENSOR(tensor_bf16_64, 128, 3, kBF16, 64, 64, 2, 2)
TENSOR(tensor_fp16_64, 128, 3, kFP16, 64, 64, 2, 2)

#endif
