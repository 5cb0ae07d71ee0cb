// Sums in a fixed order: the same bits on every run, and on every GPU.
#pragma once

#include "device.cuh"

namespace sums {

// The sum of a value of every lane of a warp, in every lane.
template <class T> DEVICE T warp_sum(T value)
{
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(kWarp, value, step);
    return value;
}

// What a block sum needs of shared memory: a number of each warp.
constexpr int kWarps = 32;

// The sum of a value of every thread of a block of whole warps, in every thread. between: [kWarps],
// shared, which is free again after the block's next barrier.
template <class T> DEVICE T block_sum(T value, T *between)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    value = warp_sum(value);
    if (lane == 0)
        between[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(lane < warps ? between[lane] : T(0));
}

// The sum of n numbers by one block, in every thread: thread t takes x[t], x[t + threads], ...
DEVICE double sum_doubles(const double *x, int64_t n, double *between)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += x[i];
    return block_sum(sum, between);
}

// A block of kColumns x kParts threads sums columns: thread (c, p) takes rows p, p + kParts, ... of
// the block's column c, so that a warp reads 128 bytes of a row and a thread has several loads
// under way. The parts are added in their order.
constexpr int kColumns = 32, kParts = 8;

// x: [rows, columns] in rows of pitch. The sum is that of the threads with p = 0; between:
// [kParts, kColumns], shared.
DEVICE float column_sum(const float *x, int rows, int64_t columns, int64_t pitch, int64_t column,
                        float *between)
{
    const int c = threadIdx.x % kColumns, p = threadIdx.x / kColumns;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (int r = p; r < rows; r += kParts)
            sum += x[r * pitch + column];
    }
    between[p * kColumns + c] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < kParts; i++)
        sum += between[i * kColumns + c];
    return sum;
}

} // namespace sums
