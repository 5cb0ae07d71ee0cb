// The emulated tensor instructions: the last lane of a warp to come computes the product for all,
// from the fragments of PTX's layout (see mma.cuh). Products are exact and summed as doubles, then
// rounded once; a GPU rounds, or cuts off, on the way.
#pragma once

namespace emulator {

// What one lane brings to mma, and the place of its result.
struct fragments {
	float *d;
	const uint32_t *a, *b;
};

// multiply gathers a [16,K] and b [K,8], multiplies, and scatters d [16,8].
template <int K> void multiply(void **brought, const float (&a)[16][K], const float (&b)[K][8]) {
	for (int row = 0; row < 16; row++) {
		double sum[8] = {};
		for (int k = 0; k < K; k++) {
			for (int column = 0; column < 8; column++) {
				sum[column] += static_cast<double>(a[row][k]) * b[k][column];
			}
		}
		for (int column = 0; column < 8; column++) {
			int lane = row % 8 * 4 + column / 2;
			float *d = static_cast<fragments *>(brought[lane])->d + row / 8 * 2 + column % 2;
			*d = static_cast<float>(*d + sum[column]);
		}
	}
}

template <float (*Convert)(uint16_t)> void multiply_halves(void **brought) {
	float a[16][16], b[16][8];
	for (int lane = 0; lane < 32; lane++) {
		auto *f = static_cast<fragments *>(brought[lane]);
		int g = lane / 4, t = lane % 4;
		for (int half = 0; half < 2; half++) {
			for (int r = 0; r < 4; r++) {
				a[g + r % 2 * 8][2 * t + r / 2 * 8 + half] =
					Convert(static_cast<uint16_t>(f->a[r] >> 16 * half));
			}
			for (int r = 0; r < 2; r++) {
				b[2 * t + r * 8 + half][g] = Convert(static_cast<uint16_t>(f->b[r] >> 16 * half));
			}
		}
	}
	multiply<16>(brought, a, b);
}

inline void multiply_tf32(void **brought) {
	float a[16][8], b[8][8];
	const uint32_t seen = 0xffffe000u; // the instruction does not look at the low 13 bits
	for (int lane = 0; lane < 32; lane++) {
		auto *f = static_cast<fragments *>(brought[lane]);
		int g = lane / 4, t = lane % 4;
		for (int r = 0; r < 4; r++) {
			a[g + r % 2 * 8][t + r / 2 * 4] = bits_float(f->a[r] & seen);
		}
		for (int r = 0; r < 2; r++) {
			b[t + r * 4][g] = bits_float(f->b[r] & seen);
		}
	}
	multiply<8>(brought, a, b);
}

// What one lane brings to ldmatrix.
struct rows {
	uint32_t *r;
	const void *row;
};

template <bool Transpose> void load_matrices(void **brought) {
	for (int lane = 0; lane < 32; lane++) {
		for (int i = 0; i < 4; i++) {
			int g = lane / 4, t = lane % 4;
			uint16_t half[2];
			for (int j = 0; j < 2; j++) {
				int row = Transpose ? 2 * t + j : g, column = Transpose ? g : 2 * t + j;
				auto *from = static_cast<rows *>(brought[8 * i + row]);
				half[j] = static_cast<const uint16_t *>(from->row)[column];
			}
			static_cast<rows *>(brought[lane])->r[i] = pack(half[0], half[1]);
		}
	}
}

template <bool Transpose> void ldmatrix(uint32_t *r, const void *row, int line) {
	check_shared(row, 16, line);
	rows mine{r, row};
	collective("ldmatrix", line, &mine, load_matrices<Transpose>);
}

} // namespace emulator

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
	int line = __builtin_LINE()) {
	emulator::fragments mine{d, a, b};
	emulator::collective("mma_bf16", line, &mine, emulator::multiply_halves<from_bf16>);
}
inline void mma_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
	int line = __builtin_LINE()) {
	emulator::fragments mine{d, a, b};
	emulator::collective("mma_fp16", line, &mine, emulator::multiply_halves<from_fp16>);
}
inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
	int line = __builtin_LINE()) {
	emulator::fragments mine{d, a, b};
	emulator::collective("mma_tf32", line, &mine, emulator::multiply_tf32);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, int line = __builtin_LINE()) {
	emulator::ldmatrix<false>(r, row, line);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, int line = __builtin_LINE()) {
	emulator::ldmatrix<true>(r, row, line);
}
