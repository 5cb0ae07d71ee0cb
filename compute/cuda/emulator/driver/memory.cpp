// Device memory: a range of addresses that nothing may touch but while operations run. Each
// allocation has pages of its own, with pages that are never accessible between, and what was
// freed is not used again until the whole range has been: so an access out of bounds or after the
// release faults. What the last page has left is filled with a pattern, which is compared.
//
// An allocation becomes accessible by the first fault of the thread that runs an operation, and
// stays so until the driver returns to the caller: most operations touch few of them.

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "machine.h"

namespace emulator {
namespace {

constexpr size_t kGuard = 65536;
constexpr size_t kReserved = size_t{1} << 40;
constexpr unsigned char kPattern = 0xff, kNaN = 0xff;
constexpr size_t kCompared = 256;

struct range {
	unsigned char *base = nullptr;
	size_t next = 0;
	std::map<address, allocation> live;
	std::set<address> open;
	std::map<int, size_t> used;
	std::map<uintptr_t, size_t> pinned;
};

range &memory() {
	static range r;
	return r;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t pages(size_t bytes) {
	static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
	return round_up(bytes, page);
}

// reserve takes the addresses at first use.
bool reserve(range &r) {
	if (r.base != nullptr) {
		return true;
	}
	void *at = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		0);
	if (at == MAP_FAILED) {
		complain("there is no range of %zu addresses for device memory", kReserved);
		return false;
	}
	r.base = static_cast<unsigned char *>(at);
	return true;
}

// place finds room for bytes behind the last allocation, or from the start again.
unsigned char *place(range &r, size_t bytes) {
	size_t need = pages(bytes) + kGuard;
	for (int lap = 0; lap < 2; lap++) {
		while (r.next + need <= kReserved) {
			auto at = reinterpret_cast<address>(r.base + r.next);
			auto after = r.live.lower_bound(at);
			if (after != r.live.begin()) {
				auto before = std::prev(after);
				address end = before->first + pages(before->second.bytes) + kGuard;
				if (end > at) {
					r.next += end - at;
					continue;
				}
			}
			if (after == r.live.end() || at + need <= after->first) {
				r.next += need;
				return reinterpret_cast<unsigned char *>(at);
			}
			r.next = after->first + pages(after->second.bytes) + kGuard -
				reinterpret_cast<address>(r.base);
		}
		r.next = 0;
	}
	return nullptr;
}

void protection(address at, size_t bytes, int flags) {
	if (mprotect(reinterpret_cast<void *>(at), pages(bytes), flags) != 0) {
		complain("mprotect failed; is the number of memory maps limited?");
		abort();
	}
}

// overrun says whether the pattern behind an allocation has changed in its first limit bytes.
bool overrun(address at, size_t bytes, size_t limit) {
	auto *tail = reinterpret_cast<unsigned char *>(at) + bytes;
	size_t n = std::min(pages(bytes) - bytes, limit);
	return std::any_of(tail, tail + n, [](unsigned char c) { return c != kPattern; });
}

void release(range &r, std::map<address, allocation>::iterator at) {
	size_t bytes = at->second.bytes;
	memory_open(at->first);
	if (overrun(at->first, bytes, SIZE_MAX)) {
		complain("something was written behind the end of %s", memory_describe(at->first).c_str());
		abort();
	}
	r.open.erase(at->first);
	protection(at->first, bytes, PROT_NONE);
	madvise(reinterpret_cast<void *>(at->first), pages(bytes), MADV_DONTNEED);
	r.used[at->second.owner->device] -= round_up(bytes, 512);
	r.live.erase(at);
}

} // namespace

status memory_allocate(context *owner, size_t bytes, address *at) {
	range &r = memory();
	size_t taken = round_up(bytes, 512);
	size_t total = static_cast<size_t>(configured().memory);
	if (bytes == 0) {
		return invalid_value;
	}
	size_t &used = r.used[owner->device];
	if (bytes > total || used + taken > total || !reserve(r)) {
		return out_of_memory;
	}
	unsigned char *p = place(r, bytes);
	if (p == nullptr) {
		return out_of_memory;
	}
	*at = reinterpret_cast<address>(p);
	protection(*at, bytes, PROT_READ | PROT_WRITE);
	memset(p, kNaN, bytes);
	memset(p + bytes, kPattern, pages(bytes) - bytes);
	protection(*at, bytes, PROT_NONE);
	used += taken;
	r.live[*at] = allocation{bytes, owner};
	return success;
}

status memory_free(address at) {
	range &r = memory();
	auto found = r.live.find(at);
	if (found == r.live.end()) {
		complain("a release of %s", memory_describe(at).c_str());
		return invalid_value;
	}
	release(r, found);
	return success;
}

void memory_free_all(context *owner) {
	range &r = memory();
	for (auto i = r.live.begin(); i != r.live.end();) {
		auto mine = i++;
		if (mine->second.owner == owner) {
			release(r, mine);
		}
	}
}

size_t memory_used(int device) { return memory().used[device]; }

const allocation *memory_find(address at, size_t bytes, address *start) {
	range &r = memory();
	auto after = r.live.upper_bound(at);
	if (after == r.live.begin()) {
		return nullptr;
	}
	auto found = std::prev(after);
	size_t offset = at - found->first;
	if (offset > found->second.bytes || bytes > found->second.bytes - offset) {
		return nullptr;
	}
	if (start != nullptr) {
		*start = found->first;
	}
	return &found->second;
}

bool memory_is_device(address at) {
	range &r = memory();
	auto base = reinterpret_cast<address>(r.base);
	return r.base != nullptr && at >= base && at < base + kReserved;
}

bool memory_open(address at) {
	range &r = memory();
	auto after = r.live.upper_bound(at);
	if (after == r.live.begin()) {
		return false;
	}
	auto found = std::prev(after);
	if (at - found->first >= pages(found->second.bytes)) {
		return false;
	}
	if (r.open.insert(found->first).second) {
		protection(found->first, found->second.bytes, PROT_READ | PROT_WRITE);
		return true;
	}
	return false;
}

void memory_close() {
	range &r = memory();
	for (address at : r.open) {
		protection(at, r.live.at(at).bytes, PROT_NONE);
	}
	r.open.clear();
}

std::string memory_overrun() {
	range &r = memory();
	for (address at : r.open) {
		if (overrun(at, r.live.at(at).bytes, kCompared)) {
			return memory_describe(at);
		}
	}
	return "";
}

std::string memory_describe(address at) {
	char text[200];
	range &r = memory();
	if (!memory_is_device(at)) {
		snprintf(text, sizeof text, "%#llx, which is not device memory",
			static_cast<unsigned long long>(at));
		return text;
	}
	auto after = r.live.upper_bound(at);
	if (after != r.live.begin()) {
		auto before = std::prev(after);
		if (at - before->first < pages(before->second.bytes) + kGuard) {
			snprintf(text, sizeof text, "byte %lld of a block of %zu bytes at %#llx",
				static_cast<long long>(at - before->first), before->second.bytes,
				static_cast<unsigned long long>(before->first));
			return text;
		}
	}
	snprintf(text, sizeof text, "%#llx, device memory that is not allocated, or no more",
		static_cast<unsigned long long>(at));
	return text;
}

bool pinned(const void *at, size_t bytes) {
	auto &all = memory().pinned;
	auto p = reinterpret_cast<uintptr_t>(at);
	auto after = all.upper_bound(p);
	if (after == all.begin()) {
		return false;
	}
	auto found = std::prev(after);
	return p - found->first <= found->second && bytes <= found->second - (p - found->first);
}

} // namespace emulator

using namespace emulator;

EXPORT cuMemAlloc_v2(address *at, size_t bytes) {
	return guarded([&](context &c) -> status {
		status s = forbidden(c);
		return s != success ? s : memory_allocate(&c, bytes, at);
	});
}

// A release waits for the device, as that of a real driver does.
EXPORT cuMemFree_v2(address at) {
	return guarded([&](context &c) -> status {
		if (status s = forbidden(c); s != success) {
			return s;
		}
		if (at == 0) {
			return success;
		}
		if (status s = finish_all(c); s != success) {
			return s;
		}
		return memory_free(at);
	});
}

EXPORT cuMemGetInfo_v2(size_t *available, size_t *total) {
	return guarded([&](context &c) -> status {
		*total = static_cast<size_t>(configured().memory);
		*available = *total - memory_used(c.device);
		return success;
	});
}

EXPORT cuMemGetAddressRange_v2(address *start, size_t *bytes, address at) {
	return guarded([&](context &) -> status {
		address found = 0;
		const allocation *a = memory_find(at, 0, &found);
		if (a == nullptr) {
			return not_found;
		}
		if (start != nullptr) {
			*start = found;
		}
		if (bytes != nullptr) {
			*bytes = a->bytes;
		}
		return success;
	});
}

EXPORT cuMemHostAlloc(void **at, size_t bytes, unsigned) {
	return guarded([&](context &c) -> status {
		if (status s = forbidden(c); s != success) {
			return s;
		}
		if (bytes == 0) {
			return invalid_value;
		}
		void *p = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
		if (p == MAP_FAILED) {
			return out_of_memory;
		}
		memset(p, kNaN, bytes);
		memory().pinned[reinterpret_cast<uintptr_t>(p)] = bytes;
		*at = p;
		return success;
	});
}

EXPORT cuMemAllocHost_v2(void **at, size_t bytes) { return cuMemHostAlloc(at, bytes, 0); }

EXPORT cuMemFreeHost(void *at) {
	return guarded([&](context &c) -> status {
		if (status s = forbidden(c); s != success) {
			return s;
		}
		auto &all = memory().pinned;
		auto found = all.find(reinterpret_cast<uintptr_t>(at));
		if (found == all.end()) {
			complain("cuMemFreeHost of %p, which cuMemHostAlloc did not give", at);
			return invalid_value;
		}
		status s = finish_all(c);
		munmap(at, pages(found->second));
		all.erase(found);
		return s;
	});
}

EXPORT cuMemHostRegister_v2(void *at, size_t bytes, unsigned) {
	return guarded([&](context &) -> status {
		if (pinned(at, bytes)) {
			return host_memory_registered;
		}
		memory().pinned[reinterpret_cast<uintptr_t>(at)] = bytes;
		return success;
	});
}

EXPORT cuMemHostUnregister(void *at) {
	return guarded([&](context &c) -> status {
		auto &all = memory().pinned;
		auto found = all.find(reinterpret_cast<uintptr_t>(at));
		if (found == all.end()) {
			return host_memory_not_registered;
		}
		status s = finish_all(c);
		all.erase(found);
		return s;
	});
}
