// The tensor instructions of one warp, with the fragments of the PTX ISA. With lane = 4 g + t:
//
//   mma_bf16, mma_fp16 (16x8x16)         mma_tf32 (16x8x8)
//   a[0] row g,   columns 2t, 2t+1       row g,   column t
//   a[1] row g+8, columns 2t, 2t+1       row g+8, column t
//   a[2] row g,   columns 2t+8, 2t+9     row g,   column t+4
//   a[3] row g+8, columns 2t+8, 2t+9     row g+8, column t+4
//   b[0] rows 2t, 2t+1,   column g       row t,   column g
//   b[1] rows 2t+8, 2t+9, column g       row t+4, column g
//   d[0], d[1]  row g,   columns 2t, 2t+1
//   d[2], d[3]  row g+8, columns 2t, 2t+1
//
// ldmatrix_x4 loads four 8x8 matrices of 16-bit elements: lane 8 i + r gives the address of row r
// of matrix i, 16 bytes aligned to 16; r[i] gets row g, columns 2t and 2t+1 of matrix i, or of its
// transpose. Every lane of the warp takes part. GPUs older than sm_80 get a slow version.
#pragma once

#include "device.cuh"

#if !defined(__CUDACC__) || __CUDA_ARCH__ < 800

// mma_halves is d += a b, by shuffles. Convert makes a float of 16 bits.
template <float (*Convert)(uint16_t)>
DEVICE void mma_halves(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
	int lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
	int row = lane & ~3, column = (lane & 3) * 8; // of a: g; of b: 2t; as first lanes
#pragma unroll
	for (int pair = 0; pair < 8; pair++) {
		int high = pair / 4, from = pair % 4;
		uint32_t a0 = __shfl_sync(kWarp, a[2 * high], row + from);
		uint32_t a1 = __shfl_sync(kWarp, a[2 * high + 1], row + from);
		uint32_t b0 = __shfl_sync(kWarp, b[high], column + from);
		uint32_t b1 = __shfl_sync(kWarp, b[high], column + 4 + from);
#pragma unroll
		for (int shift = 0; shift < 32; shift += 16) {
			float x0 = Convert(static_cast<uint16_t>(a0 >> shift));
			float x1 = Convert(static_cast<uint16_t>(a1 >> shift));
			float y0 = Convert(static_cast<uint16_t>(b0 >> shift));
			float y1 = Convert(static_cast<uint16_t>(b1 >> shift));
			d[0] = fmaf(x0, y0, d[0]);
			d[1] = fmaf(x0, y1, d[1]);
			d[2] = fmaf(x1, y0, d[2]);
			d[3] = fmaf(x1, y1, d[3]);
		}
	}
}

DEVICE void mma_tf32_slow(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
	int lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
	int row = lane & ~3, column = (lane & 3) * 8;
	// The instruction does not look at the low 13 bits.
	const uint32_t seen = 0xffffe000u;
#pragma unroll
	for (int k = 0; k < 8; k++) {
		int high = k / 4, from = k % 4;
		float x0 = from_bits(__shfl_sync(kWarp, a[2 * high], row + from) & seen);
		float x1 = from_bits(__shfl_sync(kWarp, a[2 * high + 1], row + from) & seen);
		float y0 = from_bits(__shfl_sync(kWarp, b[high], column + from) & seen);
		float y1 = from_bits(__shfl_sync(kWarp, b[high], column + 4 + from) & seen);
		d[0] = fmaf(x0, y0, d[0]);
		d[1] = fmaf(x0, y1, d[1]);
		d[2] = fmaf(x1, y0, d[2]);
		d[3] = fmaf(x1, y1, d[3]);
	}
}

// ldmatrix_slow is ldmatrix where there is no such instruction.
template <bool Transpose> DEVICE void ldmatrix_slow(uint32_t (&r)[4], const void *shared_row) {
	int lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
	unsigned long long address = reinterpret_cast<unsigned long long>(shared_row);
	int g = lane / 4, t = lane % 4;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int row = 8 * i + (Transpose ? 2 * t : g);
		const void *first = reinterpret_cast<const void *>(__shfl_sync(kWarp, address, row));
		if (Transpose) {
			const void *second =
				reinterpret_cast<const void *>(__shfl_sync(kWarp, address, row + 1));
			r[i] = pack(static_cast<const uint16_t *>(first)[g],
				static_cast<const uint16_t *>(second)[g]);
		} else {
			r[i] = static_cast<const uint32_t *>(first)[t];
		}
	}
}

#endif

#ifndef __CUDACC__
#include "emulate_mma.h"
#else

DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
	mma_halves<from_bf16>(d, a, b);
#endif
}

DEVICE void mma_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
	mma_halves<from_fp16>(d, a, b);
#endif
}

DEVICE void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
	mma_tf32_slow(d, a, b);
#endif
}

DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *shared_row) {
#if __CUDA_ARCH__ >= 750
	unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		: "r"(from)
		: "memory");
#else
	ldmatrix_slow<false>(r, shared_row);
#endif
}

DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void *shared_row) {
#if __CUDA_ARCH__ >= 750
	unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		: "r"(from)
		: "memory");
#else
	ldmatrix_slow<true>(r, shared_row);
#endif
}

#endif
