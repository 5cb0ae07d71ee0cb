// What treats every element, or every row, alike: one pass over memory each, and nothing else to
// wait for, so that the bytes that a kernel's comment counts are its time. A thread takes four
// neighbouring elements, 16 bytes, wherever all the arrays are aligned to them: a warp moves 512
// bytes at once. Grids are as large as fills the GPU, and threads stride over what is left.
#include "sums.cuh"

// The place of a thread among all, and how many they are.
DEVICE int64_t thread_index() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE int64_t thread_count() { return (int64_t)gridDim.x * blockDim.x; }

DEVICE bool aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

// x[i] = f(x[i]).
template <class F> DEVICE void each(int64_t n, float *x, F f)
{
    const int64_t fours = aligned(x) ? n / 4 : 0;
    for (int64_t i = thread_index(); i < fours; i += thread_count()) {
        float4 v = ((const float4 *)x)[i];
        ((float4 *)x)[i] = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
    }
    for (int64_t i = 4 * fours + thread_index(); i < n; i += thread_count())
        x[i] = f(x[i]);
}

// x = a x. 8 bytes an element.
KERNEL(flat_scale, int64_t n, float *x, float a)
{
    each(n, x, [=](float v) { return v * a; });
}

DEVICE float plus(float a, float b) { return a + b; }

DEVICE float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// y += x. 12 bytes an element.
KERNEL(flat_add, int64_t n, float *y, const float *x)
{
    const int64_t fours = aligned(y) && aligned(x) ? n / 4 : 0;
    for (int64_t i = thread_index(); i < fours; i += thread_count())
        ((float4 *)y)[i] = plus(((const float4 *)y)[i], ((const float4 *)x)[i]);
    for (int64_t i = 4 * fours + thread_index(); i < n; i += thread_count())
        y[i] += x[i];
}

// The rows of a matrix, one warp each, in turn: of(row, column) for every fourth column where whole
// fours are wanted, else for every column.
template <class F> DEVICE void each_row(int64_t rows, int64_t width, int step, F of)
{
    const int lane = threadIdx.x % 32;
    for (int64_t row = thread_index() / 32; row < rows; row += thread_count() / 32)
        for (int64_t column = lane * step; column < width; column += 32 * step)
            of(row, column);
}

// Whether rows of this width begin on 16 bytes where the matrix does.
DEVICE bool whole_fours(int64_t width) { return width % 4 == 0; }

// x: [rows, width] += b: [width] in every row. 8 bytes an element.
KERNEL(flat_add_bias, int64_t rows, int64_t width, float *x, const float *b)
{
    if (whole_fours(width) && aligned(x) && aligned(b)) {
        each_row(rows, width, 4, [=](int64_t row, int64_t column) {
            float4 *at = (float4 *)(x + row * width + column);
            *at = plus(*at, *(const float4 *)(b + column));
        });
        return;
    }
    each_row(rows, width, 1,
             [=](int64_t row, int64_t column) { x[row * width + column] += b[column]; });
}

// y: [rows, width], y[i] = table[ids[i]]. 8 bytes an element.
KERNEL(flat_embed, int64_t rows, int64_t width, float *y, const float *table, const int *ids)
{
    if (whole_fours(width) && aligned(y) && aligned(table)) {
        each_row(rows, width, 4, [=](int64_t row, int64_t column) {
            *(float4 *)(y + row * width + column) =
                *(const float4 *)(table + ids[row] * width + column);
        });
        return;
    }
    each_row(rows, width, 1, [=](int64_t row, int64_t column) {
        y[row * width + column] = table[ids[row] * width + column];
    });
}

// dtable[id] += the rows of dy: [rows, width] that have it, in their order. The rows come grouped
// by id: group g is of id ids[g], and its rows are order[starts[g]] up to order[starts[g+1]]. A
// block walks over groups, its threads have a column each: the order of additions is that of the
// rows, whatever the grid. 4 bytes an element of dy, and 8 of each row of dtable that changes.
KERNEL(flat_embed_backward, int64_t width, float *dtable, const float *dy, const int *groups,
       const int *ids, const int *starts, const int *order)
{
    const int64_t column = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width)
        return;
    const int count = *groups;
    for (int g = blockIdx.x; g < count; g += gridDim.x) {
        float *at = dtable + ids[g] * width + column;
        float sum = *at;
        const int end = starts[g + 1];
#pragma unroll 8
        for (int i = starts[g]; i < end; i++)
            sum += dy[order[i] * width + column];
        *at = sum;
    }
}

// width columns of dst's row i = those of src's row ids[i], or zeros where that is negative; with
// add, what was there and they. V is float, or float4 where every row begins on 16 bytes.
template <class V>
DEVICE void copy_rows(int64_t rows, int64_t width, float *dst, int64_t dst_row, const float *src,
                      int64_t src_row, const int *ids, int add)
{
    each_row(rows, width, sizeof(V) / sizeof(float), [=](int64_t row, int64_t column) {
        const int64_t id = ids ? ids[row] : row;
        V *to = (V *)(dst + row * dst_row + column);
        if (id >= 0) {
            const V v = *(const V *)(src + id * src_row + column);
            *to = add ? plus(*to, v) : v;
        } else if (!add) {
            *to = V();
        }
    });
}

// 8 bytes an element, or 12 with add.
KERNEL(flat_copy_rows, int64_t rows, int64_t width, float *dst, int64_t dst_row, const float *src,
       int64_t src_row, const int *ids, int add)
{
    if (whole_fours(width) && whole_fours(dst_row) && whole_fours(src_row) && aligned(dst) &&
        aligned(src))
        copy_rows<float4>(rows, width, dst, dst_row, src, src_row, ids, add);
    else
        copy_rows<float>(rows, width, dst, dst_row, src, src_row, ids, add);
}

enum { kMeanPool, kMaxPool }; // in the order of compute.Pooling

// y: [n/width, width] = the means or the largest values of x: [steps, n] over each row's length. A
// thread has a column and goes through the steps in order. 4 bytes an element of x in the lengths.
KERNEL(flat_pool, int pooling, int64_t n, int64_t width, float *y, const float *x,
       const int *lengths)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const int length = lengths[i / width];
        float pooled = length > 0 ? x[i] : 0;
#pragma unroll 4
        for (int t = 1; t < length; t++) {
            const float v = x[t * n + i];
            if (pooling == kMeanPool)
                pooled += v;
            else if (pooled == pooled && !(pooled >= v)) // NaN stays, and takes the place of others
                pooled = v;
        }
        y[i] = pooling == kMeanPool && length > 0 ? pooled * (1 / (float)length) : pooled;
    }
}

// dx: [steps, n] = the gradient of x. 4 bytes an element, and as many again to find the largest.
KERNEL(flat_pool_backward, int pooling, int64_t n, int64_t width, int steps, float *dx,
       const float *dy, const float *x, const float *y, const int *lengths)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const int length = lengths[i / width];
        const bool mean = pooling == kMeanPool;
        const float part = mean ? dy[i] * (1 / (float)length) : 0, top = mean ? 0 : y[i];
        bool given = false; // dy, to the first step whose value is the largest
        for (int t = 0; t < length; t++) {
            const bool takes = !mean && !given && !(x[t * n + i] < top);
            dx[t * n + i] = takes ? dy[i] : part;
            given |= takes;
        }
        for (int t = length; t < steps; t++)
            dx[t * n + i] = 0;
    }
}

// Whether dropout keeps an element, as compute.DropoutKeep says it.
DEVICE bool keeps(uint64_t key, int64_t index, float p)
{
    uint64_t z = key + ((uint64_t)index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (float)(uint32_t)(z >> 40) * (1.0f / (1 << 24)) >= p;
}

// y = x scale where an element is kept, else 0, of x, y: [T, lanes, width]; y may be x. 8 bytes an
// element; the hash, some 20 integer operations, is hidden behind them.
KERNEL(flat_dropout, int64_t rows, int64_t width, int lanes, float *y, const float *x,
       const uint64_t *keys, float p, float scale)
{
    const int step = whole_fours(width) && aligned(y) && aligned(x) ? 4 : 1;
    for (int64_t row = thread_index() / 32; row < rows; row += thread_count() / 32) {
        // A division of 64 bits takes as long as a hash: it is left to tensors of 2^32 rows.
        const int64_t t = rows <= UINT32_MAX ? (uint32_t)row / (uint32_t)lanes : row / lanes;
        const uint64_t key = keys[row - t * lanes];
        const int64_t begin = t * width;
        const float *from = x + row * width;
        float *to = y + row * width;
#pragma unroll 2
        for (int64_t i = threadIdx.x % 32 * step; i < width; i += 32 * step) {
            if (step == 1) {
                to[i] = keeps(key, begin + i, p) ? from[i] * scale : 0;
                continue;
            }
            float4 v = *(const float4 *)(from + i);
            v.x = keeps(key, begin + i, p) ? v.x * scale : 0;
            v.y = keeps(key, begin + i + 1, p) ? v.y * scale : 0;
            v.z = keeps(key, begin + i + 2, p) ? v.z * scale : 0;
            v.w = keeps(key, begin + i + 3, p) ? v.w * scale : 0;
            *(float4 *)(to + i) = v;
        }
    }
}

// compute.SumSquares' order: blocks of kSquares elements, in kLanes sums each, and parts of kBlocks
// blocks. A GPU and a processor have the same bits, so that ranks of either clip alike.
constexpr int kSquares = 1 << 12, kLanes = 16, kBlocks = 1 << 8;

// partial[block] = the sum of squares of the block's elements; squares of floats are exact in
// double precision and cannot exceed it. All threads bring the elements into shared memory, kLanes
// of them add. 4 bytes an element.
KERNEL(flat_sum_squares, int64_t n, const float *x, double *partial)
{
    float *const tile = (float *)shared_memory();
    double *const sums = (double *)(tile + kSquares);
    x += (int64_t)blockIdx.x * kSquares;
    const int64_t left = n - (int64_t)blockIdx.x * kSquares;
    const int count = left < kSquares ? (int)left : kSquares;
    const int fours = aligned(x) ? count / 4 : 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < fours; i += blockDim.x)
        ((float4 *)tile)[i] = ((const float4 *)x)[i];
    for (int i = 4 * fours + threadIdx.x; i < count; i += blockDim.x)
        tile[i] = x[i];
    __syncthreads();
    if (threadIdx.x < kLanes) {
        double sum = 0;
#pragma unroll 16
        for (int i = threadIdx.x; i < count; i += kLanes)
            sum += (double)tile[i] * (double)tile[i];
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int lane = 0; lane < kLanes; lane++)
            sum += sums[lane];
        partial[blockIdx.x] = sum;
    }
}

// The sum of the parts' sums of n blocks' sums, in the block's first thread; it leaves a part's sum
// in the place of its first block's.
DEVICE double sum_parts(int64_t n, double *partial)
{
    for (int64_t part = threadIdx.x; part * kBlocks < n; part += blockDim.x) {
        double sum = 0;
        const int64_t end = min((part + 1) * kBlocks, n);
#pragma unroll 16
        for (int64_t i = part * kBlocks; i < end; i++)
            sum += partial[i];
        partial[part * kBlocks] = sum;
    }
    __syncthreads();
    double sum = 0;
    for (int64_t i = 0; threadIdx.x == 0 && i < n; i += kBlocks)
        sum += partial[i];
    return sum;
}

// *total = that sum, by one block; *host, of the host's memory, too, unless it is null.
KERNEL(flat_sum_parts, int64_t n, double *partial, double *total, double *host)
{
    const double sum = sum_parts(n, partial);
    if (threadIdx.x > 0)
        return;
    *total = sum;
    if (host)
        *host = sum;
}

// compute.Clip, and the part of the loss that the host knows.
struct limits {
    double limit, share, loss_limit, loss;
    int by_value;
};

// How a gradient is limited: not at all if its norm is not finite, else each element to the bound,
// which may be infinite, and then by the factor.
struct verdict {
    double norm;
    float factor, bound;
};

// *out = the verdict on a gradient whose blocks' sums of squares are partial: [n], by one block.
// loss is the rest of the loss, or null: where their sum is not below its limit, the norm is no
// number. Roots and quotients are rounded as a processor does, and no product is added to. The norm
// goes to the host's memory, too.
KERNEL(flat_judge, int64_t n, double *partial, const limits *by, const double *loss, verdict *out,
       double *host)
{
    const double sum = sum_parts(n, partial);
    if (threadIdx.x > 0)
        return;
    double norm = sqrt(sum), factor = by->share;
    if (loss && !(fabs(by->loss + *loss) < by->loss_limit))
        norm = NAN;
    const bool limited = by->limit > 0;
    if (limited && !by->by_value && norm > by->limit)
        factor *= by->limit / norm;
    *host = out->norm = norm;
    out->factor = (float)factor;
    out->bound = limited && by->by_value ? (float)by->limit : INFINITY;
}

// x limited as the verdict says. 8 bytes an element, or none.
KERNEL(flat_clip, int64_t n, float *x, const verdict *by)
{
    const float factor = by->factor, bound = by->bound;
    if (!is_finite(by->norm) || (factor == 1 && bound == INFINITY))
        return;
    each(n, x, [=](float v) {
        v = v > bound ? bound : v < -bound ? -bound : v;
        return v * factor;
    });
}

// *total = the sum of n numbers, by one block; *host, of the host's memory, too.
KERNEL(flat_sum_doubles, int64_t n, const double *x, double *total, double *host)
{
    const double sum = sums::sum_doubles(x, n, (double *)shared_memory());
    if (threadIdx.x == 0)
        *host = *total = sum;
}

// out = the column sums of x: [rows, columns], for each slab of blockIdx.y that has slab rows:
// [slabs, columns]; with add, what was there and they. The first same columns' go to also, too.
// Blocks of sums::kColumns x sums::kParts threads. 4 bytes an element.
KERNEL(flat_column_sums, int rows, int slab, int64_t columns, const float *x, float *out,
       float *also, int64_t same, int add)
{
    const int64_t first = (int64_t)blockIdx.y * slab;
    const int64_t column = (int64_t)blockIdx.x * sums::kColumns + threadIdx.x % sums::kColumns;
    const int64_t left = rows - first;
    const float sum =
        sums::column_sum(x + first * columns, left < slab ? (int)left : slab, columns, columns,
                         column, (float *)shared_memory());
    if (threadIdx.x >= sums::kColumns || column >= columns)
        return;
    float *at = out + blockIdx.y * columns + column;
    const float total = add ? *at + sum : sum;
    *at = total;
    if (column < same)
        also[column] = total;
}
