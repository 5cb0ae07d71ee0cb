// Kernels that probe.cpp runs: one for each thing that the emulated driver promises.

#include "device.cuh"
#include "mma.cuh"

// to_from[i] becomes what the next thread wrote into shared memory. Without a barrier that is NaN
// for some.
KERNEL(neighbours, float *out, int with_barrier) {
	float *shared = reinterpret_cast<float *>(shared_memory());
	shared[threadIdx.x] = static_cast<float>(threadIdx.x);
	if (with_barrier != 0) {
		__syncthreads();
	}
	out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

// shuffles fills out [8, 32].
KERNEL(shuffles, double *out) {
	unsigned lane = threadIdx.x % 32;
	out[lane] = __shfl_sync(kWarp, 1.5f * static_cast<float>(lane), 7);
	out[32 + lane] = __shfl_xor_sync(kWarp, static_cast<double>(lane), 5);
	out[64 + lane] = __shfl_down_sync(kWarp, static_cast<int>(lane), 3);
	out[96 + lane] = __shfl_up_sync(kWarp, lane, 3);
	out[128 + lane] = __shfl_sync(kWarp, lane, 1, 8);
	out[160 + lane] = __shfl_down_sync(kWarp, lane, 3, 8);
	out[192 + lane] = __ballot_sync(kWarp, lane % 3 == 0);
	float sum = static_cast<float>(lane);
	for (int i = 16; i > 0; i /= 2) {
		sum += __shfl_xor_sync(kWarp, sum, i);
	}
	__syncwarp();
	out[224 + lane] = sum;
}

// multiply_all fills d [3, 16, 8] with a [16, 16] b [16, 8], as bf16, fp16, and in two steps tf32:
// by the instructions, or by what stands for them on old GPUs.
template <bool Slow> DEVICE void multiply_all(float *d, const float *a, const float *b) {
	int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
	auto store = [&](int which, const float (&x)[4]) {
		for (int i = 0; i < 4; i++) {
			d[which * 128 + (g + i / 2 * 8) * 8 + 2 * t + i % 2] = x[i];
		}
	};
	uint32_t x[4], y[2];
	for (int which = 0; which < 2; which++) {
		auto halves = [&](float lo, float hi) {
			return which == 0 ? pack(to_bf16(lo), to_bf16(hi)) : pack(to_fp16(lo), to_fp16(hi));
		};
		for (int i = 0; i < 4; i++) {
			const float *from = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
			x[i] = halves(from[0], from[1]);
		}
		for (int i = 0; i < 2; i++) {
			const float *from = b + (2 * t + i * 8) * 8 + g;
			y[i] = halves(from[0], from[8]);
		}
		float sum[4] = {};
		if (which == 0) {
			Slow ? mma_halves<from_bf16>(sum, x, y) : mma_bf16(sum, x, y);
		} else {
			Slow ? mma_halves<from_fp16>(sum, x, y) : mma_fp16(sum, x, y);
		}
		store(which, sum);
	}
	float sum[4] = {};
	for (int k = 0; k < 16; k += 8) {
		for (int i = 0; i < 4; i++) {
			x[i] = bits(to_tf32(a[(g + i % 2 * 8) * 16 + k + t + i / 2 * 4]));
		}
		for (int i = 0; i < 2; i++) {
			y[i] = bits(to_tf32(b[(k + t + i * 4) * 8 + g]));
		}
		Slow ? mma_tf32_slow(sum, x, y) : mma_tf32(sum, x, y);
	}
	store(2, sum);
}

KERNEL(products, float *d, const float *a, const float *b) { multiply_all<false>(d, a, b); }
KERNEL(products_slow, float *d, const float *a, const float *b) { multiply_all<true>(d, a, b); }

// load_all loads four 8x8 matrices, which hold 0, 1, ..., twice: out [2 loads, 32, 4].
template <bool Slow> DEVICE void load_all(uint32_t *out) {
	uint16_t *shared = reinterpret_cast<uint16_t *>(shared_memory());
	for (unsigned i = threadIdx.x; i < 256; i += 32) {
		shared[i] = static_cast<uint16_t>(i);
	}
	__syncwarp();
	uint32_t r[4] = {};
	const void *row = shared + threadIdx.x * 8;
	auto store = [&](int which) {
		for (int i = 0; i < 4; i++) {
			out[(which * 32 + static_cast<int>(threadIdx.x)) * 4 + i] = r[i];
		}
	};
	Slow ? ldmatrix_slow<false>(r, row) : ldmatrix_x4(r, row);
	store(0);
	Slow ? ldmatrix_slow<true>(r, row) : ldmatrix_x4_trans(r, row);
	store(1);
}

KERNEL(matrices, uint32_t *out) { load_all<false>(out); }
KERNEL(matrices_slow, uint32_t *out) { load_all<true>(out); }

// count has one thread of each block add to a number, and every thread to another.
KERNEL(count, int *blocks, float *threads, unsigned *most) {
	if (threadIdx.x == 0) {
		atomicAdd(blocks, 1);
	}
	atomicAdd(threads, 0.5f);
	atomicMax(most, threadIdx.x);
}

// scale is y = factor x, for n numbers.
KERNEL(scale, float *y, const float *x, float factor, int n) {
	int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n) {
		y[i] = factor * x[i];
	}
}

KERNEL_BOUNDS(bounded, 64, 1, float *out) { out[threadIdx.x] = 1; }

// What must be refused.
KERNEL(some_exit, float *out) {
	if (threadIdx.x == 3) {
		return;
	}
	__syncthreads();
	out[threadIdx.x] = 1;
}

KERNEL(two_barriers, float *out) {
	if (threadIdx.x < 32) {
		__syncthreads();
	} else {
		out[threadIdx.x] = 1;
		__syncthreads();
	}
}

KERNEL(half_a_warp, float *out) {
	if (threadIdx.x < 16) {
		out[threadIdx.x] = __shfl_sync(kWarp, 1.0f, 0);
	}
}

KERNEL(never, unsigned *flag) {
	while (*static_cast<volatile unsigned *>(flag) != 1) {
		relax();
	}
}

KERNEL(write_at, float *out, int index) { out[index] = 1; }

KERNEL(write_shared, int index) {
	if (threadIdx.x == 0) {
		shared_memory()[index] = 1;
	}
}

KERNEL(recurse, float *out) {
	volatile float large[65536];
	for (int i = 65535; i >= 0; i--) {
		large[i] = 1;
	}
	out[0] = large[5];
}

KERNEL(misaligned, uint32_t *out) {
	uint32_t r[4];
	ldmatrix_x4(r, shared_memory() + 2);
	out[threadIdx.x] = r[0];
}
