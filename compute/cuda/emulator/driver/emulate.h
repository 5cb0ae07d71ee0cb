// What device.cuh takes for CUDA C when a plain C++ compiler compiles a kernel: the names of the
// language as calls into the emulated driver, which runs every thread of a block as a fibre.
// Only the threads of one launch run, one at a time, so atomics are plain arithmetic.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <utility>

struct dim3 {
	unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) int2 {
	int x, y;
};
struct alignas(16) int4 {
	int x, y, z, w;
};
struct alignas(8) uint2 {
	unsigned x, y;
};
struct alignas(8) float2 {
	float x, y;
};
struct alignas(16) double2 {
	double x, y;
};
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};
struct alignas(16) float4 {
	float x, y, z, w;
};

namespace emulator {

#pragma GCC visibility push(default) // what the driver's library gives

// A position is what a thread knows of its place. The driver points running at that of the fibre
// that runs.
struct position {
	dim3 thread_index, block_index, block_size, grid_size;
	unsigned lane; // in its warp
	unsigned char *shared;
};
extern position *running;
extern uint64_t changes; // what can end the waiting of others, counted

// What the driver does for a thread. line is where the kernel says so.
void barrier(int line);
// collective returns when all lanes of the warp have come; the last calls finish with what each of
// the 32 brought.
void collective(const char *what, int line, void *brought, void (*finish)(void **brought));
void yield();
// check_shared refuses an address that is not in shared memory, or not aligned to bytes.
void check_shared(const void *from, size_t bytes, int line);
[[noreturn]] void refuse(const char *what, int line); // ends the launch with an error

// A kernel as the host finds it. Arguments arrive as pointers to their values.
struct kernel {
	const char *name;
	void (*call)(void **arguments);
	const size_t *sizes; // of the arguments
	size_t count;
	unsigned max_threads; // of a block; 0 is any
	kernel *next;
};
void add(kernel *k);

#pragma GCC visibility pop

// registered<f> makes a kernel of the function f.
template <auto F> struct registered;
template <class... P, void (*F)(P...)> struct registered<F> {
	kernel made;
	explicit registered(const char *name, unsigned max_threads) {
		static const size_t sizes[] = {sizeof(P)..., 0};
		made = kernel{name, &call, sizes, sizeof...(P), max_threads, nullptr};
		add(&made);
	}
	static void call(void **arguments) { call(arguments, std::index_sequence_for<P...>{}); }
	template <size_t... I> static void call(void **arguments, std::index_sequence<I...>) {
		(void)arguments;
		F(*static_cast<P *>(arguments[I])...);
	}
};

template <class T> void take_from_lane(void **brought);

// What one lane brings to a shuffle.
template <class T> struct shuffled {
	T value, result;
	int from;
};

template <class T> void take_from_lane(void **brought) {
	for (int lane = 0; lane < 32; lane++) {
		auto *mine = static_cast<shuffled<T> *>(brought[lane]);
		mine->result = static_cast<shuffled<T> *>(brought[mine->from])->value;
	}
}

inline void check_mask(unsigned mask, int line) {
	if (mask != 0xffffffffu) {
		refuse("a warp collective with another mask than that of all lanes", line);
	}
}

// shuffle gives the value of the lane from, or of the own where from lies outside of the segment
// of width lanes.
template <class T> T shuffle(const char *what, T value, int from, int width, int line) {
	int lane = static_cast<int>(running->lane);
	if (from / width != lane / width || from < 0) {
		from = lane;
	}
	shuffled<T> s{value, value, from};
	collective(what, line, &s, take_from_lane<T>);
	return s.result;
}

struct vote {
	bool yes;
	unsigned ballot;
};

inline void count_votes(void **brought) {
	unsigned ballot = 0;
	for (int lane = 0; lane < 32; lane++) {
		ballot |= static_cast<unsigned>(static_cast<vote *>(brought[lane])->yes) << lane;
	}
	for (int lane = 0; lane < 32; lane++) {
		static_cast<vote *>(brought[lane])->ballot = ballot;
	}
}

inline uint32_t float_bits(float value) {
	uint32_t u;
	memcpy(&u, &value, 4);
	return u;
}
inline float bits_float(uint32_t u) {
	float value;
	memcpy(&value, &u, 4);
	return value;
}

inline float from_fp16(uint16_t h) {
	uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 31u;
	uint32_t mantissa = h & 0x3ffu;
	if (exponent == 31) {
		return bits_float(sign | 0x7f800000u | mantissa << 13);
	}
	if (exponent == 0) { // a multiple of 2^-24
		float value = static_cast<float>(mantissa) * 0x1p-24f;
		return sign != 0 ? -value : value;
	}
	return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

// astray is a number so many units in the last place away; no number, infinity, zero and powers of
// two stay. Below the normal numbers it is zero.
inline float astray(float exact, float operand, uint32_t units) {
	const uint32_t bits = float_bits(exact), exponent = bits & 0x7f800000u;
	if (exponent == 0) {
		return 0;
	}
	if (exponent == 0x7f800000u || (bits & 0x7fffffu) == 0) {
		return exact;
	}
	return bits_float(float_bits(operand) * 2654435761u >> 31 ? bits + units : bits - units);
}

inline uint16_t to_fp16(float value) {
	uint32_t u = float_bits(value), sign = u >> 16 & 0x8000u;
	u &= 0x7fffffffu;
	if (u > 0x7f800000u) {
		return 0x7fff; // as the instruction does with every NaN
	}
	if (u >= 0x477ff000u) { // 65520 and more round to infinity
		return static_cast<uint16_t>(sign | 0x7c00u);
	}
	if (u < 0x38800000u) { // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
		float rounded = bits_float(u) + 0.5f;
		return static_cast<uint16_t>(sign | (float_bits(rounded) - 0x3f000000u));
	}
	u += 0xfffu + (u >> 13 & 1u);
	return static_cast<uint16_t>(sign | (u - 0x38000000u) >> 13);
}

} // namespace emulator

#define DEVICE inline
#define EMULATED_KERNEL(name, max_threads, ...) \
	static void name(__VA_ARGS__); \
	static emulator::registered<&name> registered_##name(#name, max_threads); \
	static void name(__VA_ARGS__)
#define KERNEL(name, ...) EMULATED_KERNEL(name, 0, __VA_ARGS__)
#define KERNEL_BOUNDS(name, threads, blocks_per_sm, ...) \
	EMULATED_KERNEL(name, threads, __VA_ARGS__)

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __restrict__ __restrict

#define threadIdx (emulator::running->thread_index)
#define blockIdx (emulator::running->block_index)
#define blockDim (emulator::running->block_size)
#define gridDim (emulator::running->grid_size)
constexpr int warpSize = 32;

inline unsigned char *shared_memory() { return emulator::running->shared; }

// Barriers and collectives.
inline void __syncthreads(int line = __builtin_LINE()) { emulator::barrier(line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
	emulator::check_mask(mask, line);
	emulator::collective("__syncwarp", line, nullptr, nullptr);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, int line = __builtin_LINE()) {
	emulator::check_mask(mask, line);
	int first = static_cast<int>(emulator::running->lane) & ~(width - 1);
	int lane = first + (from & (width - 1));
	return emulator::shuffle("__shfl_sync", value, lane, width, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {
	emulator::check_mask(mask, line);
	int lane = static_cast<int>(emulator::running->lane) ^ lanes;
	return emulator::shuffle("__shfl_xor_sync", value, lane, width, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
	int line = __builtin_LINE()) {
	emulator::check_mask(mask, line);
	int lane = static_cast<int>(emulator::running->lane + by);
	return emulator::shuffle("__shfl_down_sync", value, lane, width, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
	int line = __builtin_LINE()) {
	emulator::check_mask(mask, line);
	int lane = static_cast<int>(emulator::running->lane) - static_cast<int>(by);
	return emulator::shuffle("__shfl_up_sync", value, lane, width, line);
}
inline unsigned __ballot_sync(unsigned mask, bool yes, int line = __builtin_LINE()) {
	emulator::check_mask(mask, line);
	emulator::vote v{yes, 0};
	emulator::collective("__ballot_sync", line, &v, emulator::count_votes);
	return v.ballot;
}
inline bool __any_sync(unsigned mask, bool yes, int line = __builtin_LINE()) {
	return __ballot_sync(mask, yes, line) != 0;
}
inline bool __all_sync(unsigned mask, bool yes, int line = __builtin_LINE()) {
	return __ballot_sync(mask, yes, line) == 0xffffffffu;
}

// Atomics and memory order.
template <class T, class V> T atomicExch(T *at, V value) {
	T was = *at;
	*at = static_cast<T>(value);
	emulator::changes += *at != was;
	return was;
}
template <class T, class V> T atomicAdd(T *at, V value) {
	return atomicExch(at, *at + static_cast<T>(value));
}
template <class T, class V> T atomicMax(T *at, V value) {
	return atomicExch(at, *at > static_cast<T>(value) ? *at : static_cast<T>(value));
}
template <class T, class V> T atomicMin(T *at, V value) {
	return atomicExch(at, *at < static_cast<T>(value) ? *at : static_cast<T>(value));
}
template <class T, class U, class V> T atomicCAS(T *at, U expected, V value) {
	if (*at != static_cast<T>(expected)) {
		emulator::yield(); // so that a loop that waits for it ends
	}
	return *at != static_cast<T>(expected) ? *at : atomicExch(at, value);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void relax() { emulator::yield(); }
inline void trap(int line = __builtin_LINE()) { emulator::refuse("trap", line); }

// Arithmetic that C++ does not name.
template <class T> T __ldg(const T *from) { return *from; }
inline uint32_t __float_as_uint(float value) { return emulator::float_bits(value); }
inline float __uint_as_float(uint32_t value) { return emulator::bits_float(value); }
inline int __float_as_int(float value) { return static_cast<int>(emulator::float_bits(value)); }
inline float __int_as_float(int value) {
	return emulator::bits_float(static_cast<uint32_t>(value));
}
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1 / x; }
// Approximations have the largest error that the PTX ISA allows, up or down by the operand's bits.
inline float exp2_approx(float x) { return emulator::astray(exp2f(x), x, 2); }
inline float reciprocal_approx(float x) { return emulator::astray(1 / x, x, 1); }
inline float __fmul_rn(float a, float b) {
	volatile float product = a * b; // never part of an fma
	return product;
}
inline float __fadd_rn(float a, float b) {
	volatile float sum = a + b;
	return sum;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __clz(int value) {
	return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
template <class A, class B> auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
