// The product of the persistent recurrent kernels, which stay on the GPU for all T steps of a
// segment: how a block keeps its rows of a matrix on chip, how the blocks hand each other what they
// multiply, and how eight warps multiply it.
//
// A block has up to 16*MT rows of a matrix of k columns, and multiplies them with the k numbers
// of 16 lanes at a time, a tile: [rows, k] x [k, 16]. Its warps share out k, so that each number of
// the matrix and of the lanes is read by one warp alone, once, straight into the registers that the
// tensor instructions take it from. The order of k within an instruction is free as long as both
// sides keep it: thread 4 g + q takes 16 consecutive bytes of row g (and of row g+8) and of lane g,
// which are what two instructions need. 64 bytes of k, of the four q, are a column here.
//
// The exchange is how the blocks hand on what they compute. It has room for every step and is zero
// before the launch, and a word that is written is never zero: who needs a number looks until it is
// not zero. No barrier, no fence and no counter stands between the block that writes and those that
// read; a step costs one way into the L2 cache and one out of it. The blocks are launched as a
// cooperative grid, so that all run at once, and none waits for a later step: each wait ends.
#pragma once

#include "mma.cuh"

namespace persistent {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTile = 16;  // lanes that are multiplied at once, two instructions wide
constexpr int kAhead = 4;  // columns that a warp has under way to it
constexpr int kWords = 16; // of a column, for one lane
constexpr int kColumn = kTile * kWords / 4; // uint4 of a column, for a tile

// Sums of one instruction: d of mma.cuh.
struct fragment {
	float at[4];
};

// Operands of 16 bits: bf16 and fp16.
template <uint16_t (*Round)(float), void (*Multiply)(float (&)[4], const uint32_t (&)[4],
										const uint32_t (&)[2])>
struct halves {
	static constexpr int kPerWord = 2, kStage = 0;
	using sums = fragment;
	DEVICE static uint32_t word(const float *x) { return pack(Round(x[0]), Round(x[1])); }
	DEVICE static uint32_t round(float x) { return Round(x); }
	DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
		Multiply(d, a, b);
	}
};
DEVICE void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
	mma_bf16(d, a, b);
}
DEVICE void multiply_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
	mma_fp16(d, a, b);
}
DEVICE uint16_t round_bf16(float x) { return to_bf16(x); }
DEVICE uint16_t round_fp16(float x) { return to_fp16(x); }
using bf16 = halves<round_bf16, multiply_bf16>;
using fp16 = halves<round_fp16, multiply_fp16>;

struct tf32 {
	static constexpr int kPerWord = 1, kStage = 0;
	using sums = fragment;
	DEVICE static uint32_t word(const float *x) { return bits(to_tf32(*x)); }
	DEVICE static uint32_t round(float x) { return bits(to_tf32(x)); }
	DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
		mma_tf32(d, a, b);
	}
};

// float32 has no tensor instruction. A thread sums its 16 bytes of k for rows g and g+8 and all
// eight lanes, whose numbers the warp shows itself in shared memory; gather adds up the four q.
struct fp32 {
	static constexpr int kPerWord = 1, kStage = 2 * 32 * 16; // bytes of shared memory a warp
	struct sums {
		float at[2][8];
	};
	DEVICE static uint32_t word(const float *x) { return bits(*x); }
	DEVICE static uint32_t round(float x) { return bits(x); }
};

// gather makes d of mma.cuh of the sums.
DEVICE fragment gather(const fragment &sums) { return sums; }
DEVICE fragment gather(const fp32::sums &sums) {
	const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
	fragment d;
#pragma unroll
	for (int row = 0; row < 2; row++) {
		float four[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float low = sums.at[row][i], up = sums.at[row][i + 4];
			four[i] = (high ? up : low) + __shfl_xor_sync(kWarp, high ? low : up, 2);
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			d.at[2 * row + i] = (odd ? four[i + 2] : four[i]) +
				__shfl_xor_sync(kWarp, odd ? four[i] : four[i + 2], 1);
		}
	}
	return d;
}

// clear makes sums zero.
DEVICE void clear(fragment &sums) {
#pragma unroll
	for (int i = 0; i < 4; i++) {
		sums.at[i] = 0;
	}
}
DEVICE void clear(fp32::sums &sums) {
#pragma unroll
	for (int i = 0; i < 8; i++) {
		sums.at[0][i] = sums.at[1][i] = 0;
	}
}

// show puts a thread's words of two lanes where its warp sees them, for float32.
template <class Operand> DEVICE void show(const uint4 (&)[2], float4 *, Operand) {}
DEVICE void show(const uint4 (&b)[2], float4 *stage, fp32) {
	__syncwarp(); // the last column has been read
#pragma unroll
	for (int n = 0; n < 2; n++) {
		stage[32 * n + threadIdx.x % 32] = make_float4(
			from_bits(b[n].x), from_bits(b[n].y), from_bits(b[n].z), from_bits(b[n].w));
	}
	__syncwarp();
}

// multiply adds a part of a column to the sums of a tile of 16 rows: a holds the words of rows g
// and g+8 in turns, b those of lanes g and g+8. float32 has its whole column in the first part.
template <class Operand>
DEVICE void multiply(fragment (&sums)[2], const uint32_t (&a)[8], const uint4 (&b)[2],
	const float4 *, int part, Operand) {
	const uint32_t rows[4] = {a[4 * part], a[4 * part + 1], a[4 * part + 2], a[4 * part + 3]};
#pragma unroll
	for (int n = 0; n < 2; n++) {
		const uint32_t lanes[2] = {part ? b[n].z : b[n].x, part ? b[n].w : b[n].y};
		Operand::multiply(sums[n].at, rows, lanes);
	}
}
DEVICE void multiply(fp32::sums (&sums)[2], const uint32_t (&a)[8], const uint4 (&)[2],
	const float4 *stage, int part, fp32) {
	if (part > 0) {
		return;
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const float4 x = stage[32 * n + 4 * i + threadIdx.x % 4];
#pragma unroll
			for (int row = 0; row < 2; row++) {
				float &sum = sums[n].at[row][i];
				sum = fmaf(from_bits(a[row]), x.x, sum);
				sum = fmaf(from_bits(a[row + 2]), x.y, sum);
				sum = fmaf(from_bits(a[row + 4]), x.z, sum);
				sum = fmaf(from_bits(a[row + 6]), x.w, sum);
			}
		}
	}
}

// peek reads 16 bytes of the exchange as they are now, past the L1 cache.
DEVICE uint4 peek(const uint4 *from) {
#ifdef __CUDACC__
	uint4 x;
	asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		: "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
		: "l"(from));
	return x;
#else
	return *from;
#endif
}

// poke writes a word of the exchange.
DEVICE void poke(uint32_t *to, uint32_t value) {
#ifdef __CUDACC__
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
	*to = value;
#endif
}

// A watch bounds the looks of a wait in a build with RONDO_BOUNDED_SPINS, and on the emulated
// driver, to find out where a kernel hangs. It is eight words of the host's memory: the most looks,
// three words of nothing, then who gave up: 1 + block x, block y, the step, the column. Null: no
// bound.
using watch = volatile uint32_t *;

// watched is called for each look: by all lanes of a warp. Whoever reports last is read; 16 bytes
// are written at once.
DEVICE void watched(watch watch, unsigned &looks, int step, int column) {
#if defined(RONDO_BOUNDED_SPINS) || !defined(__CUDACC__)
	if (watch == nullptr || ++looks <= watch[0]) {
		return;
	}
	if (threadIdx.x % 32 == 0) {
		*reinterpret_cast<uint4 *>(const_cast<uint32_t *>(watch) + 4) = make_uint4(
			1 + blockIdx.x, blockIdx.y, static_cast<unsigned>(step), static_cast<unsigned>(column));
		__threadfence_system();
	}
	__syncwarp();
	trap();
#endif
}

// missing says whether a word of x is not there yet.
DEVICE bool missing(const uint4 &x) { return min(min(x.x, x.y), min(x.z, x.w)) == 0; }

// A word is kept inverted, so that it is zero only where all its bits are one. That is no number:
// what publish writes for one that is none is 0x7fff...
DEVICE uint4 inverted(const uint4 &x) { return make_uint4(~x.x, ~x.y, ~x.z, ~x.w); }

// publish writes x[0] as element k of a lane to a tile of the exchange, where wanted, and x[1] and
// on to the same element so many columns on each. All lanes of a warp call it; thread i and i^1, of
// even i, have elements k and k+1 of one lane.
template <class Operand, int N>
DEVICE void publish(
	uint4 *tile, int lane, int k, const float (&x)[N], int columns_apart, bool wanted) {
	uint32_t words[N];
#pragma unroll
	for (int i = 0; i < N; i++) {
		words[i] =
			x[i] == x[i] ? Operand::round(x[i]) : Operand::kPerWord == 2 ? 0x7fffu : 0x7fffffffu;
	}
	if (Operand::kPerWord == 2) { // all on their way at once
#pragma unroll
		for (int i = 0; i < N; i++) {
			words[i] |= __shfl_xor_sync(kWarp, words[i], 1) << 16;
		}
		wanted = wanted && k % 2 == 0;
	}
	const int at = k / Operand::kPerWord;
	uint4 *column = tile + at / kWords * kColumn;
	if (wanted) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			poke(reinterpret_cast<uint32_t *>(column + i * columns_apart * kColumn) +
					lane * kWords + at % kWords,
				~words[i]);
		}
	}
}

// held is what a block multiplies with: each warp's first `InRegisters` columns are in registers,
// the others in shared memory. Warp w has the columns w, w+8, ... of all.
template <class Operand, int MT, int InRegisters> struct held {
	static constexpr int kElements = 4 * Operand::kPerWord; // of 16 bytes
	// The sums of the warps, for the two tiles that are under way: [lane][row], with rows of a
	// length that spreads what a warp reads and writes over all banks.
	static constexpr int kRow = 16 * MT + 4, kPartial = kTile * kRow;
	static constexpr int kShared = 2 * kWarps * kPartial * 4 + kWarps * Operand::kStage;

	uint32_t registers[InRegisters][MT][8];
	uint4 ahead[kAhead][2]; // columns that are asked for
	const uint4 *next;      // this thread's place in the warp's first column of the tile
	int columns;            // of this warp
	int step;               // whose tile is awaited
	persistent::watch watch;
	int row_tiles;          // that hold rows
	int side;               // of the two that hold the warps' sums, the one written last
	bool low, high;         // whether there are lanes g and g+8

	// rest is this thread's place in shared memory for a column from InRegisters on.
	DEVICE static uint4 *rest(int column, int row_tile) {
		const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
		return reinterpret_cast<uint4 *>(shared_memory() + kShared) +
			(((column - InRegisters) * kWarps + warp) * MT + row_tile) * 64 + lane;
	}

	// load keeps the rows. Source gives kElements numbers of row and k, zeros where it has none.
	template <class Source>
	DEVICE void load(
		const Source &source, int rows, int all_columns, persistent::watch watching) {
		watch = watching;
		const int warp = threadIdx.x / 32;
		columns = (all_columns - warp + kWarps - 1) / kWarps;
		row_tiles = (rows + 15) / 16;
		side = 0;
#pragma unroll
		for (int m = 0; m < InRegisters; m++) {
#pragma unroll
			for (int n = 0; n < MT; n++) {
#pragma unroll
				for (int j = 0; j < 8; j++) {
					registers[m][n][j] = 0;
				}
			}
		}
		// Several columns at once, so that their loads are under way together.
		constexpr int kBatch = 4 / MT;
		static_assert(InRegisters % kBatch == 0, "a batch is in registers, or in shared memory");
#pragma unroll 1
		for (int c = 0; c < columns; c += kBatch) {
			uint32_t a[kBatch][MT][8];
#pragma unroll
			for (int b = 0; b < kBatch; b++) {
#pragma unroll
				for (int i = 0; i < MT; i++) {
					fetch(source, a[b][i], i, warp + kWarps * (c + b));
				}
			}
			// Registers have no addresses: each is offered what is for one of them.
#pragma unroll
			for (int m = 0; m < InRegisters; m++) {
#pragma unroll
				for (int i = 0; i < MT; i++) {
#pragma unroll
					for (int j = 0; j < 8; j++) {
						uint32_t &to = registers[m][i][j];
						to = m - m % kBatch == c ? a[m % kBatch][i][j] : to;
					}
				}
			}
#pragma unroll
			for (int b = 0; b < kBatch; b++) {
				if (c >= InRegisters && c + b < columns) {
#pragma unroll
					for (int i = 0; i < MT; i++) {
						const uint32_t(&x)[8] = a[b][i];
						uint4 *to = rest(c + b, i);
						to[0] = make_uint4(x[0], x[1], x[2], x[3]);
						to[32] = make_uint4(x[4], x[5], x[6], x[7]);
					}
				}
			}
		}
	}

	template <class Source>
	DEVICE void fetch(const Source &source, uint32_t (&a)[8], int row_tile, int column) {
		const int lane = threadIdx.x % 32;
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float x[kElements];
			source.read(x, 16 * row_tile + 8 * half + lane / 4,
				(4 * column + lane % 4) * kElements);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				a[2 * i + half] = Operand::word(x + i * Operand::kPerWord);
			}
		}
	}

	// aim asks for the first columns of a step's tile of the exchange, which has so many lanes.
	DEVICE void aim(const uint4 *tile, int lanes, int of_step) {
		step = of_step;
		const int lane = threadIdx.x % 32;
		next = tile + threadIdx.x / 32 * kColumn + lane;
		low = lane / 4 < lanes;
		high = lane / 4 + 8 < lanes;
#pragma unroll
		for (int c = 0; c < kAhead; c++) {
			if (c < columns) {
				ask(ahead[c], c);
			}
		}
	}

	DEVICE void ask(uint4 (&x)[2], int column) {
		const uint4 *from = next + column * kWarps * kColumn;
		x[0] = low ? peek(from) : make_uint4(~0u, ~0u, ~0u, ~0u);
		x[1] = high ? peek(from + kColumn / 2) : make_uint4(~0u, ~0u, ~0u, ~0u);
	}

	// again asks once more for what of a column was not there.
	DEVICE void again(uint4 (&x)[2], int column) {
		const uint4 *from = next + column * kWarps * kColumn;
		if (missing(x[0])) {
			x[0] = peek(from);
		}
		if (missing(x[1])) {
			x[1] = peek(from + kColumn / 2);
		}
	}

	// settle waits until a column is there, in ahead[place]. Those behind it were asked for too
	// early then, as well: they are asked for again all at once, since each by itself would take
	// one more way to the L2 cache and back. Not before, since what does not find anything keeps
	// the cache from those who write. float32 multiplies for longer than the way takes, and has no
	// registers to spare.
	DEVICE void settle(int place, int column) {
		uint4(&x)[2] = ahead[place];
		bool waited = false;
		unsigned looks = 0;
		while (__any_sync(kWarp, missing(x[0]) || missing(x[1]))) {
			relax();
			again(x, column);
			waited = true;
			watched(watch, looks, step, column * kWarps + static_cast<int>(threadIdx.x) / 32);
		}
		if (waited && Operand::kStage == 0) {
#pragma unroll
			for (int i = 1; i < kAhead; i++) {
				if (column + i < columns) {
					again(ahead[(place + i) % kAhead], column + i);
				}
			}
		}
		x[0] = inverted(x[0]);
		x[1] = inverted(x[1]);
	}

	// run multiplies the tile that aim was given, and leaves each warp's sums in shared memory.
	// After it ahead is free for the next aim; a barrier makes the sums of all warps seen.
	DEVICE void run() {
		typename Operand::sums sums[MT][2];
		float4 *stage = reinterpret_cast<float4 *>(
			shared_memory() + kShared - (threadIdx.x / 32 + 1) * Operand::kStage);
#pragma unroll
		for (int i = 0; i < MT; i++) {
			clear(sums[i][0]);
			clear(sums[i][1]);
		}
#pragma unroll
		for (int c = 0; c < InRegisters; c++) {
			if (c < columns) {
				uint4(&b)[2] = ahead[c % kAhead];
				settle(c % kAhead, c);
				show(b, stage, Operand());
#pragma unroll
				for (int part = 0; part < 2; part++) {
#pragma unroll
					for (int i = 0; i < MT; i++) {
						multiply(sums[i], registers[c][i], b, stage, part, Operand());
					}
				}
				if (c + kAhead < columns) {
					ask(b, c + kAhead);
				}
			}
		}
		for (int first = InRegisters; first < columns; first += kAhead) {
#pragma unroll
			for (int c = 0; c < kAhead; c++) {
				if (first + c < columns) {
					uint4(&b)[2] = ahead[(InRegisters + c) % kAhead];
					settle((InRegisters + c) % kAhead, first + c);
					show(b, stage, Operand());
#pragma unroll
					for (int i = 0; i < MT; i++) {
						const uint4 *from = rest(first + c, i);
						const uint4 x = from[0], y = from[32];
						const uint32_t a[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
						multiply(sums[i], a, b, stage, 0, Operand());
						multiply(sums[i], a, b, stage, 1, Operand());
					}
					if (first + c + kAhead < columns) {
						ask(b, first + c + kAhead);
					}
				}
			}
		}
		keep(sums);
	}

	DEVICE void keep(const typename Operand::sums (&sums)[MT][2]) {
		const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
		side ^= 1;
		float *to = reinterpret_cast<float *>(shared_memory()) +
			(side * kWarps + threadIdx.x / 32) * kPartial + 2 * q * kRow + g;
#pragma unroll
		for (int i = 0; i < MT; i++) {
#pragma unroll
			for (int n = 0; n < 2; n++) {
				if (i < row_tiles) {
					const fragment d = gather(sums[i][n]);
					float *at = to + 8 * n * kRow + 16 * i;
					at[0] = d.at[0];
					at[kRow] = d.at[1];
					at[8] = d.at[2];
					at[kRow + 8] = d.at[3];
				}
			}
		}
	}

	// total is the product for a row and lane, once all warps have kept their sums.
	DEVICE float total(int lane, int row) const {
		const float *from = reinterpret_cast<const float *>(shared_memory()) +
			side * kWarps * kPartial + lane * kRow + row;
		float sum = from[0];
#pragma unroll
		for (int warp = 1; warp < kWarps; warp++) {
			sum += from[warp * kPartial];
		}
		return sum;
	}
};

// spread is the i-th lane of a tile in an order in which those that a warp has lie in other banks
// of partial: 0, 4, 2, 6, 1, 5, 3, 7.
DEVICE int spread(int i) { return (i & 8) | (i & 1) << 2 | (i & 2) | (i & 4) >> 2; }

} // namespace persistent
