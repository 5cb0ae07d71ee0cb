// An NCCL for the emulated driver: sums of float32 between emulated GPUs, of one process or of
// several on one host, put into the stream as two operations: one hands out this rank's numbers,
// when the others have taken its earlier ones, and one takes everybody's, when all are there.
//
// It is as unforgiving as the real one. A member that is gone is waited for until the group is
// aborted; what is under way then ends as if it had been done, and leaves NaN. Members that ask for
// different sums get an error, and NaN. Every other sum is put into the stream only when it has been
// asked several times what has become of it.
//
// RONDO_EMULATOR_NCCL_FAILS=1:4 has rank 1 fail to ask for its 4th sum in a group, and
// RONDO_EMULATOR_NCCL_ABORT=hangs has no abort come to its end.
//
// Members meet in memory that is named by a process and one of its file descriptors, so that
// nothing is left when all of them are gone.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cmath>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// What the functions return, by the numbers of ncclResult_t.
enum : int {
	success = 0,
	cuda_error = 1,
	system_error = 2,
	invalid_argument = 4,
	invalid_usage = 5,
	in_progress = 7,
};

enum : int { type_fp32 = 7, operation_sum = 0 };

constexpr int kWorldMost = 16;
constexpr size_t kFloatsMost = size_t{1} << 24; // of a sum
constexpr unsigned kMagic = 0xcafebeef;

struct unique_id {
	int32_t process, descriptor;
	uint64_t nonce;
	char rest[112];
};
static_assert(sizeof(unique_id) == 128, "an id has 128 bytes");

// A seat is what a member shows to the others. Sums are numbered from 1.
struct seat {
	std::atomic<int> taken_by; // a process; 0: nobody
	std::atomic<int> world, device;
	std::atomic<uint64_t> given, taken; // the newest sum that it gave to, and that it has
	std::atomic<size_t> count;          // of floats in the sum that it gave to
};

struct table {
	uint64_t nonce;
	seat seats[kWorldMost];
};

constexpr size_t kTableBytes = 65536;
static_assert(sizeof(table) <= kTableBytes, "the numbers begin behind the table");
constexpr size_t kBytes = kTableBytes + kWorldMost * kFloatsMost * sizeof(float);

using enqueue_function = int (*)(void *stream, const char *what, bool (*ready)(void *),
	void (*run)(void *), void *data);

struct sum;

// A communicator is freed when it was aborted and none of its operations is in a stream.
struct communicator {
	std::atomic<int> users{1};
	std::atomic<bool> aborted{false};
	std::atomic<int> error{success};
	table *shared;
	int rank, world, device, descriptor; // of the maker of the id; -1 for others
	uint64_t sums = 0;
	enqueue_function enqueue;
	sum *begun = nullptr; // in the background: it is in no stream yet
	int looks = 0;        // before it is

	float *numbers(int of) const {
		auto *first = reinterpret_cast<unsigned char *>(shared) + kTableBytes;
		return reinterpret_cast<float *>(first) + static_cast<size_t>(of) * kFloatsMost;
	}
};

struct sum {
	communicator *group;
	const float *from;
	float *to;
	size_t count;
	uint64_t number;
	void *stream;
};

void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void complain(const char *format, ...) {
	char text[500];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "emulated NCCL: %s\n", text);
}

template <class F> F driver_function(const char *name) {
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	return reinterpret_cast<F>(driver == nullptr ? nullptr : dlsym(driver, name));
}

void release(communicator *c) {
	if (--c->users == 0) {
		munmap(c->shared, kBytes);
		delete c;
	}
}

// all says whether every member has come to a sum.
bool all(const communicator &c, std::atomic<uint64_t> seat::*what, uint64_t number) {
	for (int i = 0; i < c.world; i++) {
		if (c.shared->seats[i].*what < number) {
			return false;
		}
	}
	return true;
}

bool may_give(void *data) {
	auto *s = static_cast<sum *>(data);
	return s->group->aborted || all(*s->group, &seat::taken, s->number - 1);
}

void give(void *data) {
	auto *s = static_cast<sum *>(data);
	communicator &c = *s->group;
	if (c.aborted) {
		return;
	}
	memcpy(c.numbers(c.rank), s->from, s->count * sizeof(float));
	seat &own = c.shared->seats[c.rank];
	own.count = s->count;
	own.given = s->number;
}

bool may_take(void *data) {
	auto *s = static_cast<sum *>(data);
	return s->group->aborted || all(*s->group, &seat::given, s->number);
}

// alike says whether all members gave as many numbers.
bool alike(const communicator &c, size_t count) {
	for (int i = 0; i < c.world; i++) {
		if (size_t other = c.shared->seats[i].count; other != count) {
			complain("rank %d sums %zu floats, and rank %d %zu", c.rank, count, i, other);
			return false;
		}
	}
	return true;
}

void take(void *data) {
	auto *s = static_cast<sum *>(data);
	communicator &c = *s->group;
	bool sound = !c.aborted && alike(c, s->count);
	if (!sound && !c.aborted) {
		c.error = invalid_argument;
	}
	for (size_t i = 0; i < s->count; i++) {
		float total = sound ? 0.0f : std::nanf("");
		for (int of = 0; sound && of < c.world; of++) { // in one order, for the same bits
			total += c.numbers(of)[i];
		}
		s->to[i] = total;
	}
	c.shared->seats[c.rank].taken = s->number;
	delete s;
	release(&c);
}

// open maps the memory that an id names.
table *open_shared(const unique_id &id) {
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", id.process, id.descriptor);
	int descriptor = open(path, O_RDWR | O_CLOEXEC);
	if (descriptor < 0) {
		return nullptr;
	}
	void *at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor,
		0);
	close(descriptor);
	auto *shared = at == MAP_FAILED ? nullptr : static_cast<table *>(at);
	if (shared != nullptr && shared->nonce != id.nonce) {
		munmap(at, kBytes);
		return nullptr;
	}
	return shared;
}

// sit takes a rank's seat.
int sit(communicator &c) {
	seat &own = c.shared->seats[c.rank];
	own.world = c.world;
	own.device = c.device;
	int nobody = 0;
	if (!own.taken_by.compare_exchange_strong(nobody, getpid())) {
		complain("two members of a group are rank %d", c.rank);
		return invalid_usage;
	}
	return success;
}

// state is what has become of joining, and of the sums since.
int state(const communicator &c) {
	if (c.error != success) {
		return c.error;
	}
	if (c.begun != nullptr) {
		return in_progress;
	}
	for (int i = 0; i < c.world; i++) {
		const seat &other = c.shared->seats[i];
		if (other.taken_by == 0) {
			return in_progress;
		}
		if (other.world != c.world) {
			complain("rank %d has a group of %d, and rank %d of %d", c.rank, c.world, i,
				other.world.load());
			return invalid_usage;
		}
		if (i != c.rank && other.device == c.device) {
			complain("ranks %d and %d are on the same GPU", c.rank, i);
			return invalid_usage;
		}
	}
	return success;
}

// enqueue puts a sum into its stream.
int enqueue(sum *s) {
	communicator &c = *s->group;
	c.users++;
	if (c.enqueue(s->stream, "the first half of a sum of NCCL", may_give, give, s) != 0 ||
		c.enqueue(s->stream, "the second half of a sum of NCCL", may_take, take, s) != 0) {
		return cuda_error;
	}
	return success;
}

// fails says whether a sum is one that is to fail.
bool fails(const communicator &c, uint64_t number) {
	const char *text = getenv("RONDO_EMULATOR_NCCL_FAILS");
	char own[64];
	snprintf(own, sizeof own, "%d:%llu", c.rank, static_cast<unsigned long long>(number));
	return text != nullptr && strcmp(text, own) == 0;
}

} // namespace

EXPORT int ncclGetVersion(int *version) {
	const char *text = getenv("RONDO_EMULATOR_NCCL");
	*version = text == nullptr ? 22304 : atoi(text);
	return *version == 0 ? system_error : success;
}

EXPORT const char *ncclGetErrorString(int result) {
	switch (result) {
	case success:
		return "no error";
	case cuda_error:
		return "unhandled cuda error";
	case system_error:
		return "unhandled system error";
	case invalid_argument:
		return "invalid argument";
	case invalid_usage:
		return "invalid usage";
	default:
		return "unknown result code";
	}
}

EXPORT int ncclGetUniqueId(unique_id *id) {
	memset(id, 0, sizeof *id);
	id->process = getpid();
	id->descriptor = memfd_create("nccl", MFD_CLOEXEC);
	if (id->descriptor < 0 || ftruncate(id->descriptor, kBytes) != 0 ||
		getrandom(&id->nonce, sizeof id->nonce, 0) != sizeof id->nonce ||
		pwrite(id->descriptor, &id->nonce, sizeof id->nonce, 0) != sizeof id->nonce) {
		return system_error;
	}
	return success;
}

EXPORT int ncclCommInitRankConfig(communicator **made, int world, unique_id id, int rank,
	const void *config) {
	struct {
		size_t size;
		unsigned magic, version;
		int blocking;
	} asked;
	memcpy(&asked, config, sizeof asked);
	if (asked.magic != kMagic || asked.size < sizeof asked || asked.version < 21400 ||
		asked.blocking != 0) {
		complain("a configuration of %zu bytes, version %u, blocking %d", asked.size, asked.version,
			asked.blocking);
		return invalid_argument;
	}
	if (getenv("NCCL_NVLS_ENABLE") == nullptr) {
		complain("NVLS is not switched off, and its sums differ between runs");
		return invalid_usage;
	}
	if (world < 1 || world > kWorldMost || rank < 0 || rank >= world) {
		complain("rank %d of %d", rank, world);
		return invalid_argument;
	}
	auto current = driver_function<int (*)(int *)>("cuCtxGetDevice");
	auto enqueue = driver_function<enqueue_function>("rondo_emulator_enqueue_when");
	int device = 0;
	if (current == nullptr || enqueue == nullptr || current(&device) != 0) {
		return cuda_error;
	}
	table *shared = open_shared(id);
	if (shared == nullptr) {
		complain("nobody has the group of this id any more");
		return system_error;
	}
	auto *c = new communicator;
	c->shared = shared;
	c->rank = rank;
	c->world = world;
	c->device = device;
	c->descriptor = rank == 0 && id.process == getpid() ? id.descriptor : -1;
	c->enqueue = enqueue;
	*made = c;
	return sit(*c) == success ? in_progress : invalid_usage;
}

EXPORT int ncclCommGetAsyncError(communicator *c, int *result) {
	if (c->begun != nullptr && --c->looks == 0) {
		sum *s = c->begun;
		c->begun = nullptr;
		c->error = enqueue(s);
	}
	*result = state(*c);
	return success;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
	communicator *c, void *stream) {
	if (state(*c) != success) {
		complain("a sum in a group whose members have not all joined");
		return invalid_usage;
	}
	if (type != type_fp32 || operation != operation_sum || count > kFloatsMost) {
		complain("operation %d on %zu numbers of type %d is not emulated", operation, count, type);
		return invalid_argument;
	}
	if (fails(*c, ++c->sums)) {
		return c->error = system_error;
	}
	auto *s = new sum{c, static_cast<const float *>(from), static_cast<float *>(to), count, c->sums,
		stream};
	if (c->sums % 2 == 1) {
		return enqueue(s);
	}
	c->begun = s;
	c->looks = 3;
	return in_progress;
}

EXPORT int ncclCommAbort(communicator *c) {
	c->aborted = true;
	const char *text = getenv("RONDO_EMULATOR_NCCL_ABORT");
	while (text != nullptr && strcmp(text, "hangs") == 0) {
		pause();
	}
	delete c->begun;
	if (c->descriptor >= 0) {
		close(c->descriptor);
	}
	release(c);
	return success;
}
