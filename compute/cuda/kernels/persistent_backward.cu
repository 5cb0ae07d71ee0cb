// The backward pass of a recurrent layer over a whole segment in one launch; see persistent.cuh.
//
// Block (slice, group) of the grid has 16*MT units of the layer, for the tiles of 16 lanes
// group*passes and on. Each step it makes the gradients of its units' gates, which the group's
// blocks hand each other, and multiplies those of all units with its columns of W_hh: that is the
// gradient of its own units' states a step earlier.
#include "cells.cuh"
#include "persistent.cuh"

using namespace persistent;

namespace {

// What a launch works on. act, cell, q and h are the tape of package cuda; carry: [B][H], what of a
// state's gradient does not pass through W_hh; exchange: [T][tiles][columns], the gradients of the
// recurrent side's sums, of a row [K][slices*units].
struct backward_pass {
	const float *hh, *dy, *dout_h, *dout_c;
	float *dstate_h, *dstate_c, *act;
	const float *cell;
	float *q;
	const float *h;
	float *carry;
	uint4 *exchange;
	watch watching;
	int kind, T, B, H, passes, gates;

	// tile is what the blocks hand each other for a step and tile, which has so many columns.
	DEVICE uint4 *tile(int t, int number, int columns) const {
		const int tiles = (B + kTile - 1) / kTile;
		return exchange + (t * tiles + number) * columns * kColumn;
	}
};

// The block's columns of W_hh, as rows: k goes gate by gate over all units.
struct backward_rows {
	const backward_pass &pass;
	int first, wide; // the block's first unit; slices*units

	template <int N> DEVICE void read(float (&x)[N], int row, int k) const {
		const int H = pass.H, unit = first + row, gate = k / wide, from = k % wide;
		const bool inside = unit < H && gate < pass.gates;
		const float *at = pass.hh + (gate * H + from) * H + unit;
#pragma unroll
		for (int i = 0; i < N; i++) {
			x[i] = inside && from + i < H ? at[i * H] : 0;
		}
	}
};

// A thread's unit of one lane, for one step.
struct backward_item {
	float gates[4]; // GRU: q is the last
	float before;   // the state, or the cell, before the step
	float after;    // LSTM: the cell after it
	float dh;       // from above
	float carry;    // LSTM: of the cell; GRU: of the state, but for the product

	// fetch only loads: a sum here would wait for memory before the gradients are looked for.
	template <class Cell>
	DEVICE void fetch(const backward_pass &p, int t, int lane, int unit, Cell) {
		const int row = t * p.B + lane, state = row * p.H + unit, own = lane * p.H + unit;
		const float *from = p.act + row * Cell::gates * p.H + unit;
		dh = p.dy[state];
#pragma unroll
		for (int g = 0; g < Cell::gates; g++) {
			gates[g] = from[g * p.H];
		}
		if (Cell::gated) {
			before = (Cell::states == 2 ? p.cell : p.h)[state];
			const float *last = Cell::states == 2 ? p.dout_c : nullptr;
			const float *rest = t < p.T - 1 ? p.carry : last;
			carry = rest ? rest[own] : 0;
		}
		if (Cell::states == 2) {
			after = p.cell[state + p.B * p.H];
		} else if (Cell::kept == 1) {
			gates[3] = p.q[state];
		}
	}

	// step takes gates to the gradients of the input side's sums; GRU's last becomes that of q.
	// later is from the loss of later steps. dh (GRU) and carry (LSTM) become what the step before
	// takes up.
	DEVICE void step(float later, cells::LSTM_cell) {
		dh += later;
		cells::lstm_backward(gates[0], gates[1], gates[2], gates[3], before, after, dh, carry);
	}
	DEVICE void step(float later, cells::GRU_cell) {
		dh += carry + later;
		cells::gru_backward(gates[0], gates[1], gates[2], gates[3], before, dh);
	}
	template <class RNN> DEVICE void step(float later, RNN) {
		gates[0] = cells::rnn_backward(gates[0], dh + later, RNN::number == RNN_RELU);
	}

	// hand_on publishes the gradients of the recurrent side's sums, zeros where there is no unit.
	// A gate has so many columns of the tile.
	template <class Operand, class Cell>
	DEVICE void hand_on(
		uint4 *tile, int place, int unit, int columns, bool inside, bool wanted, Cell) const {
		float own[Cell::gates];
#pragma unroll
		for (int g = 0; g < Cell::gates; g++) {
			own[g] = !inside ? 0 : Cell::number == GRU && g == 2 ? gates[3] : gates[g];
		}
		publish<Operand>(tile, place, unit, own, columns, wanted);
	}

	template <class Cell>
	DEVICE void write(const backward_pass &p, int t, int lane, int unit, Cell) const {
		const int row = t * p.B + lane, state = row * p.H + unit, own = lane * p.H + unit;
		float *to = p.act + row * Cell::gates * p.H + unit;
#pragma unroll
		for (int g = 0; g < Cell::gates; g++) {
			to[g * p.H] = gates[g];
		}
		if (Cell::gated) {
			p.carry[own] = Cell::states == 2 ? carry : dh;
		}
		if (Cell::states == 2 && t == 0 && p.dstate_c) {
			p.dstate_c[own] = carry;
		}
		if (Cell::kept == 1) {
			p.q[state] = gates[3];
		}
	}
};

template <class Operand, int MT, int InRegisters> DEVICE void backward(const backward_pass &p) {
	constexpr int units = 16 * MT, apart = kThreads / units; // lanes between a thread's items
	const int first = blockIdx.y * p.passes;
	const int end = min(first + p.passes, (p.B + kTile - 1) / kTile); // of the group's tiles
	const int local = threadIdx.x % units, unit = blockIdx.x * units + local;
	const int wide = gridDim.x * units;
	const int of_gate = wide / (kWords * Operand::kPerWord), columns = p.gates * of_gate;
	const int last = p.dstate_h ? -1 : 0; // the step before the first is the initial state's

	held<Operand, MT, InRegisters> weights;
	weights.load(backward_rows{p, static_cast<int>(blockIdx.x) * units, wide}, units, columns,
		p.watching);
	for (int t = p.T - 1; t >= last; t--) {
		for (int number = first; number < end; number++) {
			backward_item items[MT];
			int places[MT], lanes[MT];
			bool inside[MT];
#pragma unroll
			for (int i = 0; i < MT; i++) {
				places[i] = spread(threadIdx.x / units + apart * i);
				lanes[i] = number * kTile + places[i];
				inside[i] = lanes[i] < p.B && unit < p.H;
			}
			if (t >= 0) {
				cells::with(p.kind, [&](auto cell) {
#pragma unroll
					for (int i = 0; i < MT; i++) {
						if (inside[i]) {
							items[i].fetch(p, t, lanes[i], unit, cell);
						}
					}
				});
			}
			// What comes next has a product unless it is of the last step, too.
			const bool ends = number + 1 == end;
			const int next = ends ? first : number + 1, next_t = ends ? t - 1 : t;
			const bool more = next_t >= last && next_t < p.T - 1;
			const bool early = end - first > 1 && t < p.T - 1; // it can be there already
			if (t < p.T - 1) {
				weights.run();
				if (more && early) {
					weights.aim(
						p.tile(next_t + 1, next, columns), p.B - next * kTile, next_t + 1);
				}
				__syncthreads();
			}
			float later[MT]; // from the loss of later steps
#pragma unroll
			for (int i = 0; i < MT; i++) {
				const int own = lanes[i] * p.H + unit;
				later[i] = 0;
				if (inside[i] && t < p.T - 1) {
					later[i] = weights.total(places[i], local);
				} else if (inside[i] && p.dout_h) {
					later[i] = p.dout_h[own];
				}
				if (inside[i] && t < 0) {
					p.dstate_h[own] = later[i] + (p.kind == GRU ? p.carry[own] : 0);
				}
			}
			if (t >= 0) {
				cells::with(p.kind, [&](auto cell) {
#pragma unroll
					for (int i = 0; i < MT; i++) {
						if (inside[i]) {
							items[i].step(later[i], cell);
						}
					}
					// The others wait for this; nobody waits for the tape.
#pragma unroll
					for (int i = 0; i < MT; i++) {
						if (t > last) {
							items[i].template hand_on<Operand>(p.tile(t, number, columns),
								places[i], unit, of_gate, inside[i], lanes[i] < p.B, cell);
						}
					}
#pragma unroll
					for (int i = 0; i < MT; i++) {
						if (inside[i]) {
							items[i].write(p, t, lanes[i], unit, cell);
						}
					}
				});
			}
			if (more && !early) {
				weights.aim(p.tile(next_t + 1, next, columns), p.B - next * kTile, next_t + 1);
			}
		}
	}
}

} // namespace

// A kernel is for an operand, MT tiles of 16 units, and so many columns in registers.
#define BACKWARD(name, operand, MT, in_registers) \
	KERNEL_BOUNDS(name, 256, 1, const float *hh, const float *dy, const float *dout_h, \
		const float *dout_c, float *dstate_h, float *dstate_c, float *act, const float *cell, \
		float *q, const float *h, float *carry, uint4 *exchange, watch watching, int kind, int T, \
		int B, int H, int passes) { \
		backward<operand, MT, in_registers>({hh, dy, dout_h, dout_c, dstate_h, dstate_c, act, \
			cell, q, h, carry, exchange, watching, kind, T, B, H, passes, cells::gates_of(kind)}); \
	}

BACKWARD(persistent_backward_fp32_1, fp32, 1, 8)
BACKWARD(persistent_backward_fp32_2, fp32, 2, 2)

// GPUs below 8.0 have no such tensor instructions.
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800
BACKWARD(persistent_backward_bf16_1, bf16, 1, 16)
BACKWARD(persistent_backward_bf16_2, bf16, 2, 8)
BACKWARD(persistent_backward_tf32_1, tf32, 1, 16)
BACKWARD(persistent_backward_tf32_2, tf32, 2, 8)
#endif
