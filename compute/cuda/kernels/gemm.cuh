// What the two kinds of products, gemm.cu's and tensor.cu's, have in common: which part of a matrix
// a block takes, how it comes from memory, and where the result goes.
//
// A product is c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n], float32,
// all packed. A block owns a tile of X rows by Y columns of c, and goes over its part of k in
// steps: the next step's elements travel from memory to registers while the present ones, in
// shared memory, are multiplied. Blocks with another blockIdx.z own the same tile for another slice
// of k; then c is [slices, m, n] and gemm_sum_slices adds them in their order, so that a product of
// few tiles and a long k fills the GPU and still has the same bits on every run.
#pragma once

#include "rounding.cuh"

namespace gemm {

struct product {
    int m, n, k;
    bool trans_a, trans_b;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int slice; // how much of k a block takes, a multiple of its step
};

// One operand of a block: a tile of its rows (of op(a)), or columns (of op(b)), here called lines.
// Element (line, k) is at [line*pitch + k] where k is contiguous, else at [k*pitch + line].
struct operand {
    const float *from;
    int pitch, lines, first; // lines: of the whole matrix; first: the tile's
    bool k_contiguous, wide; // wide: four neighbours that begin at a multiple of four are aligned
};

DEVICE operand make_operand(const float *from, int lines, int k, int first, bool k_contiguous)
{
    const int pitch = k_contiguous ? k : lines;
    const bool wide = pitch % 4 == 0 && (uintptr_t)from % 16 == 0;
    return {from, pitch, lines, first, k_contiguous, wide};
}

DEVICE operand operand_a(const product &p, int first)
{
    return make_operand(p.a, p.m, p.k, first, !p.trans_a);
}

DEVICE operand operand_b(const product &p, int first)
{
    return make_operand(p.b, p.n, p.k, first, p.trans_b);
}

// Four neighbours of which so many exist, zeros for the others.
DEVICE float4 load_four(const float *from, int exist, bool wide)
{
    if (exist >= 4 && wide)
        return __ldg((const float4 *)from);
    float4 v = make_float4(0, 0, 0, 0);
    if (exist > 0)
        v.x = __ldg(from);
    if (exist > 1)
        v.y = __ldg(from + 1);
    if (exist > 2)
        v.z = __ldg(from + 2);
    if (exist > 3)
        v.w = __ldg(from + 3);
    return v;
}

// The place in a step's tile of a thread's i-th group of four: line and k of its first element.
// The threads of a warp have neighbouring groups, along k or along lines, as they lie in memory.
template <int LINES, int STEP, int THREADS>
DEVICE void group_at(int i, bool k_contiguous, int &line, int &k)
{
    const int g = threadIdx.x + i * THREADS;
    if (k_contiguous) {
        line = g / (STEP / 4);
        k = g % (STEP / 4) * 4;
    } else {
        k = g / (LINES / 4);
        line = g % (LINES / 4) * 4;
    }
}

// A thread's part of the step that begins at k0 and ends at end or before.
template <int LINES, int STEP, int THREADS>
DEVICE void fetch(float4 (&part)[LINES * STEP / 4 / THREADS], const operand &o, int k0, int end)
{
#pragma unroll
    for (int i = 0; i < LINES * STEP / 4 / THREADS; i++) {
        int line, k;
        group_at<LINES, STEP, THREADS>(i, o.k_contiguous, line, k);
        line += o.first;
        k += k0;
        const int along = o.k_contiguous ? end - k : o.lines - line;
        const bool exists = o.k_contiguous ? line < o.lines : k < end;
        const int64_t at = o.k_contiguous ? (int64_t)line * o.pitch + k
                                          : (int64_t)k * o.pitch + line;
        part[i] = load_four(o.from + at, exists ? along : 0, o.wide);
    }
}

// This block's slice of k, and its place in c.
DEVICE void slice_of(const product &p, int &begin, int &end, float *&c)
{
    begin = blockIdx.z * p.slice;
    end = min(begin + p.slice, p.k);
    c = p.c + (int64_t)blockIdx.z * p.m * p.n;
}

// COUNT neighbours that are read and written at once.
template <int COUNT> struct alignas(4 * COUNT) neighbours {
    float at[COUNT];
};

// Whether whole rows of c are so many neighbours each, where they are aligned to be.
template <int COUNT> DEVICE bool whole(const product &p)
{
    return p.n % COUNT == 0 && (uintptr_t)p.c % (4 * COUNT) == 0;
}

// Puts sums of neighbouring columns into c; wide is whole<COUNT>.
template <int COUNT>
DEVICE void put(const product &p, float *c, int row, int column, const float (&sums)[COUNT],
                bool wide)
{
    if (row >= p.m || column >= p.n)
        return;
    float *to = c + (int64_t)row * p.n + column;
    neighbours<COUNT> v;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        v.at[j] = p.alpha * sums[j];
    if (wide) {
        if (p.beta != 0) {
            const neighbours<COUNT> before = *(const neighbours<COUNT> *)to;
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                v.at[j] += p.beta * before.at[j];
        }
        *(neighbours<COUNT> *)to = v;
        return;
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        if (column + j < p.n)
            to[j] = p.beta == 0 ? v.at[j] : v.at[j] + p.beta * to[j];
}

} // namespace gemm
