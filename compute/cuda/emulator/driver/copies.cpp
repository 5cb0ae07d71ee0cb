// Copies and fills. An asynchronous copy reads and writes pinned memory by its address, when it
// runs. Of memory that is not pinned a real driver takes the bytes before it returns, and gives
// them before it returns: so does this one.

#include <string.h>

#include "machine.h"

namespace emulator {
namespace {

enum class side { host, device };

struct transfer {
	uintptr_t to, from;
	size_t bytes;
	side to_side, from_side;
};

// check refuses device memory that is not allocated, and addresses on the wrong side.
bool check(const char *what, uintptr_t at, size_t bytes, side where) {
	bool right = where == side::device ? memory_find(at, bytes) != nullptr : !memory_is_device(at);
	if (!right) {
		complain("%s of %zu bytes at %s", what, bytes, memory_describe(at).c_str());
	}
	return right;
}

std::function<status()> by_address(const transfer &t) {
	return [t] {
		memcpy(reinterpret_cast<void *>(t.to), reinterpret_cast<void *>(t.from), t.bytes);
		return success;
	};
}

std::function<status()> by_value(const transfer &t) {
	auto *from = reinterpret_cast<const unsigned char *>(t.from);
	auto kept = std::make_shared<std::vector<unsigned char>>(from, from + t.bytes);
	return [t, kept] {
		memcpy(reinterpret_cast<void *>(t.to), kept->data(), t.bytes);
		return success;
	};
}

status transfer_on(context &c, stream &s, const transfer &t, bool wait) {
	if (t.bytes == 0) {
		return success;
	}
	if (!check("a copy to", t.to, t.bytes, t.to_side) ||
		!check("a copy from", t.from, t.bytes, t.from_side)) {
		return invalid_value;
	}
	bool from_pageable =
		t.from_side == side::host && !pinned(reinterpret_cast<void *>(t.from), t.bytes);
	bool to_pageable = t.to_side == side::host && !pinned(reinterpret_cast<void *>(t.to), t.bytes);
	if (s.capture != nullptr && (from_pageable || to_pageable)) {
		complain("a copy of memory that is not pinned, while the stream is captured");
		s.capture->invalid = true;
		return capture_unsupported;
	}
	if (wait) {
		if (status bad = forbidden(c); bad != success) {
			return bad;
		}
	}
	bool keep = from_pageable && !wait;
	status queued = enqueue(s, "a copy", keep ? by_value(t) : by_address(t));
	return queued == success && (wait || to_pageable) ? finish(s) : queued;
}

// now copies in the order of the legacy stream. Between device memory nothing waits for the end.
status now(const transfer &t) {
	return guarded([&](context &c) {
		bool wait = t.to_side == side::host || t.from_side == side::host;
		return transfer_on(c, *stream_of(c, nullptr), t, wait);
	});
}

status later(const transfer &t, void *handle) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		return s == nullptr ? invalid_handle : transfer_on(c, *s, t, false);
	});
}

transfer any(address to, address from, size_t bytes) {
	auto side_of = [](address at) { return memory_is_device(at) ? side::device : side::host; };
	return {to, from, bytes, side_of(to), side_of(from)};
}

uintptr_t number_of(const void *p) { return reinterpret_cast<uintptr_t>(p); }

template <class T> status fill(address at, T value, size_t count, void *handle) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		if (s == nullptr) {
			return invalid_handle;
		}
		if (count == 0) {
			return success;
		}
		if (!check("a fill", at, count * sizeof(T), side::device) || at % sizeof(T) != 0) {
			return invalid_value;
		}
		return enqueue(*s, "a fill", [=] {
			auto *to = reinterpret_cast<T *>(at);
			for (size_t i = 0; i < count; i++) {
				to[i] = value;
			}
			return success;
		});
	});
}

} // namespace
} // namespace emulator

using namespace emulator;

EXPORT cuMemcpyHtoD_v2(address to, const void *from, size_t bytes) {
	return now({to, number_of(from), bytes, side::device, side::host});
}
EXPORT cuMemcpyDtoH_v2(void *to, address from, size_t bytes) {
	return now({number_of(to), from, bytes, side::host, side::device});
}
EXPORT cuMemcpyDtoD_v2(address to, address from, size_t bytes) {
	return now({to, from, bytes, side::device, side::device});
}
EXPORT cuMemcpy(address to, address from, size_t bytes) { return now(any(to, from, bytes)); }

EXPORT cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *handle) {
	return later({to, number_of(from), bytes, side::device, side::host}, handle);
}
EXPORT cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *handle) {
	return later({number_of(to), from, bytes, side::host, side::device}, handle);
}
EXPORT cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *handle) {
	return later({to, from, bytes, side::device, side::device}, handle);
}
EXPORT cuMemcpyAsync(address to, address from, size_t bytes, void *handle) {
	return later(any(to, from, bytes), handle);
}

EXPORT cuMemsetD8Async(address at, unsigned char value, size_t count, void *handle) {
	return fill(at, value, count, handle);
}
EXPORT cuMemsetD16Async(address at, unsigned short value, size_t count, void *handle) {
	return fill(at, value, count, handle);
}
EXPORT cuMemsetD32Async(address at, unsigned value, size_t count, void *handle) {
	return fill(at, value, count, handle);
}
EXPORT cuMemsetD8_v2(address at, unsigned char value, size_t count) {
	return fill(at, value, count, nullptr);
}
EXPORT cuMemsetD16_v2(address at, unsigned short value, size_t count) {
	return fill(at, value, count, nullptr);
}
EXPORT cuMemsetD32_v2(address at, unsigned value, size_t count) {
	return fill(at, value, count, nullptr);
}
