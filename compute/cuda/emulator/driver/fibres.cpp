// The threads of a launch, as fibres on one thread of the process. A fibre runs until it must wait:
// at a barrier, in a collective of its warp, or in a loop that waits for another block. Which runs
// first is random, by the seed, so that what is not ordered by a barrier shows.

#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

#include "machine.h"
#include "switch.h"

namespace emulator {

position *running;
uint64_t changes;

namespace {

constexpr size_t kStack = 128 << 10, kGuard = 64 << 10;
constexpr size_t kSharedArea = (kSharedMost + kGuard - 1) / kGuard * kGuard;
constexpr size_t kBefore = 64; // bytes in front of shared memory that are compared
constexpr unsigned char kNaN = 0xff;
constexpr int kIdleRounds = 20000;

struct block;

enum class state { ready, at_barrier, in_collective, spinning, exited };

struct fibre : position {
	void *saved = nullptr;
	unsigned char *stack = nullptr;
	block *home = nullptr;
	unsigned warp = 0;
	state now = state::ready;
	int line = 0;
	const char *what = "";
	void *brought = nullptr;
};

struct warp {
	unsigned arrived = 0, lanes = 0;
	fibre *first = nullptr; // lane 0
};

struct block {
	std::vector<fibre *> threads;
	std::vector<warp> warps;
	std::vector<fibre *> ready, spinning;
	unsigned char *area = nullptr; // of shared memory, between two guards
	unsigned char *shared = nullptr;
	unsigned waiting = 0, exited = 0;
	int line = 0; // of the barrier
};

// The launch that runs. There is one at a time.
struct machine {
	const launch *current = nullptr;
	status failure = success;
	void *scheduler = nullptr; // its stack pointer
	std::vector<std::unique_ptr<fibre>> fibres;
	std::vector<std::unique_ptr<block>> blocks;
	bool newest_first = false;
};

machine &host() {
	static machine m;
	return m;
}

fibre *self() { return static_cast<fibre *>(running); }

// leave goes on with the next fibre of the block that can run, or with the scheduler.
void leave(fibre *from) {
	block *b = from->home;
	if (b->ready.empty()) {
		emulator_switch(&from->saved, host().scheduler);
		return;
	}
	fibre *next = b->ready.back();
	b->ready.pop_back();
	if (next != from) {
		running = next;
		emulator_switch(&from->saved, next->saved);
	}
}

void make_ready(fibre *f) {
	f->now = state::ready;
	f->home->ready.push_back(f);
}

// give_up ends the launch; the other fibres are never run again.
[[noreturn]] void give_up(status s) {
	host().failure = s;
	void *dropped;
	emulator_switch(&dropped, host().scheduler);
	abort();
}

std::string place_of(const position &p) {
	char text[160];
	snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u)", p.block_index.x,
		p.block_index.y, p.block_index.z, p.thread_index.x, p.thread_index.y, p.thread_index.z);
	return text;
}

const char *kernel_name() { return host().current->code->name; }

void refuse_divergence(block *b, int line) {
	complain("kernel %s, %s: %u threads of its block wait at __syncthreads of line %d, but %u have "
		"exited", kernel_name(), place_of(*running).c_str(), b->waiting, line, b->exited);
	give_up(launch_failed);
}

void thread_main() {
	const launch &l = *host().current;
	l.code->call(const_cast<void **>(l.arguments.data()));
	fibre *f = self();
	f->now = state::exited;
	block *b = f->home;
	b->exited++;
	changes++;
	if (b->waiting > 0) {
		refuse_divergence(b, b->line);
	}
	leave(f);
	abort();
}

unsigned char *map_guarded(size_t bytes) {
	void *at = mmap(nullptr, bytes + 2 * kGuard, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *inside = static_cast<unsigned char *>(at) + kGuard;
	if (at == MAP_FAILED || mprotect(inside, bytes, PROT_READ | PROT_WRITE) != 0) {
		complain("no memory for the stacks of the emulated threads");
		abort();
	}
	return inside;
}

// prepare makes a fibre begin thread_main when it is first switched to.
void prepare(fibre *f) {
	if (f->stack == nullptr) {
		f->stack = map_guarded(kStack);
	}
	auto *top = reinterpret_cast<void **>(f->stack + kStack) - kSavedWords;
	std::fill(top, top + kSavedWords, nullptr);
	top[kReturnWord] = reinterpret_cast<void *>(thread_main);
	f->saved = top;
	f->now = state::ready;
}

template <class T> void permute(std::vector<T> &v) {
	for (size_t i = v.size(); i > 1; i--) {
		std::swap(v[i - 1], v[random_number() % i]);
	}
}

void fill_shared(block *b, size_t bytes) {
	if (b->area == nullptr) {
		b->area = map_guarded(kSharedArea);
	}
	// It ends at the guard, so that what runs over faults.
	b->shared = b->area + kSharedArea - (bytes + 15) / 16 * 16;
	unsigned char *from = std::max(b->area, b->shared - kBefore);
	memset(from, kNaN, static_cast<size_t>(b->area + kSharedArea - from));
}

// begin gives a block its place in the grid and makes its threads, from fibre number first on.
void begin(block *b, size_t first, unsigned index, const launch &l) {
	const dim3 &size = l.block, &grid = l.grid;
	unsigned n = size.x * size.y * size.z;
	b->waiting = b->exited = 0;
	b->spinning.clear();
	b->ready.clear();
	b->threads.clear();
	b->warps.assign((n + 31) / 32, warp{});
	fill_shared(b, l.shared);
	for (unsigned i = 0; i < n; i++) {
		fibre *f = host().fibres[first + i].get();
		prepare(f);
		f->home = b;
		f->thread_index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
		f->block_index = {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
		f->block_size = size;
		f->grid_size = grid;
		f->lane = i % 32;
		f->warp = i / 32;
		f->shared = b->shared;
		warp &w = b->warps[f->warp];
		w.first = f->lane == 0 ? f : w.first;
		w.lanes++;
		b->threads.push_back(f);
	}
	std::vector<unsigned> order(b->warps.size());
	for (unsigned i = 0; i < order.size(); i++) {
		order[i] = i;
	}
	permute(order);
	for (unsigned w : order) {
		std::vector<fibre *> lanes(b->threads.begin() + 32 * w,
			b->threads.begin() + std::min(32 * w + 32, n));
		permute(lanes);
		b->ready.insert(b->ready.end(), lanes.begin(), lanes.end());
	}
}

// report_stuck says where the threads of a block wait for ever.
void report_stuck(block *b) {
	std::map<std::string, unsigned> where;
	for (fibre *f : b->threads) {
		char text[120];
		switch (f->now) {
		case state::at_barrier:
			snprintf(text, sizeof text, "wait at __syncthreads of line %d", f->line);
			break;
		case state::in_collective:
			snprintf(text, sizeof text, "wait in %s of line %d", f->what, f->line);
			break;
		case state::exited:
			snprintf(text, sizeof text, "have exited");
			break;
		default:
			snprintf(text, sizeof text, "wait in a loop for another block or thread");
		}
		where[text]++;
	}
	std::string all;
	for (auto &w : where) {
		all += (all.empty() ? "" : ", ") + std::to_string(w.second) + " " + w.first;
	}
	const dim3 &at = b->threads[0]->block_index;
	complain("kernel %s: deadlock; of the %zu threads of block (%u, %u, %u) %s", kernel_name(),
		b->threads.size(), at.x, at.y, at.z, all.c_str());
}

// turn runs a block until all its threads wait. It says whether any ran.
bool turn(block *b) {
	for (fibre *f : b->spinning) {
		make_ready(f);
	}
	b->spinning.clear();
	if (b->ready.empty()) {
		return false;
	}
	fibre *next = b->ready.back();
	b->ready.pop_back();
	running = next;
	emulator_switch(&host().scheduler, next->saved);
	return true;
}

// complete runs the blocks to their ends.
status complete(std::vector<block *> live) {
	int idle = 0;
	while (!live.empty() && host().failure == success) {
		permute(live);
		uint64_t before = changes;
		bool ran = false;
		for (block *b : live) {
			ran = turn(b) || ran;
			if (host().failure != success) {
				return host().failure;
			}
		}
		live.erase(std::remove_if(live.begin(), live.end(),
			[](block *b) { return b->exited == b->threads.size(); }), live.end());
		idle = changes == before ? idle + 1 : 0;
		if (!live.empty() && (!ran || idle > kIdleRounds)) {
			report_stuck(live[0]);
			return launch_timeout;
		}
	}
	return host().failure;
}

status check_before_shared(const block &b) {
	unsigned char *from = std::max(b.area, b.shared - kBefore);
	if (std::any_of(from, b.shared, [](unsigned char c) { return c != kNaN; })) {
		complain("kernel %s: something was written in front of shared memory", kernel_name());
		return illegal_address;
	}
	return success;
}

status run_blocks(const launch &l) {
	machine &m = host();
	size_t threads = size_t{l.block.x} * l.block.y * l.block.z;
	size_t blocks = size_t{l.grid.x} * l.grid.y * l.grid.z;
	size_t together = l.cooperative ? blocks : 1;
	while (m.blocks.size() < together) {
		m.blocks.push_back(std::make_unique<block>());
	}
	while (m.fibres.size() < together * threads) {
		m.fibres.push_back(std::make_unique<fibre>());
	}
	std::vector<unsigned> order(blocks);
	for (unsigned i = 0; i < blocks; i++) {
		order[i] = i;
	}
	permute(order);
	for (size_t first = 0; first < blocks; first += together) {
		std::vector<block *> live;
		for (size_t i = 0; i < together; i++) {
			begin(m.blocks[i].get(), i * threads, order[first + i], l);
			live.push_back(m.blocks[i].get());
		}
		status s = complete(live);
		for (size_t i = 0; i < together && s == success; i++) {
			s = check_before_shared(*m.blocks[i]);
		}
		if (s != success) {
			return s;
		}
	}
	return success;
}

} // namespace

status run(const launch &l) {
	machine &m = host();
	m.current = &l;
	m.failure = success;
	m.newest_first = random_number() % 2 == 0;
	status s = run_blocks(l);
	m.current = nullptr;
	running = nullptr;
	return s;
}

std::string running_thread() { return running == nullptr ? "" : place_of(*running); }

std::string describe(address at) {
	auto *p = reinterpret_cast<const unsigned char *>(at);
	for (auto &b : host().blocks) {
		if (b->area != nullptr && p >= b->area - kGuard && p < b->area + kSharedArea + kGuard) {
			return "byte " + std::to_string(p - b->shared) + " of shared memory of " +
				std::to_string(b->area + kSharedArea - b->shared) + " bytes";
		}
	}
	for (auto &f : host().fibres) {
		if (f->stack != nullptr && p >= f->stack - kGuard && p < f->stack) {
			return "more local memory than a thread has";
		}
	}
	return memory_describe(at);
}

void barrier(int line) {
	fibre *f = self();
	block *b = f->home;
	if (b->waiting > 0 && b->line != line) {
		complain("kernel %s: %s is at __syncthreads of line %d, others wait at that of line %d",
			kernel_name(), place_of(*f).c_str(), line, b->line);
		give_up(launch_failed);
	}
	b->line = line;
	b->waiting++;
	if (b->exited > 0) {
		refuse_divergence(b, line);
	}
	if (b->waiting < b->threads.size()) {
		f->now = state::at_barrier;
		f->line = line;
		leave(f);
		return;
	}
	b->waiting = 0;
	changes++;
	for (fibre *other : b->threads) {
		if (other != f) {
			make_ready(other);
		}
	}
	if (host().newest_first) {
		std::reverse(b->ready.begin(), b->ready.end());
	}
	// The last to come is no more likely to be the first to go.
	make_ready(f);
	std::swap(b->ready.back(), b->ready[random_number() % b->ready.size()]);
	leave(f);
}

void collective(const char *what, int line, void *brought, void (*finish)(void **)) {
	fibre *f = self();
	warp &w = f->home->warps[f->warp];
	if (w.lanes != 32) {
		refuse("a collective in a warp of fewer than 32 threads", line);
	}
	f->brought = brought;
	f->what = what;
	f->line = line;
	f->now = state::in_collective;
	if (++w.arrived < 32) {
		leave(f);
		return;
	}
	w.arrived = 0;
	changes++;
	fibre **lanes = &f->home->threads[32 * f->warp];
	void *all[32];
	for (int i = 0; i < 32; i++) {
		if (lanes[i]->what != what || lanes[i]->line != line) {
			complain("kernel %s: %s is in %s of line %d, another lane of its warp in %s of line %d",
				kernel_name(), place_of(*f).c_str(), what, line, lanes[i]->what, lanes[i]->line);
			give_up(launch_failed);
		}
		all[i] = lanes[i]->brought;
	}
	if (finish != nullptr) {
		finish(all);
	}
	for (int i = 0; i < 32; i++) {
		if (lanes[i] != f) {
			make_ready(lanes[i]);
		}
	}
	f->now = state::ready;
}

void yield() {
	fibre *f = self();
	f->now = state::spinning;
	f->home->spinning.push_back(f);
	leave(f);
}

void refuse(const char *what, int line) {
	complain("kernel %s: %s, %s, line %d", kernel_name(), what, place_of(*running).c_str(), line);
	give_up(launch_failed);
}

void check_shared(const void *from, size_t bytes, int line) {
	auto *p = static_cast<const unsigned char *>(from);
	const unsigned char *start = self()->shared, *end = start + host().current->shared;
	if (p < start || p + bytes > end) {
		refuse("an address that is not in shared memory", line);
	}
	if (reinterpret_cast<uintptr_t>(p) % bytes != 0) {
		refuse("an address that is not aligned to 16 bytes", line);
	}
}

} // namespace emulator
