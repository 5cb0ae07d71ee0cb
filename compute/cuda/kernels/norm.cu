// Layer normalisation (compute.LayerNorm). A warp has a row, which its three passes read from the
// caches after the first.
#include "sums.cuh"

// The rows, one warp each, in turn.
template <class F> DEVICE void each_row(int64_t rows, F of)
{
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows;
         row += warps)
        of(row);
}

// y: [rows, width]; it may be x. stats: [rows, 2], or null. 8 bytes an element.
KERNEL(norm_forward, int64_t rows, int64_t width, const float *x, const float *weight,
       const float *bias, float *stats, float *y)
{
    const int lane = threadIdx.x % 32;
    each_row(rows, [=](int64_t row) {
        const float *from = x + row * width;
        float sum = 0, squares = 0;
        for (int64_t j = lane; j < width; j += 32)
            sum += from[j];
        const float mean = sums::warp_sum(sum) / width;
        for (int64_t j = lane; j < width; j += 32)
            squares += (from[j] - mean) * (from[j] - mean);
        const float factor = 1 / sqrtf(sums::warp_sum(squares) / width + 1e-5f);
        for (int64_t j = lane; j < width; j += 32)
            y[row * width + j] = (from[j] - mean) * factor * weight[j] + bias[j];
        if (stats && lane == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = factor;
        }
    });
}

// dx: [rows, width]; it may be dy. With the gradient g of the row z = (x - mean) factor:
// dx = factor (g - mean(g) - z mean(g z)). 12 bytes an element.
KERNEL(norm_rows, int64_t rows, int64_t width, const float *x, const float *weight,
       const float *stats, const float *dy, float *dx)
{
    const int lane = threadIdx.x % 32;
    each_row(rows, [=](int64_t row) {
        const float *from = x + row * width, *d = dy + row * width;
        const float mean = stats[2 * row], factor = stats[2 * row + 1];
        float sum = 0, product = 0;
        for (int64_t j = lane; j < width; j += 32) {
            const float g = d[j] * weight[j];
            sum += g;
            product += g * ((from[j] - mean) * factor);
        }
        sum = sums::warp_sum(sum) / width;
        product = sums::warp_sum(product) / width;
        for (int64_t j = lane; j < width; j += 32) {
            const float z = (from[j] - mean) * factor;
            dx[row * width + j] = (d[j] * weight[j] - sum - z * product) * factor;
        }
    });
}

// dw, db = the sums of dy z and of dy over each slab of blockIdx.y that has slab rows: [slabs,
// width]. Blocks of sums::kColumns x sums::kParts threads, as in sums::column_sum. 8 bytes an
// element.
KERNEL(norm_columns, int rows, int slab, int64_t width, const float *x, const float *stats,
       const float *dy, float *dw, float *db)
{
    const int64_t first = (int64_t)blockIdx.y * slab;
    const int c = threadIdx.x % sums::kColumns, p = threadIdx.x / sums::kColumns;
    const int64_t column = (int64_t)blockIdx.x * sums::kColumns + c;
    const int64_t end = first + slab < rows ? first + slab : rows;
    float *const products = (float *)shared_memory();
    float *const plain = products + sums::kColumns * sums::kParts;
    float product = 0, sum = 0;
    if (column < width) {
#pragma unroll 4
        for (int64_t r = first + p; r < end; r += sums::kParts) {
            const float d = dy[r * width + column];
            product += d * ((x[r * width + column] - stats[2 * r]) * stats[2 * r + 1]);
            sum += d;
        }
    }
    products[threadIdx.x] = product;
    plain[threadIdx.x] = sum;
    __syncthreads();
    if (p > 0 || column >= width)
        return;
    for (int i = 1; i < sums::kParts; i++) {
        product += products[i * sums::kColumns + c];
        sum += plain[i * sums::kColumns + c];
    }
    dw[blockIdx.y * width + column] = product;
    db[blockIdx.y * width + column] = sum;
}
