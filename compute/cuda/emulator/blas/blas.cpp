// A cuBLAS for the emulated driver: the matrix products that Rondo calls, put into the stream as
// any operation. Operands are float32, bf16 or fp16, sums are taken in float32, and matrices lie
// by columns, as in the real library.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <vector>

#include "device.cuh"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// What the functions return, by the numbers of cublasStatus_t.
enum : int { success = 0, not_initialized = 1, invalid_value = 7, failed = 13, unsupported = 15 };

enum : int { type_fp32 = 0, type_fp16 = 2, type_bf16 = 14 }; // of cudaDataType

using enqueue_function = int (*)(void *stream, const char *what, void (*run)(void *), void *data,
	size_t bytes);

struct handle {
	void *stream;
	enqueue_function enqueue;
};

struct matrix {
	const void *data;
	int type;
	bool transposed;
	int64_t leading, stride; // the latter from one product of a batch to the next

	float at(int64_t batch, int64_t row, int64_t column) const {
		int64_t i = batch * stride +
			(transposed ? column + row * leading : row + column * leading);
		switch (type) {
		case type_fp16:
			return from_fp16(static_cast<const uint16_t *>(data)[i]);
		case type_bf16:
			return from_bf16(static_cast<const uint16_t *>(data)[i]);
		default:
			return static_cast<const float *>(data)[i];
		}
	}
};

struct product {
	int m, n, k, batches;
	float alpha, beta;
	matrix a, b, c;
	bool tf32; // round operands to tf32
};

void store(const product &p, int64_t batch, int64_t row, int64_t column, float value) {
	int64_t i = batch * p.c.stride + row + column * p.c.leading;
	auto *halves = static_cast<uint16_t *>(const_cast<void *>(p.c.data));
	switch (p.c.type) {
	case type_fp16:
		halves[i] = to_fp16(value);
		break;
	case type_bf16:
		halves[i] = to_bf16(value);
		break;
	default:
		static_cast<float *>(const_cast<void *>(p.c.data))[i] = value;
	}
}

// gathered is the matrix [rows, columns] of a batch as float32, by columns.
std::vector<float> gathered(const matrix &x, int64_t batch, int rows, int columns, bool tf32) {
	std::vector<float> all;
	all.reserve(static_cast<size_t>(rows) * static_cast<size_t>(columns));
	for (int64_t column = 0; column < columns; column++) {
		for (int64_t row = 0; row < rows; row++) {
			float value = x.at(batch, row, column);
			all.push_back(tf32 ? to_tf32(value) : value);
		}
	}
	return all;
}

void multiply(void *data) {
	product p;
	memcpy(&p, data, sizeof p);
	auto m = static_cast<size_t>(p.m), n = static_cast<size_t>(p.n), k = static_cast<size_t>(p.k);
	for (int64_t batch = 0; batch < p.batches; batch++) {
		std::vector<float> a = gathered(p.a, batch, p.m, p.k, p.tf32);
		std::vector<float> b = gathered(p.b, batch, p.k, p.n, p.tf32);
		for (size_t column = 0; column < n; column++) {
			std::vector<float> sums(m);
			for (size_t i = 0; i < k; i++) {
				float factor = b[column * k + i];
				for (size_t row = 0; row < m; row++) {
					sums[row] += a[i * m + row] * factor;
				}
			}
			for (size_t row = 0; row < m; row++) {
				float value = p.alpha * sums[row];
				// With beta 0 what was there is not read: it may be NaN.
				if (p.beta != 0) {
					value += p.beta * p.c.at(batch, static_cast<int64_t>(row),
						static_cast<int64_t>(column));
				}
				store(p, batch, static_cast<int64_t>(row), static_cast<int64_t>(column), value);
			}
		}
	}
}

bool known(int type) { return type == type_fp32 || type == type_fp16 || type == type_bf16; }

// fits says whether a leading dimension holds a matrix of rows x columns.
bool fits(const matrix &x, int rows, int columns) {
	return x.leading >= (x.transposed ? columns : rows) && x.leading > 0;
}

int start(handle *h, const product &p) {
	if (h == nullptr) {
		return not_initialized;
	}
	if (p.m < 0 || p.n < 0 || p.k < 0 || !fits(p.a, p.m, p.k) || !fits(p.b, p.k, p.n) ||
		!fits(p.c, p.m, p.n)) {
		return invalid_value;
	}
	if (!known(p.a.type) || p.a.type != p.b.type || !known(p.c.type) ||
		(p.c.type != type_fp32 && p.c.type != p.a.type)) {
		return unsupported;
	}
	product copy = p;
	return h->enqueue(h->stream, "a product of cuBLAS", multiply, &copy, sizeof copy) == 0
		? success
		: failed;
}

} // namespace

EXPORT int cublasCreate_v2(handle **made) {
	// The driver is there already: its functions made the context that the handle is for.
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = driver == nullptr ? nullptr : dlsym(driver, "rondo_emulator_enqueue");
	if (found == nullptr) {
		fprintf(stderr, "emulated cuBLAS: the emulated driver is not loaded\n");
		return not_initialized;
	}
	*made = new handle{nullptr, reinterpret_cast<enqueue_function>(found)};
	return success;
}

EXPORT int cublasDestroy_v2(handle *h) {
	delete h;
	return success;
}

EXPORT int cublasSetStream_v2(handle *h, void *stream) {
	h->stream = stream;
	return success;
}

EXPORT int cublasSetWorkspace_v2(handle *, void *, size_t) { return success; }
EXPORT int cublasSetMathMode(handle *, int) { return success; }
EXPORT int cublasSetPointerMode_v2(handle *, int mode) { return mode == 0 ? success : unsupported; }

EXPORT int cublasGetVersion_v2(handle *, int *version) {
	*version = 120400;
	return success;
}

EXPORT const char *cublasGetStatusString(int status) {
	switch (status) {
	case success:
		return "CUBLAS_STATUS_SUCCESS";
	case not_initialized:
		return "CUBLAS_STATUS_NOT_INITIALIZED";
	case invalid_value:
		return "CUBLAS_STATUS_INVALID_VALUE";
	case failed:
		return "CUBLAS_STATUS_EXECUTION_FAILED";
	case unsupported:
		return "CUBLAS_STATUS_NOT_SUPPORTED";
	default:
		return "unknown";
	}
}

EXPORT int cublasGemmStridedBatchedEx(handle *h, int trans_a, int trans_b, int m, int n, int k,
	const void *alpha, const void *a, int a_type, int lda, long long stride_a, const void *b,
	int b_type, int ldb, long long stride_b, const void *beta, void *c, int c_type, int ldc,
	long long stride_c, int batches, int compute, int) {
	// CUBLAS_COMPUTE_32F, its pedantic form, and CUBLAS_COMPUTE_32F_FAST_TF32.
	if (compute != 68 && compute != 69 && compute != 77) {
		return unsupported;
	}
	product p{m, n, k, batches, *static_cast<const float *>(alpha),
		*static_cast<const float *>(beta), {a, a_type, trans_a != 0, lda, stride_a},
		{b, b_type, trans_b != 0, ldb, stride_b}, {c, c_type, false, ldc, stride_c},
		compute == 77};
	return start(h, p);
}

EXPORT int cublasGemmEx(handle *h, int trans_a, int trans_b, int m, int n, int k, const void *alpha,
	const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta,
	void *c, int c_type, int ldc, int compute, int algorithm) {
	return cublasGemmStridedBatchedEx(h, trans_a, trans_b, m, n, k, alpha, a, a_type, lda, 0, b,
		b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute, algorithm);
}

EXPORT int cublasSgemm_v2(handle *h, int trans_a, int trans_b, int m, int n, int k,
	const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
	float *c, int ldc) {
	return cublasGemmEx(h, trans_a, trans_b, m, n, k, alpha, a, type_fp32, lda, b, type_fp32, ldb,
		beta, c, type_fp32, ldc, 68, -1);
}
