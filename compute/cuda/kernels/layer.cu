// What a recurrent layer does around its recurrence, over all steps at once: copies of states, the
// input's side of token ids, the gradients that are sums of rows; and at each step, for rows that
// end before the segment, what keeps their states. Letters as in package compute.
// Every kernel is bound by memory; its comment says what it moves. Every sum has an order that its
// shape alone decides.
#include "sums.cuh"

namespace layer {

constexpr int kTile = 32;  // rows and columns that a block transposes
constexpr int kPitch = 33; // floats from row to row of a tile in shared memory: no two in a bank

// Whether n floats from both are groups of four on 16-byte boundaries.
DEVICE bool aligned(const float *to, const float *from)
{
    return (((uintptr_t)to | (uintptr_t)from) & 15) == 0;
}

// n floats from a place to another; zeros if it is null.
struct copied {
    float *to;
    const float *from;
    int64_t n;
};

// Up to four copies, one for each y of the grid. 8 bytes a float, 4 a zero.
KERNEL(layer_copy, float *to0, const float *from0, int64_t n0, float *to1, const float *from1,
       int64_t n1, float *to2, const float *from2, int64_t n2, float *to3, const float *from3,
       int64_t n3)
{
    const copied low = blockIdx.y == 0 ? copied{to0, from0, n0} : copied{to1, from1, n1};
    const copied high = blockIdx.y == 2 ? copied{to2, from2, n2} : copied{to3, from3, n3};
    const copied of = blockIdx.y < 2 ? low : high;
    float *to = of.to;
    const float *from = of.from;
    const int64_t n = of.n;
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    const int64_t fours = aligned(to, from) ? n / 4 : 0;
    for (int64_t i = first; i < fours; i += stride)
        ((float4 *)to)[i] = from ? ((const float4 *)from)[i] : make_float4(0, 0, 0, 0);
    for (int64_t i = 4 * fours + first; i < n; i += stride)
        to[i] = from ? from[i] : 0;
}

// to[i, j] = from[i, j] for i < rows, j < columns, in rows of to_pitch and from_pitch floats.
// 8 bytes an element.
KERNEL(layer_columns, float *to, int to_pitch, const float *from, int from_pitch, int rows,
       int columns)
{
    for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
        for (int j = threadIdx.x; j < columns; j += blockDim.x)
            to[i * to_pitch + j] = from[i * from_pitch + j];
}

// The same, rounded to bfloat16. 6 bytes an element.
KERNEL(layer_columns_bf16, uint16_t *to, int to_pitch, const float *from, int from_pitch, int rows,
       int columns)
{
    for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
        for (int j = threadIdx.x; j < columns; j += blockDim.x)
            to[i * to_pitch + j] = any_to_bf16(from[i * from_pitch + j]);
}

// sum = a + b, of n. 12 bytes an element.
KERNEL(layer_biases, float *sum, const float *a, const float *b, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        sum[i] = a[i] + b[i];
}

// act[i] = bias, for all rows: [rows, wide]. A warp has a row at a time. 4 bytes an element.
KERNEL(layer_fill, float *act, const float *bias, int rows, int wide)
{
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (int64_t i = (int64_t)blockIdx.x * warps + threadIdx.x / 32; i < rows;
         i += (int64_t)gridDim.x * warps)
        for (int j = lane; j < wide; j += 32)
            act[i * wide + j] = bias[j];
}

// table[d, j] = w[j, d] + bias[j]: w: [wide, D], table: [D, wide]. A block has a tile, kTile x 8
// threads. 8 bytes a weight.
KERNEL(layer_table, float *table, const float *w, const float *bias, int wide, int D)
{
    float *tile = (float *)shared_memory(); // [kTile, kPitch], rows of w
    const int64_t j0 = (int64_t)blockIdx.y * kTile, d0 = (int64_t)blockIdx.x * kTile;
    const int x = threadIdx.x;
    for (int y = threadIdx.y; y < kTile; y += blockDim.y)
        if (j0 + y < wide && d0 + x < D)
            tile[y * kPitch + x] = w[(j0 + y) * D + d0 + x];
    __syncthreads();
    for (int y = threadIdx.y; y < kTile; y += blockDim.y)
        if (d0 + y < D && j0 + x < wide)
            table[(d0 + y) * wide + j0 + x] = tile[x * kPitch + y] + bias[j0 + x];
}

// act[i] = table[ids[i]]; table: [D, wide]. A block's y is a row. 8 bytes an element.
KERNEL(layer_gather, float *act, const float *table, const int *ids, int wide)
{
    for (int j = blockIdx.y * blockDim.x + threadIdx.x; j < wide; j += gridDim.y * blockDim.x)
        act[(int64_t)blockIdx.x * wide + j] = table[(int64_t)ids[blockIdx.x] * wide + j];
}

// act[i, j] = w[j, ids[i]] + bias[j]; w: [wide, D]. For fewer rows than would pay for a table: 36
// bytes an element, as a weight costs the 32 bytes that it lies in.
KERNEL(layer_pick, float *act, const float *w, const float *bias, const int *ids, int wide, int D)
{
    for (int j = blockIdx.y * blockDim.x + threadIdx.x; j < wide; j += gridDim.y * blockDim.x)
        act[(int64_t)blockIdx.x * wide + j] = w[(int64_t)j * D + ids[blockIdx.x]] + bias[j];
}

// sum + value(begin) + ... + value(end - 1), added in this order. Eight values are under way at
// once; the last few stand again for those that are not there.
template <class F> DEVICE float in_order(float sum, int begin, int end, F value)
{
    constexpr int ahead = 8;
    for (int i = begin; i < end; i += ahead) {
        float values[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            values[k] = value(min(i + k, end - 1));
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (i + k < end)
                sum += values[k];
    }
    return sum;
}

// The gradient of one-hot weights is, for a token, the sum of the rows of x where it is the input.
// order: [N] lists the rows by token, ascending for each. This sums the chunks of that list that
// are of one token alone, partial[c, j] for x[order[c*chunk + ...], j], so that a frequent token's
// sum is not one thread's. A block's x is a chunk. 4 bytes an element of x, at most.
KERNEL(layer_token_chunks, float *partial, const float *x, const int *ids, const int *order,
       int chunk, int wide)
{
    const int *rows = order + (int64_t)blockIdx.x * chunk;
    if (ids[rows[0]] != ids[rows[chunk - 1]])
        return;
    for (int j = blockIdx.y * blockDim.x + threadIdx.x; j < wide; j += gridDim.y * blockDim.x)
        partial[(int64_t)blockIdx.x * wide + j] =
            in_order(0, 0, chunk, [=](int i) { return x[(int64_t)rows[i] * wide + j]; });
}

// dw[j, d] = the sum of x[i, j] over the rows i of token d, order[starts[d], starts[d+1]): first
// those before a whole chunk, then the chunks, then the rest. dw: [wide, D]. A block has a tile of
// dw, kTile x kTile threads, a warp a token. 4 bytes an element of x, at most, and of dw.
//
// Every row has one token: the sums of x's columns, which are the bias's gradient, are those of
// dw's rows. Where one tile has all tokens, db: [wide] and, of the first same, also get them; else
// db is null.
KERNEL(layer_tokens, float *dw, const float *x, const float *partial, const int *starts,
       const int *order, int chunk, int wide, int D, float *db, float *also, int same)
{
    float *tile = (float *)shared_memory(); // [kTile, kPitch], a token a row
    const int64_t j0 = (int64_t)blockIdx.y * kTile, d0 = (int64_t)blockIdx.x * kTile;
    const int64_t j = j0 + threadIdx.x;
    float sum = 0;
    if (d0 + threadIdx.y < D && j < wide) {
        const auto row = [=](int i) { return x[(int64_t)order[i] * wide + j]; };
        const int begin = starts[d0 + threadIdx.y], end = starts[d0 + threadIdx.y + 1];
        const int first = (begin + chunk - 1) / chunk, last = end / chunk; // whole chunks
        if (first >= last) {
            sum = in_order(0, begin, end, row);
        } else {
            sum = in_order(0, begin, first * chunk, row);
            sum = in_order(sum, first, last, [=](int c) { return partial[(int64_t)c * wide + j]; });
            sum = in_order(sum, last * chunk, end, row);
        }
    }
    tile[threadIdx.y * kPitch + threadIdx.x] = sum;
    __syncthreads();
    const int64_t to = j0 + threadIdx.y; // a warp has a row of dw now, zeros where it ends
    sum = tile[threadIdx.x * kPitch + threadIdx.y];
    if (to < wide && d0 + threadIdx.x < D)
        dw[to * D + d0 + threadIdx.x] = sum;
    if (!db)
        return;
    sum = sums::warp_sum(sum);
    if (threadIdx.x == 0 && to < wide) {
        db[to] = sum;
        if (to < same)
            also[to] = sum;
    }
}

// db = the sums of the rows of dw: [wide, D], which those of the first same also get. A warp has a
// row. 4 bytes a weight.
KERNEL(layer_row_sums, float *db, float *also, int same, const float *dw, int wide, int D)
{
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (int64_t j = (int64_t)blockIdx.x * warps + threadIdx.x / 32; j < wide;
         j += (int64_t)gridDim.x * warps) {
        float sum = 0;
#pragma unroll 4
        for (int d = lane; d < D; d += 32)
            sum += dw[j * D + d];
        sum = sums::warp_sum(sum);
        if (lane == 0) {
            db[j] = sum;
            if (j < same)
                also[j] = sum;
        }
    }
}

// In rows that have ended before the step, h: [B, H] and, unless it is null, c become what they
// were before it. 16 bytes an element of these rows.
KERNEL(layer_keep_ended, const int *lengths, int step, int B, int H, float *h,
       const float *h_before, float *c, const float *c_before)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * H || step < lengths[i / H])
        return;
    h[i] = h_before[i];
    if (c)
        c[i] = c_before[i];
}

// The sum of a and b: [B, H], either of which may be null. It goes to open; in rows that have ended
// before the step it goes to kept, and open is zero. 12 bytes an element.
KERNEL(layer_split_ended, const int *lengths, int step, int B, int H, float *open, float *kept,
       const float *a, const float *b)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * H)
        return;
    const float sum = (a ? a[i] : 0) + (b ? b[i] : 0);
    const bool ended = step >= lengths[i / H];
    open[i] = ended ? 0 : sum;
    if (ended)
        kept[i] = sum;
}

} // namespace layer
