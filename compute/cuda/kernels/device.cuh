// The language that Rondo's kernels are written in: CUDA C, less what its test double cannot run,
// plus names for the instructions that CUDA C does not name. nvcc compiles a kernel for a GPU; a
// plain C++ compiler compiles the same text for the emulated driver of ../emulator.
//
// KERNEL(name, parameters...) { body } defines a kernel that the host finds by its name. A
// template is a DEVICE function that thin kernels call. Shared memory is dynamic only:
// shared_memory(). Collectives of a warp are for all its 32 lanes, under the mask kWarp.
//
// bf16 and fp16 numbers are their bits, in uint16_t; tf32 is a float whose low 13 bits are zero.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#define DEVICE __device__ __forceinline__
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define KERNEL_BOUNDS(name, threads, blocks_per_sm, ...) \
	extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm) name(__VA_ARGS__)

// shared_memory is the block's dynamic shared memory, aligned to 16 bytes.
DEVICE unsigned char *shared_memory() {
	extern __shared__ uint4 dynamic_shared_memory[];
	return reinterpret_cast<unsigned char *>(dynamic_shared_memory);
}

// exp2_approx is 2^x within 2 units in the last place, reciprocal_approx 1/x within one; what is
// below the normal numbers counts as zero. Each is one instruction.
DEVICE float exp2_approx(float x) {
	float result;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
	return result;
}

DEVICE float reciprocal_approx(float x) {
	float result;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
	return result;
}

// relax stands in every loop that waits for another block.
DEVICE void relax() {}

// trap ends the launch with an error, and all that the process has on the GPU with it.
DEVICE void trap() { __trap(); }

#else
#include "emulate.h"
#endif

constexpr unsigned kWarp = 0xffffffffu; // the mask of all lanes

DEVICE uint32_t bits(float value) { return __float_as_uint(value); }
DEVICE float from_bits(uint32_t value) { return __uint_as_float(value); }

DEVICE bool is_finite(double value) { return value - value == 0; }

// any_to_bf16 is to_bf16 for modules of which one file serves all GPUs.
DEVICE uint16_t any_to_bf16(float value) {
	uint32_t u = bits(value);
	if ((u & 0x7fffffffu) > 0x7f800000u) {
		return 0x7fff;
	}
	return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// to_bf16 rounds to the nearest, ties to even. Every NaN becomes 0x7fff, as in the instruction.
DEVICE uint16_t to_bf16(float value) {
#if __CUDA_ARCH__ >= 800
	uint16_t result;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
	return result;
#else
	return any_to_bf16(value);
#endif
}

DEVICE float from_bf16(uint16_t value) { return from_bits(static_cast<uint32_t>(value) << 16); }

// to_fp16 rounds to the nearest, ties to even; what is too large becomes infinite.
DEVICE uint16_t to_fp16(float value) {
#ifdef __CUDACC__
	uint16_t result;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
	return result;
#else
	return emulator::to_fp16(value);
#endif
}

DEVICE float from_fp16(uint16_t value) {
#ifdef __CUDACC__
	float result;
	asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
	return result;
#else
	return emulator::from_fp16(value);
#endif
}

// to_tf32 rounds to the nearest, ties away from zero.
DEVICE float to_tf32(float value) {
#if __CUDA_ARCH__ >= 800
	uint32_t result;
	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(value));
	return from_bits(result);
#else
	uint32_t u = bits(value);
	if ((u & 0x7f800000u) == 0x7f800000u) {
		return value; // infinite, or no number
	}
	return from_bits((u + 0x1000u) & 0xffffe000u);
#endif
}

// pack makes the operand of two halves that the tensor instructions take: lo comes first in memory.
DEVICE uint32_t pack(uint16_t lo, uint16_t hi) {
	return static_cast<uint32_t>(lo) | static_cast<uint32_t>(hi) << 16;
}
