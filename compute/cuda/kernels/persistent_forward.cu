// The forward pass of a recurrent layer over a whole segment in one launch; see persistent.cuh.
//
// Block (slice, group) of the grid has `units` units of the layer, all gates of each, so that it
// makes the states where the sums are, and the tiles of 16 lanes group*passes and on. Groups do not
// wait for each other. With several passes the exchange of one hides behind the product of another.
#include "cells.cuh"
#include "persistent.cuh"

using namespace persistent;

namespace {

// What a launch works on. act, cell, q and h are the tape of package cuda; exchange:
// [T][tiles][columns], the state before each step; slices*units is a whole number of columns.
struct forward_pass {
	const float *hh, *bias;
	float *act, *cell, *q, *h;
	uint4 *exchange;
	watch watching;
	int kind, T, B, H, units, passes, gates;

	DEVICE int unit(int row) const { return blockIdx.x * units + row % units; }

	// tile is what the blocks hand each other for a step and tile.
	template <class Operand> DEVICE uint4 *tile(int t, int number) const {
		const int columns = gridDim.x * units / (kWords * Operand::kPerWord);
		const int tiles = (B + kTile - 1) / kTile;
		return exchange + (t * tiles + number) * columns * kColumn;
	}
};

// The rows of W_hh: gate by gate, the block's units of each.
struct forward_rows {
	const forward_pass &pass;

	template <int N> DEVICE void read(float (&x)[N], int row, int k) const {
		const int H = pass.H, gate = row / pass.units, unit = pass.unit(row);
		const bool inside = gate < pass.gates && unit < H;
		const float *from = pass.hh + (gate * H + unit) * H + k;
		const bool aligned = reinterpret_cast<uintptr_t>(pass.hh) % 16 == 0 && H % 4 == 0;
		if (inside && aligned && k + N <= H) {
#pragma unroll
			for (int i = 0; i < N; i += 4) {
				const float4 four = *reinterpret_cast<const float4 *>(from + i);
				x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
			}
			return;
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			x[i] = inside && k + i < H ? from[i] : 0;
		}
	}
};

// The recurrent side's bias of a thread's unit.
struct forward_bias {
	float gates[4];

	DEVICE void fetch(const forward_pass &p, int unit) {
#pragma unroll
		for (int g = 0; g < 4; g++) {
			gates[g] = g < p.gates && unit < p.H ? p.bias[g * p.H + unit] : 0;
		}
	}
};

// A thread's unit of one lane, for one step.
struct forward_item {
	float sums[4]; // the input's side
	float before;  // the state, or the cell, before the step

	// fetch only loads: a sum here would wait for memory before the states are looked for.
	template <class Cell>
	DEVICE void fetch(const forward_pass &p, int t, int lane, int unit, Cell) {
		const int row = t * p.B + lane;
		const float *from = p.act + row * Cell::gates * p.H + unit;
#pragma unroll
		for (int g = 0; g < Cell::gates; g++) {
			sums[g] = from[g * p.H];
		}
		if (Cell::gated) {
			before = (Cell::states == 2 ? p.cell : p.h)[row * p.H + unit];
		}
	}

	// step makes the gates, in sums, and returns the state after the step. before becomes the cell
	// after it, or q.
	template <class Product>
	DEVICE float step(const forward_bias &bias, const Product &product, cells::LSTM_cell) {
		float c, h;
#pragma unroll
		for (int g = 0; g < 4; g++) {
			sums[g] = sums[g] + bias.gates[g] + product(g);
		}
		cells::lstm_forward(sums[0], sums[1], sums[2], sums[3], before, c, h);
		before = c;
		return h;
	}
	template <class Product>
	DEVICE float step(const forward_bias &bias, const Product &product, cells::GRU_cell) {
		float h;
		sums[0] = sums[0] + bias.gates[0] + product(0);
		sums[1] = sums[1] + bias.gates[1] + product(1);
		const float q = product(2) + bias.gates[2];
		cells::gru_forward(sums[0], sums[1], sums[2], q, before, h);
		before = q;
		return h;
	}
	template <class Product, class RNN>
	DEVICE float step(const forward_bias &bias, const Product &product, RNN) {
		const float sum = sums[0] + bias.gates[0] + product(0);
		return sums[0] = cells::rnn_forward(sum, RNN::number == RNN_RELU);
	}

	template <class Cell>
	DEVICE void write(const forward_pass &p, int t, int lane, int unit, float h, Cell) const {
		const int row = t * p.B + lane, state = row * p.H + unit;
		const int after = state + p.B * p.H;
		float *gates = p.act + row * Cell::gates * p.H + unit;
#pragma unroll
		for (int g = 0; g < Cell::gates; g++) {
			gates[g * p.H] = sums[g];
		}
		if (Cell::states == 2) {
			p.cell[after] = before;
		} else if (Cell::kept == 1) {
			p.q[state] = before;
		}
		p.h[after] = h;
	}
};

template <class Operand, int MT, int InRegisters> DEVICE void forward(const forward_pass &p) {
	const int first = blockIdx.y * p.passes;
	const int end = min(first + p.passes, (p.B + kTile - 1) / kTile); // of the group's tiles
	const int local = threadIdx.x % p.units, unit = p.unit(local);
	const bool has = threadIdx.x < kTile * p.units; // an item of each tile
	const int place = spread(threadIdx.x / p.units % kTile);

	// The first state is handed round like every other.
	for (int number = first; number < end; number++) {
		const int lane = number * kTile + place;
		const bool inside = has && lane < p.B;
		const float h[1] = {inside && unit < p.H ? p.h[lane * p.H + unit] : 0};
		publish<Operand>(p.template tile<Operand>(0, number), place, unit, h, 0, inside);
	}
	forward_bias bias;
	bias.fetch(p, unit);
	held<Operand, MT, InRegisters> weights;
	weights.load(forward_rows{p}, p.gates * p.units,
		gridDim.x * p.units / (kWords * Operand::kPerWord), p.watching);
	weights.aim(p.template tile<Operand>(0, first), p.B - first * kTile, 0);
	for (int t = 0; t < p.T; t++) {
		for (int number = first; number < end; number++) {
			const int lane = number * kTile + place;
			const bool inside = has && lane < p.B && unit < p.H;
			forward_item item;
			cells::with(p.kind, [&](auto cell) {
				if (inside) {
					item.fetch(p, t, lane, unit, cell);
				}
			});
			weights.run();
			// What comes next is asked for early where it can be there already.
			if (end - first > 1) {
				if (number + 1 < end) {
					weights.aim(p.template tile<Operand>(t, number + 1),
						p.B - (number + 1) * kTile, t);
				} else if (t + 1 < p.T) {
					weights.aim(
						p.template tile<Operand>(t + 1, first), p.B - first * kTile, t + 1);
				}
			}
			__syncthreads();
			float h[1] = {0};
			cells::with(p.kind, [&](auto cell) {
				if (inside) {
					const auto product = [&](int gate) {
						return weights.total(place, gate * p.units + local);
					};
					h[0] = item.step(bias, product, cell);
				}
			});
			// The others wait for this; nobody waits for the tape.
			if (t + 1 < p.T) {
				publish<Operand>(p.template tile<Operand>(t + 1, number), place, unit, h, 0,
					has && lane < p.B);
				if (end - first == 1) {
					weights.aim(
						p.template tile<Operand>(t + 1, number), p.B - number * kTile, t + 1);
				}
			}
			cells::with(p.kind, [&](auto cell) {
				if (inside) {
					item.write(p, t, lane, unit, h[0], cell);
				}
			});
		}
	}
}

} // namespace

// A kernel is for an operand, MT tiles of 16 rows, and so many columns in registers.
#define FORWARD(name, operand, MT, in_registers) \
	KERNEL_BOUNDS(name, 256, 1, const float *hh, const float *bias, float *act, float *cell, \
		float *q, float *h, uint4 *exchange, watch watching, int kind, int T, int B, int H, \
		int units, int passes) { \
		forward<operand, MT, in_registers>( \
			{hh, bias, act, cell, q, h, exchange, watching, kind, T, B, H, units, passes, \
				cells::gates_of(kind)}); \
	}

FORWARD(persistent_forward_fp32_2, fp32, 2, 2)

// GPUs below 8.0 have no such tensor instructions.
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800
FORWARD(persistent_forward_bf16_2, bf16, 2, 8)
FORWARD(persistent_forward_bf16_4, bf16, 4, 4)
FORWARD(persistent_forward_fp16_2, fp16, 2, 8)
FORWARD(persistent_forward_fp16_4, fp16, 4, 4)
FORWARD(persistent_forward_tf32_2, tf32, 2, 8)
FORWARD(persistent_forward_tf32_4, tf32, 4, 4)
#endif
