// Devices, contexts, and what every exported function does first: the lock, the thread's current
// context, and the error of a context that broke.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "machine.h"

namespace emulator {
namespace {

struct state {
	std::mutex lock;
	bool ready = false; // after cuInit
	std::set<context *> contexts;
	std::map<int, context *> primary;
};

state &world() {
	static state *s = new state; // never freed: threads may still call while the process ends
	return *s;
}

std::vector<context *> &current_stack() {
	static thread_local std::vector<context *> stack;
	return stack;
}

context *make_context(int device) {
	auto *c = new context;
	c->device = device;
	world().contexts.insert(c);
	return c;
}

void destroy(context *c) {
	streams_close(c);
	memory_free_all(c);
	modules_close(c);
	world().contexts.erase(c);
	delete c;
}

bool valid(int device) { return device >= 0 && device < configured().devices; }

// on_device runs f under the lock if there is such a device.
status on_device(int device, const std::function<status()> &f) {
	return locked([&] { return valid(device) ? f() : invalid_device; });
}

// What cuDeviceGetAttribute says, by the numbers of CUdevice_attribute.
std::map<int, int> attributes(int device) {
	const settings &s = configured();
	return {
		{1, kThreadsMost}, {2, 1024}, {3, 1024}, {4, 64},      // threads of a block
		{5, 2147483647}, {6, 65535}, {7, 65535},               // blocks of a grid
		{8, kSharedDefault}, {9, 65536}, {10, 32},             // shared, constant memory, warp
		{11, 2147483647}, {12, 65536}, {13, 1000000}, {14, 512}, // pitch, registers, kHz
		{15, 1}, {16, s.multiprocessors}, {17, 0}, {18, 0},    // overlap, time limit, integrated
		{19, 1}, {20, 0}, {31, 1}, {32, 0},                    // host memory, mode, kernels, ECC
		{33, device + 1}, {34, 0}, {35, 0},                    // PCI bus and device, TCC
		{36, 1000000}, {37, 256}, {38, 4 << 20},               // memory clock, width, L2
		{39, kThreadsPerMultiprocessor}, {40, 2}, {41, 1},     // copy engines, unified addresses
		{50, 0}, {75, s.capability / 10}, {76, s.capability % 10}, {78, 1},
		{79, 1}, {80, 1}, {81, kSharedPerMultiprocessor}, {82, 65536},
		{83, 0}, {84, 0}, {86, 0}, {88, 0}, {89, 0}, {90, 1},
		{95, 1}, {97, kSharedMost}, {106, kBlocksPerMultiprocessor},
		{111, kSharedReserved}, {115, 0},
	};
}

} // namespace

const settings &configured() {
	static const settings s{
		static_cast<int>(number("RONDO_EMULATOR_DEVICES", 1)),
		static_cast<int>(number("RONDO_EMULATOR_MULTIPROCESSORS", 16)),
		static_cast<int>(number("RONDO_EMULATOR_CAPABILITY", 90)),
		number("RONDO_EMULATOR_MEMORY", int64_t{2} << 30),
	};
	return s;
}

bool context_alive(const context *c) {
	return world().contexts.count(const_cast<context *>(c)) != 0;
}

void breathe() {
	memory_close();
	world().lock.unlock();
	usleep(200);
	world().lock.lock();
}

status locked(const std::function<status()> &f) {
	std::lock_guard<std::mutex> hold(world().lock);
	if (!world().ready) {
		return not_initialized;
	}
	status s = f();
	memory_close();
	return s;
}

status guarded(const std::function<status(context &)> &f) {
	return locked([&] {
		auto &stack = current_stack();
		if (stack.empty() || !context_alive(stack.back())) {
			return static_cast<status>(invalid_context);
		}
		context &c = *stack.back();
		return c.error != success ? c.error : f(c);
	});
}

} // namespace emulator

using namespace emulator;

EXPORT cuInit(unsigned flags) {
	std::lock_guard<std::mutex> hold(world().lock);
	if (flags != 0) {
		return invalid_value;
	}
	if (!world().ready) {
		if (status s = modules_open(); s != success) {
			return s;
		}
		catch_faults();
		world().ready = true;
	}
	return configured().devices > 0 ? success : no_device;
}

EXPORT cuDriverGetVersion(int *version) {
	*version = 12040;
	return success;
}

EXPORT cuDeviceGetCount(int *count) {
	return locked([&] {
		*count = configured().devices;
		return success;
	});
}

EXPORT cuDeviceGet(int *device, int ordinal) {
	return on_device(ordinal, [&] {
		*device = ordinal;
		return success;
	});
}

EXPORT cuDeviceGetName(char *name, int length, int device) {
	return on_device(device, [&] {
		snprintf(name, static_cast<size_t>(length), "Emulated GPU");
		return success;
	});
}

EXPORT cuDeviceGetUuid(unsigned char *uuid, int device) {
	return on_device(device, [&] {
		memset(uuid, 0, 16);
		memcpy(uuid, "Rondo emulated", 14);
		uuid[15] = static_cast<unsigned char>(device);
		return success;
	});
}

EXPORT cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }

EXPORT cuDeviceGetAttribute(int *value, int attribute, int device) {
	return on_device(device, [&]() -> status {
		auto all = attributes(device);
		auto found = all.find(attribute);
		if (found == all.end()) {
			complain("cuDeviceGetAttribute: attribute %d is not emulated", attribute);
			return invalid_value;
		}
		*value = found->second;
		return success;
	});
}

EXPORT cuDeviceTotalMem_v2(size_t *bytes, int device) {
	return on_device(device, [&] {
		*bytes = static_cast<size_t>(configured().memory);
		return success;
	});
}

EXPORT cuDeviceGetPCIBusId(char *text, int length, int device) {
	return on_device(device, [&] {
		snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
		return success;
	});
}

EXPORT cuDeviceCanAccessPeer(int *can, int device, int peer) {
	return on_device(device, [&]() -> status {
		*can = 0;
		return valid(peer) ? success : invalid_device;
	});
}

EXPORT cuDevicePrimaryCtxRetain(context **made, int device) {
	return on_device(device, [&] {
		context *&c = world().primary[device];
		if (c == nullptr) {
			c = make_context(device);
			c->primary = true;
		}
		c->users++;
		*made = c;
		return success;
	});
}

EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
	return on_device(device, [&]() -> status {
		context *&c = world().primary[device];
		if (c == nullptr) {
			return invalid_context;
		}
		if (--c->users == 0) {
			destroy(c);
			c = nullptr;
		}
		return success;
	});
}

EXPORT cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
	return on_device(device, [&] {
		*flags = 0;
		*active = world().primary[device] != nullptr;
		return success;
	});
}

EXPORT cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
	return on_device(device, [] { return success; });
}

EXPORT cuCtxCreate_v2(context **made, unsigned, int device) {
	return on_device(device, [&] {
		*made = make_context(device);
		current_stack().push_back(*made);
		return success;
	});
}

EXPORT cuCtxDestroy_v2(context *c) {
	return locked([&]() -> status {
		if (!context_alive(c) || c->primary) {
			return invalid_context;
		}
		auto &stack = current_stack();
		if (!stack.empty() && stack.back() == c) {
			stack.pop_back();
		}
		destroy(c);
		return success;
	});
}

EXPORT cuCtxPushCurrent_v2(context *c) {
	return locked([&]() -> status {
		if (!context_alive(c)) {
			return invalid_context;
		}
		current_stack().push_back(c);
		return success;
	});
}

EXPORT cuCtxPopCurrent_v2(context **was) {
	return locked([&]() -> status {
		auto &stack = current_stack();
		if (stack.empty()) {
			return invalid_context;
		}
		if (was != nullptr) {
			*was = stack.back();
		}
		stack.pop_back();
		return success;
	});
}

EXPORT cuCtxSetCurrent(context *c) {
	return locked([&]() -> status {
		auto &stack = current_stack();
		if (c != nullptr && !context_alive(c)) {
			return invalid_context;
		}
		if (!stack.empty()) {
			stack.pop_back();
		}
		if (c != nullptr) {
			stack.push_back(c);
		}
		return success;
	});
}

EXPORT cuCtxGetCurrent(context **c) {
	return locked([&] {
		auto &stack = current_stack();
		*c = stack.empty() ? nullptr : stack.back();
		return success;
	});
}

EXPORT cuCtxGetDevice(int *device) {
	return guarded([&](context &c) {
		*device = c.device;
		return success;
	});
}

EXPORT cuCtxGetApiVersion(context *, unsigned *version) {
	*version = 12040;
	return success;
}

EXPORT cuCtxGetFlags(unsigned *flags) {
	return guarded([&](context &) {
		*flags = 0;
		return success;
	});
}

EXPORT cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	return guarded([&](context &) {
		*least = 0;
		*greatest = -5;
		return success;
	});
}

EXPORT cuCtxSynchronize() {
	return guarded([](context &c) -> status {
		status s = forbidden(c);
		return s != success ? s : finish_all(c);
	});
}
