// Streams, events, captures and memory.

// What is needed before anything else.
void before() {
	WANT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr);
	size_t bytes;
	WANT(call("cuDeviceTotalMem_v2", &bytes, 0) == 3);
	OK("cuInit", 0u);
	OK("cuDeviceTotalMem_v2", &bytes, 0);
	WANT(call("cuDeviceTotalMem_v2", &bytes, 1) == 101);
	WANT(call("cuMemGetInfo_v2", &bytes, &bytes) == 201);
	void *context;
	OK("cuDevicePrimaryCtxRetain", &context, 0);
	WANT(call("cuMemGetInfo_v2", &bytes, &bytes) == 201); // it is not current yet
}

// A stream does nothing before something waits, and reads pinned memory when it runs.
void lazy_streams() {
	test t;
	void *stream = t.stream(1);
	float *staging = t.pinned(4), *result = t.pinned(4);
	device_pointer x = t.allocate(16), y = t.allocate(16);
	for (int i = 0; i < 4; i++) {
		staging[i] = 1;
	}
	OK("cuMemcpyHtoDAsync_v2", x, staging, size_t{16}, stream);
	WANT(t.launch_on(stream, "scale", 1, 32, 0, false, y, x, 2.0f, 4) == 0);
	OK("cuMemcpyDtoHAsync_v2", result, y, size_t{16}, stream);
	WANT(isnan(result[0]));
	staging[0] = 5; // too early: the copy has not run
	WANT(call("cuStreamQuery", stream) == 600);
	OK("cuStreamSynchronize", stream);
	OK("cuStreamQuery", stream);
	WANT(result[0] == 10 && result[1] == 2);
	// Memory that is not pinned is read before the call returns.
	std::vector<float> plain = {3, 3, 3, 3};
	OK("cuMemcpyHtoDAsync_v2", x, plain.data(), size_t{16}, stream);
	plain[0] = 9;
	OK("cuMemcpyDtoHAsync_v2", plain.data(), x, size_t{16}, stream);
	WANT(plain[0] == 3);
	// Who only asks sees the end.
	OK("cuMemsetD32Async", x, 0u, size_t{4}, stream);
	for (int i = 0; call("cuStreamQuery", stream) == 600; i++) {
		WANT(i < 10);
	}
	OK("cuStreamDestroy_v2", stream);
	WANT(call("cuStreamSynchronize", stream) == 400);
}

void legacy_stream() {
	test t;
	void *blocking = t.stream(0), *free_one = t.stream(1);
	device_pointer x = t.copy_of(std::vector<float>{1, 1, 1, 1}), y = t.allocate(16);
	device_pointer z = t.allocate(16);
	WANT(t.launch_on(blocking, "scale", 1, 32, 0, false, y, x, 2.0f, 4) == 0);
	WANT(t.launch_on(free_one, "scale", 1, 32, 0, false, z, x, 2.0f, 4) == 0);
	WANT(t.read<float>(y, 4)[0] == 2);     // it waits for the blocking stream
	WANT(isnan(t.read<float>(z, 4)[0]));   // and not for the other
	OK("cuMemsetD32_v2", x, 0u, size_t{4}); // comes before what the blocking stream gets now
	WANT(t.launch_on(blocking, "scale", 1, 32, 0, false, y, x, 2.0f, 4) == 0);
	OK("cuStreamSynchronize", blocking);
	WANT(t.read<float>(y, 4)[0] == 0);
}

void events() {
	test t;
	void *first = t.stream(1), *second = t.stream(1), *done = t.event(), *later = t.event();
	device_pointer x = t.copy_of(std::vector<float>{1, 1, 1, 1});
	device_pointer y = t.allocate(16), z = t.allocate(16);
	OK("cuEventQuery", done); // never recorded
	WANT(t.launch_on(first, "scale", 1, 32, 0, false, y, x, 2.0f, 4) == 0);
	OK("cuEventRecord", done, first);
	WANT(t.launch_on(first, "scale", 1, 32, 0, false, x, x, 0.0f, 4) == 0);
	OK("cuStreamWaitEvent", second, done, 0u);
	WANT(t.launch_on(second, "scale", 1, 32, 0, false, z, y, 3.0f, 4) == 0);
	OK("cuEventRecord", later, second);
	float milliseconds;
	WANT(call("cuEventElapsedTime", &milliseconds, done, later) == 600);
	OK("cuEventSynchronize", later);
	OK("cuEventElapsedTime", &milliseconds, done, later);
	WANT(milliseconds >= 0);
	WANT(t.read<float>(z, 4)[0] == 6);
	WANT(t.read<float>(x, 4)[0] == 1); // the first stream has run only what was waited for
	OK("cuStreamSynchronize", first);
	WANT(t.read<float>(x, 4)[0] == 0);
	OK("cuEventDestroy_v2", done);
	WANT(call("cuEventQuery", done) == 400);
}

// Without an event the second stream sees nothing of the first.
void missing_synchronisation() {
	test t;
	void *first = t.stream(1), *second = t.stream(1);
	device_pointer x = t.copy_of(std::vector<float>{1, 1, 1, 1});
	device_pointer y = t.allocate(16), z = t.allocate(16);
	OK("cuCtxSynchronize");
	WANT(t.launch_on(first, "scale", 1, 32, 0, false, y, x, 2.0f, 4) == 0);
	WANT(t.launch_on(second, "scale", 1, 32, 0, false, z, y, 3.0f, 4) == 0);
	OK("cuStreamSynchronize", second);
	WANT(isnan(t.read<float>(z, 4)[0]));
}

void memory() {
	test t;
	size_t before, after, total;
	OK("cuMemGetInfo_v2", &before, &total);
	device_pointer x = t.allocate(1000);
	OK("cuMemGetInfo_v2", &after, &total);
	WANT(before - after == 1024);
	device_pointer start;
	size_t bytes;
	OK("cuMemGetAddressRange_v2", &start, &bytes, x + 999);
	WANT(start == x && bytes == 1000);
	WANT(isnan(t.read<float>(x, 250)[249]));
	std::vector<char> host(2000);
	WANT(call("cuMemcpyHtoD_v2", x, host.data(), size_t{1001}) == 1);
	WANT(call("cuMemcpyDtoH_v2", host.data(), x + 1, size_t{1000}) == 1);
	WANT(call("cuMemcpyHtoD_v2", host.data(), host.data(), size_t{10}) == 1);
	WANT(call("cuMemsetD32_v2", x, 0u, size_t{251}) == 1);
	WANT(call("cuMemFree_v2", x + 16) == 1);
	OK("cuMemFree_v2", x);
	WANT(call("cuMemFree_v2", x) == 1);
	WANT(call("cuMemFreeHost", host.data()) == 1);
	OK("cuMemGetInfo_v2", &after, &total);
	WANT(before == after);
}

void out_of_memory() {
	test t;
	size_t available, total;
	OK("cuMemGetInfo_v2", &available, &total);
	WANT(total == 1 << 20);
	device_pointer x, y;
	OK("cuMemAlloc_v2", &x, size_t{768 << 10});
	WANT(call("cuMemAlloc_v2", &y, size_t{512 << 10}) == 2);
	OK("cuMemFree_v2", x);
	OK("cuMemAlloc_v2", &y, size_t{1 << 20});
	WANT(call("cuMemAlloc_v2", &x, size_t{1}) == 2);
}

// A graph keeps arguments by value and copies by address.
void capture() {
	test t;
	void *stream = t.stream(1), *graph, *exec;
	float *staging = t.pinned(4);
	device_pointer x = t.allocate(16), y = t.allocate(16);
	float factor = 2;
	OK("cuStreamBeginCapture_v2", stream, 0);
	OK("cuMemcpyHtoDAsync_v2", x, staging, size_t{16}, stream);
	WANT(t.launch_on(stream, "scale", 1, 32, 0, false, y, x, factor, 4) == 0);
	int capturing;
	OK("cuStreamIsCapturing", stream, &capturing);
	WANT(capturing == 1);
	OK("cuStreamEndCapture", stream, &graph);
	factor = 7;
	OK("cuStreamSynchronize", stream);
	WANT(isnan(t.read<float>(y, 4)[0])); // nothing has run
	OK("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	OK("cuGraphDestroy", graph);
	for (int i = 1; i <= 3; i++) {
		for (int j = 0; j < 4; j++) {
			staging[j] = static_cast<float>(i);
		}
		OK("cuGraphLaunch", exec, stream);
		OK("cuStreamSynchronize", stream);
		WANT(t.read<float>(y, 4)[3] == static_cast<float>(2 * i));
	}
	OK("cuGraphExecDestroy", exec);
	WANT(call("cuGraphLaunch", exec, stream) == 400);
}

void capture_refused() {
	test t;
	void *stream = t.stream(1), *graph;
	device_pointer x = t.allocate(16), y;
	std::vector<float> plain(4);
	float *host;
	const std::vector<std::function<int()>> refused = {
		[&] { return call("cuStreamSynchronize", stream); },
		[&] { return call("cuStreamQuery", stream); },
		[&] { return call("cuCtxSynchronize"); },
		[&] { return call("cuMemAlloc_v2", &y, size_t{16}); },
		[&] { return call("cuMemFree_v2", x); },
		[&] { return call("cuMemHostAlloc", &host, size_t{16}, 0u); },
		[&] { return call("cuMemcpyHtoD_v2", x, plain.data(), size_t{16}); },
		[&] { return call("cuMemcpyHtoDAsync_v2", x, plain.data(), size_t{16}, stream); },
	};
	for (auto &f : refused) {
		OK("cuStreamBeginCapture_v2", stream, 0);
		WANT(f() == 900);
		WANT(call("cuStreamEndCapture", stream, &graph) == 901);
		WANT(graph == nullptr);
	}
	WANT(call("cuStreamEndCapture", stream, &graph) == 903);
	OK("cuMemFree_v2", x);
}

void fork_and_join() {
	test t;
	void *origin = t.stream(1), *other = t.stream(1), *graph, *exec;
	void *fork = t.event(), *join = t.event();
	device_pointer x = t.copy_of(std::vector<float>{1, 1, 1, 1}), y = t.allocate(16);
	for (int joined = 0; joined < 2; joined++) {
		OK("cuStreamBeginCapture_v2", origin, 0);
		OK("cuEventRecord", fork, origin);
		OK("cuStreamWaitEvent", other, fork, 0u);
		WANT(t.launch_on(other, "scale", 1, 32, 0, false, y, x, 4.0f, 4) == 0);
		OK("cuEventRecord", join, other);
		if (joined != 0) {
			OK("cuStreamWaitEvent", origin, join, 0u);
		}
		WANT(call("cuStreamEndCapture", origin, &graph) == (joined != 0 ? 0 : 904));
	}
	WANT(call("cuEventSynchronize", join) == 907);
	OK("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
	OK("cuGraphLaunch", exec, origin);
	OK("cuStreamSynchronize", origin);
	WANT(t.read<float>(y, 4)[0] == 4);
}

// What no event orders in a graph comes in one order at some launches, and in the other at others;
// what one does comes in its order at all of them, also through a stream that did nothing between.
void graph_order() {
	test t;
	void *origin = t.stream(1), *first = t.stream(1), *second = t.stream(1), *exec, *graph;
	void *fork = t.event(), *handed = t.event(), *join = t.event(), *between = t.event();
	device_pointer one = t.copy_of(std::vector<float>{1, 1, 1, 1}), x = t.allocate(16);
	for (int ordered = 0; ordered < 2; ordered++) {
		OK("cuStreamBeginCapture_v2", origin, 0);
		OK("cuEventRecord", fork, origin);
		OK("cuStreamWaitEvent", first, fork, 0u);
		OK("cuStreamWaitEvent", second, fork, 0u);
		WANT(t.launch_on(first, "scale", 1, 32, 0, false, x, one, 2.0f, 4) == 0);
		OK("cuEventRecord", handed, first);
		OK("cuStreamWaitEvent", origin, handed, 0u);
		OK("cuEventRecord", between, origin);
		if (ordered != 0) {
			OK("cuStreamWaitEvent", second, between, 0u);
		}
		WANT(t.launch_on(second, "scale", 1, 32, 0, false, x, one, 3.0f, 4) == 0);
		OK("cuEventRecord", join, second);
		OK("cuStreamWaitEvent", origin, join, 0u);
		OK("cuStreamEndCapture", origin, &graph);
		OK("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
		int last[2] = {0, 0};
		for (int i = 0; i < 100; i++) {
			OK("cuGraphLaunch", exec, origin);
			OK("cuStreamSynchronize", origin);
			last[t.read<float>(x, 4)[0] == 3]++;
		}
		WANT(ordered != 0 ? last[0] == 0 : last[0] > 0 && last[1] > 0);
	}
}

void modules() {
	test t;
	void *module, *f;
	WANT(call("cuModuleLoadData", &module, "no PTX") == 200);
	std::string newer = ".version 8.0\n.target sm_100\n";
	WANT(call("cuModuleLoadData", &module, newer.c_str()) == 209);
	std::string text = kHead + entry("scale", "ppf") + entry("neighbours2", "pi");
	OK("cuModuleLoadData", &module, text.c_str());
	WANT(call("cuModuleGetFunction", &f, module, "scale") == 200); // it lacks a parameter
	WANT(call("cuModuleGetFunction", &f, module, "neighbours") == 500);
	WANT(call("cuModuleGetFunction", &f, module, "neighbours2") == 500);
	const char *name;
	OK("cuGetErrorName", 500, &name);
	WANT(strcmp(name, "CUDA_ERROR_NOT_FOUND") == 0);
	WANT(call("cuMemAllocManaged", nullptr, size_t{1}, 0u) == 801);
	OK("cuDevicePrimaryCtxRelease_v2", 0);
	WANT(call("cuModuleGetFunction", &f, module, "scale") == 201);
}
