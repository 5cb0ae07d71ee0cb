// A program that uses the emulated driver as any program would, through libcuda.so.1, and says of
// each promise whether it is kept: `probe NAME`. Tests of what must be refused look for the
// driver's message too (emulator_test.go).

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(const char *what, int line) {
	fprintf(stderr, "probe.cpp:%d: %s\n", line, what);
	exit(1);
}

#define WANT(condition) \
	do { \
		if (!(condition)) { \
			fail(#condition, __LINE__); \
		} \
	} while (false)

using device_pointer = uint64_t;

template <class... A> int call(const char *name, A... arguments) {
	void *f = dlsym(RTLD_DEFAULT, name);
	if (f == nullptr) {
		fail(name, __LINE__);
	}
	return reinterpret_cast<int (*)(A...)>(f)(arguments...);
}

#define OK(...) WANT(call(__VA_ARGS__) == 0)

// entry declares a kernel as PTX does; a letter for each parameter: p, a pointer, f or i.
std::string entry(const std::string &name, const std::string &parameters) {
	std::string text = ".visible .entry " + name + "(\n";
	for (size_t i = 0; i < parameters.size(); i++) {
		const char *type = parameters[i] == 'p' ? ".u64" : parameters[i] == 'f' ? ".f32" : ".u32";
		text += std::string("\t.param ") + type + " " + name + "_param_" + std::to_string(i);
		text += i + 1 < parameters.size() ? ",\n" : "\n";
	}
	return text + ")\n{\n\tret;\n}\n";
}

const char *const kHead = ".version 7.8\n.target sm_90\n.address_size 64\n";

struct test {
	void *context = nullptr, *module = nullptr;

	test() {
		WANT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr);
		OK("cuInit", 0u);
		OK("cuDevicePrimaryCtxRetain", &context, 0);
		OK("cuCtxSetCurrent", context);
		std::string text = kHead;
		const std::map<std::string, std::string> kernels = {
			{"neighbours", "pi"}, {"shuffles", "p"}, {"products", "ppp"}, {"matrices", "p"},
			{"products_slow", "ppp"}, {"matrices_slow", "p"},
			{"copies", "pp"}, {"ring", "pppi"}, {"count", "ppp"}, {"scale", "ppfi"},
			{"bounded", "p"}, {"some_exit", "p"}, {"two_barriers", "p"}, {"half_a_warp", "p"},
			{"never", "p"}, {"write_at", "pi"}, {"write_shared", "i"}, {"recurse", "p"},
			{"misaligned", "p"}};
		for (auto &k : kernels) {
			text += entry(k.first, k.second);
		}
		OK("cuModuleLoadData", &module, text.c_str());
	}

	void *function(const char *name) {
		void *f = nullptr;
		OK("cuModuleGetFunction", &f, module, name);
		return f;
	}

	device_pointer allocate(size_t bytes) {
		device_pointer p = 0;
		OK("cuMemAlloc_v2", &p, bytes);
		return p;
	}

	template <class T> device_pointer copy_of(const std::vector<T> &from) {
		device_pointer p = allocate(from.size() * sizeof(T));
		OK("cuMemcpyHtoD_v2", p, from.data(), from.size() * sizeof(T));
		return p;
	}

	template <class T> std::vector<T> read(device_pointer from, size_t n) {
		std::vector<T> to(n);
		OK("cuMemcpyDtoH_v2", to.data(), from, n * sizeof(T));
		return to;
	}

	template <class... A>
	int launch_on(void *stream, const char *name, unsigned grid, unsigned block, unsigned shared,
		bool cooperative, A... arguments) {
		void *values[] = {&arguments..., nullptr};
		void *f = function(name);
		if (cooperative) {
			return call("cuLaunchCooperativeKernel", f, grid, 1u, 1u, block, 1u, 1u, shared, stream,
				values);
		}
		return call("cuLaunchKernel", f, grid, 1u, 1u, block, 1u, 1u, shared, stream, values,
			nullptr);
	}

	template <class... A>
	int launch(const char *name, unsigned grid, unsigned block, unsigned shared, A... arguments) {
		return launch_on(nullptr, name, grid, block, shared, false, arguments...);
	}

	void *stream(unsigned flags) {
		void *s = nullptr;
		OK("cuStreamCreate", &s, flags);
		return s;
	}

	void *event() {
		void *e = nullptr;
		OK("cuEventCreate", &e, 0u);
		return e;
	}

	float *pinned(size_t n) {
		float *p = nullptr;
		OK("cuMemHostAlloc", &p, n * sizeof(float), 0u);
		return p;
	}

	// breaks says whether a launch breaks the context for good, with this error.
	void breaks(int status) {
		int got = call("cuCtxSynchronize");
		if (got != status) {
			fprintf(stderr, "error %d; want %d\n", got, status);
			exit(1);
		}
		device_pointer p;
		WANT(call("cuMemAlloc_v2", &p, size_t{16}) == status);
	}
};

#include "probe_kernels.h"
#include "probe_order.h"
#include "probe_refused.h"

} // namespace

int main(int count, char **arguments) {
	const std::map<std::string, std::function<void()>> all = {
		{"barrier", barrier}, {"shuffles", shuffles}, {"products", products},
		{"matrices", matrices}, {"atomics", atomics}, {"launch limits", launch_limits}, {"cublas", cublas},
		{"lazy streams", lazy_streams}, {"legacy stream", legacy_stream}, {"events", events},
		{"memory", memory}, {"out of memory", out_of_memory}, {"capture", capture},
		{"capture refused", capture_refused}, {"fork and join", fork_and_join},
		{"graph order", graph_order}, {"modules", modules}, {"before", before},
		{"missing barrier", missing_barrier},
		{"missing synchronisation", missing_synchronisation}, {"some exit", some_exit},
		{"two barriers", two_barriers}, {"half a warp", half_a_warp}, {"never", never},
		{"out of bounds", out_of_bounds}, {"past the end", past_the_end},
		{"after release", after_release}, {"shared overrun", shared_overrun},
		{"shared underrun", shared_underrun}, {"deep stack", deep_stack},
		{"misaligned", misaligned}, {"host access", host_access}};
	if (count != 2 || all.count(arguments[1]) == 0) {
		for (auto &t : all) {
			puts(t.first.c_str());
		}
		return count == 1 ? 0 : 2;
	}
	all.at(arguments[1])();
	return 0;
}
