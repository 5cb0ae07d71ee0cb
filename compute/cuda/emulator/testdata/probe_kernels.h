// What runs inside of a kernel.

void barrier() {
	test t;
	device_pointer out = t.allocate(256 * 4);
	for (int i = 0; i < 20; i++) {
		WANT(t.launch("neighbours", 3, 256, 1024, out, 1) == 0);
		auto got = t.read<float>(out, 256);
		for (size_t j = 0; j < 256; j++) {
			WANT(got[j] == static_cast<float>((j + 1) % 256));
		}
	}
}

void missing_barrier() {
	test t;
	device_pointer out = t.allocate(256 * 4);
	WANT(t.launch("neighbours", 1, 256, 1024, out, 0) == 0);
	auto got = t.read<float>(out, 256);
	int wrong = 0;
	for (float x : got) {
		wrong += isnan(x) ? 1 : 0;
	}
	WANT(wrong > 50 && wrong < 256);
}

void shuffles() {
	test t;
	device_pointer out = t.allocate(8 * 32 * 8);
	WANT(t.launch("shuffles", 1, 32, 0, out) == 0);
	auto got = t.read<double>(out, 8 * 32);
	for (int lane = 0; lane < 32; lane++) {
		const double want[] = {10.5, static_cast<double>(lane ^ 5),
			static_cast<double>(lane + 3 < 32 ? lane + 3 : lane),
			static_cast<double>(lane >= 3 ? lane - 3 : lane), static_cast<double>(lane / 8 * 8 + 1),
			static_cast<double>(lane % 8 + 3 < 8 ? lane + 3 : lane), 0x49249249u, 496};
		for (int i = 0; i < 8; i++) {
			WANT(got[static_cast<size_t>(i * 32 + lane)] == want[i]);
		}
	}
}

// round_to keeps so many bits of a number behind its first.
float round_to(float x, int bits) {
	int exponent;
	double fraction = frexp(x, &exponent);
	return static_cast<float>(ldexp(nearbyint(ldexp(fraction, bits + 1)), exponent - bits - 1));
}

void products_by(const char *kernel) {
	test t;
	std::vector<float> a(16 * 16), b(16 * 8);
	for (size_t i = 0; i < a.size(); i++) {
		a[i] = sinf(static_cast<float>(i) * 1.7f);
	}
	for (size_t i = 0; i < b.size(); i++) {
		b[i] = cosf(static_cast<float>(i) * 0.9f) * 3;
	}
	device_pointer d = t.allocate(3 * 128 * 4);
	WANT(t.launch(kernel, 1, 32, 0, d, t.copy_of(a), t.copy_of(b)) == 0);
	auto got = t.read<float>(d, 3 * 128);
	const int bits[] = {7, 10, 10};
	for (size_t which = 0; which < 3; which++) {
		for (size_t row = 0; row < 16; row++) {
			for (size_t column = 0; column < 8; column++) {
				double want = 0;
				for (size_t k = 0; k < 16; k++) {
					want += static_cast<double>(round_to(a[row * 16 + k], bits[which])) *
						round_to(b[k * 8 + column], bits[which]);
				}
				WANT(fabs(got[which * 128 + row * 8 + column] - want) < 1e-5);
			}
		}
	}
}

void products() {
	products_by("products");
	products_by("products_slow");
}

void matrices_by(const char *kernel) {
	test t;
	device_pointer out = t.allocate(2 * 32 * 4 * 4);
	WANT(t.launch(kernel, 1, 32, 512, out) == 0);
	auto got = t.read<uint32_t>(out, 2 * 32 * 4);
	for (uint32_t load = 0; load < 2; load++) {
		for (uint32_t lane = 0; lane < 32; lane++) {
			for (uint32_t i = 0; i < 4; i++) {
				uint32_t g = lane / 4, t2 = lane % 4 * 2, lo, hi;
				if (load == 0) {
					lo = i * 64 + g * 8 + t2;
					hi = lo + 1;
				} else {
					lo = i * 64 + t2 * 8 + g;
					hi = lo + 8;
				}
				WANT(got[(load * 32 + lane) * 4 + i] == (lo | hi << 16));
			}
		}
	}
}

void matrices() {
	matrices_by("matrices");
	matrices_by("matrices_slow");
}

void atomics() {
	test t;
	device_pointer blocks = t.allocate(4), threads = t.allocate(4), most = t.allocate(4);
	for (device_pointer p : {blocks, threads, most}) {
		OK("cuMemsetD32_v2", p, 0u, size_t{1});
	}
	WANT(t.launch("count", 5, 100, 0, blocks, threads, most) == 0);
	WANT(t.read<int>(blocks, 1)[0] == 5);
	WANT(t.read<float>(threads, 1)[0] == 250);
	WANT(t.read<unsigned>(most, 1)[0] == 99);
}

void launch_limits() {
	test t;
	device_pointer out = t.allocate(4096);
	WANT(t.launch("neighbours", 1, 1025, 0, out, 1) == 1);
	WANT(t.launch("neighbours", 0, 32, 0, out, 1) == 1);
	WANT(t.launch("neighbours", 1, 32, 49153, out, 1) == 1);
	WANT(call("cuFuncSetAttribute", t.function("neighbours"), 8, 232449) == 1);
	OK("cuFuncSetAttribute", t.function("neighbours"), 8, 232448);
	WANT(t.launch("neighbours", 1, 32, 232448, out, 1) == 0);
	WANT(t.launch("bounded", 1, 64, 0, out) == 0);
	WANT(t.launch("bounded", 1, 65, 0, out) == 701);
	int blocks;
	OK("cuOccupancyMaxActiveBlocksPerMultiprocessor", &blocks, t.function("count"), 256, size_t{0});
	WANT(blocks == 8);
	OK("cuOccupancyMaxActiveBlocksPerMultiprocessor", &blocks, t.function("neighbours"), 256,
		size_t{100000});
	WANT(blocks == 2);
	WANT(t.launch_on(nullptr, "count", 16 * 8 + 1, 256, 0, true, out, out, out) == 720);
	OK("cuCtxSynchronize");
}

void cublas() {
	test t;
	WANT(dlopen("libcublas.so.12", RTLD_NOW | RTLD_GLOBAL) != nullptr);
	void *handle, *stream = t.stream(1);
	OK("cublasCreate_v2", &handle);
	OK("cublasSetStream_v2", handle, stream);
	// By columns: a is [2, 3], b is [3, 2] given as its transpose; beta keeps half of c.
	device_pointer a = t.copy_of(std::vector<float>{1, 4, 2, 5, 3, 6});
	device_pointer b = t.copy_of(std::vector<float>{7, 8, 9, 10, 11, 12});
	device_pointer c = t.copy_of(std::vector<float>{2, 4, 6, 8});
	float one = 1, half = 0.5f, zero = 0;
	OK("cublasSgemm_v2", handle, 0, 1, 2, 2, 3, &one, a, 2, b, 2, &half, c, 2);
	OK("cuStreamSynchronize", stream);
	auto got = t.read<float>(c, 4);
	// b = [[7, 8], [9, 10], [11, 12]]
	WANT(got[0] == 58 + 1 && got[1] == 139 + 2 && got[2] == 64 + 3 && got[3] == 154 + 4);
	device_pointer x = t.copy_of(std::vector<uint16_t>{0x3f80, 0x4000}); // bf16: 1, 2
	device_pointer y = t.allocate(4);                                   // NaN: not read
	OK("cublasGemmEx", handle, 1, 0, 1, 1, 2, &one, x, 14, 2, x, 14, 2, &zero, y, 0, 1, 68, -1);
	OK("cuStreamSynchronize", stream);
	WANT(t.read<float>(y, 1)[0] == 5);
	WANT(call("cublasSgemm_v2", handle, 0, 0, 2, 2, 3, &one, a, 1, b, 3, &zero, c, 2) == 7);
	OK("cublasDestroy_v2", handle);
}
