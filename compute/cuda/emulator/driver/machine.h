// The parts of the emulated driver and what they ask of each other: memory.cpp, fibres.cpp,
// streams.cpp, capture.cpp, modules.cpp and devices.cpp. Everything is under one lock, which the
// exported functions take (see guarded).
#pragma once

#include <stdint.h>
#include <stdio.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "emulate.h"

#define EXPORT extern "C" __attribute__((visibility("default"))) int

namespace emulator {

// A status is a CUresult.
using status = int;
enum : status {
	success = 0,
	invalid_value = 1,
	out_of_memory = 2,
	not_initialized = 3,
	no_device = 100,
	invalid_device = 101,
	invalid_image = 200,
	invalid_context = 201,
	no_binary_for_gpu = 209,
	context_in_use = 216,
	invalid_handle = 400,
	not_found = 500,
	not_ready = 600,
	illegal_address = 700,
	launch_out_of_resources = 701,
	launch_timeout = 702,
	host_memory_registered = 712,
	host_memory_not_registered = 713,
	cooperative_launch_too_large = 720,
	launch_failed = 719,
	not_supported = 801,
	capture_unsupported = 900,
	capture_invalidated = 901,
	capture_unmatched = 903,
	capture_unjoined = 904,
	capture_isolation = 905,
	capture_implicit = 906,
	captured_event = 907,
};

using address = uint64_t; // a CUdeviceptr

// The limits of the emulated device: those of a GPU of compute capability 9.0.
constexpr size_t kSharedDefault = 49152, kSharedMost = 232448;
constexpr size_t kSharedPerMultiprocessor = 233472, kSharedReserved = 1024;
constexpr unsigned kThreadsMost = 1024, kThreadsPerMultiprocessor = 2048;
constexpr unsigned kBlocksPerMultiprocessor = 32;

struct context;
struct stream;
struct graph;

// complain writes a line about what the caller did wrong, with the seed.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

// number is the value of an environment variable, or otherwise.
int64_t number(const char *variable, int64_t otherwise);

// random gives the next of the numbers that the seed decides.
uint64_t random_number();

// --- memory.cpp

struct allocation {
	size_t bytes;
	context *owner;
};

status memory_allocate(context *owner, size_t bytes, address *at);
status memory_free(address at);
void memory_free_all(context *owner);
size_t memory_used(int device);
// memory_find is the allocation that [at, at + bytes) lies in, and its start; nullptr if none.
const allocation *memory_find(address at, size_t bytes, address *start = nullptr);
bool memory_is_device(address at); // within the range of any device memory, live or not
// memory_open makes the allocation at an address accessible until memory_close, and says whether
// it was one that was not.
bool memory_open(address at);
void memory_close();
// memory_overrun says in words which allocation something was written behind, if any.
std::string memory_overrun();
// memory_describe says in words what lies at an address.
std::string memory_describe(address at);

bool pinned(const void *at, size_t bytes);

// --- fibres.cpp

struct launch {
	const kernel *code;
	std::vector<void *> arguments;
	dim3 grid, block;
	size_t shared;
	bool cooperative;
};

// run executes a launch to its end.
status run(const launch &l);
// running_thread says in words which thread of a kernel runs, if any.
std::string running_thread();
// describe says in words what lies at an address, of device memory or of a thread of a kernel.
std::string describe(address at);

// --- faults.cpp

// protect runs f; a fault in it becomes illegal_address.
status protect(const char *what, const std::function<status()> &f);
void catch_faults();

// --- devices.cpp

struct context {
	int device;
	status error = success; // what broke it for good
	bool primary = false;
	unsigned users = 0; // of a primary context
	stream *legacy = nullptr;
};

struct settings {
	int devices;
	int multiprocessors;
	int capability; // 10 major + minor
	int64_t memory;
};
const settings &configured();

// guarded runs f under the lock, with the thread's current context.
status guarded(const std::function<status(context &)> &f);
// locked runs f under the lock, without a need for a context.
status locked(const std::function<status()> &f);
bool context_alive(const context *c);
// breathe lets other threads have the lock for a moment, in a wait for what they are to do.
void breathe();

// --- streams.cpp

// A mark is one recording of an event.
struct mark {
	bool done = false;
	double time = 0; // seconds
	stream *in = nullptr;
	std::shared_ptr<graph> captured; // set if it was recorded while capturing
	size_t position = 0; // in the capture: nodes up to the stream's last before it
	std::vector<size_t> after; // in the capture: the nodes that it comes after
};

struct operation {
	uint64_t order;
	std::string what;
	std::function<status()> run;
	std::shared_ptr<mark> awaited, recorded;
	std::function<bool()> ready = nullptr; // whether others have done what must come before it
};

struct stream {
	context *home;
	bool blocking; // waits for the legacy stream, and it for this
	int priority;
	std::deque<operation> queue;
	std::shared_ptr<graph> capture;
};

struct event {
	context *home;
	bool timed;
	std::shared_ptr<mark> last;
};

// stream_of finds a stream by its handle, nullptr if there is none; 0 is the legacy stream.
stream *stream_of(context &c, void *handle);
event *event_of(void *handle);
status enqueue(stream &s, const std::string &what, std::function<status()> run);
status finish(stream &s);
status finish_all(context &c);
void streams_close(context *c);
status execute(context &c, const std::string &what, const std::function<status()> &run);

// --- capture.cpp

// A node is what a captured graph runs.
struct node {
	std::string what;
	std::function<status()> run;
	std::vector<size_t> after; // places of the nodes that come before it
};

struct graph {
	std::vector<node> nodes;
	stream *origin = nullptr;
	int mode = 0;
	uint64_t thread = 0;
	bool invalid = false;
	std::set<stream *> streams; // that take part
	// By stream: the number of nodes up to its last, and up to that which another waited for.
	std::map<stream *, size_t> last, waited;
	// By stream: the places of the nodes that what it gets next comes after.
	std::map<stream *, std::vector<size_t>> ends;
	context *home = nullptr;
};

// forbidden is not success while a capture forbids what the caller is about to do, which
// invalidates the capture.
status forbidden(context &c);
status forbidden_in(stream &s);
// capture_wait makes a stream wait for an event of a capture, and take part in it.
status capture_wait(stream &s, const mark &m);
// captures_drop ends the capture that a stream takes part in.
void captures_drop(stream *s);

// --- modules.cpp

// modules_open loads the compiled kernels beside this library.
status modules_open();
void modules_close(context *c);

} // namespace emulator
