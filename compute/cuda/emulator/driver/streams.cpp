// Streams and events. A stream is a queue that runs nothing until something waits for it, and then
// no more than what must come before: whatever is not ordered by a stream or an event happens too
// late, so what a program forgot to wait for shows.

#include <time.h>

#include <algorithm>

#include "machine.h"

namespace emulator {
namespace {

constexpr size_t kQueueMost = 1 << 16; // then the oldest runs

struct registry {
	std::set<stream *> streams;
	std::set<event *> events;
	uint64_t orders = 0;
};

registry &all() {
	static registry *r = new registry;
	return *r;
}

double now() {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

stream *make_stream(context *home, bool blocking, int priority) {
	auto *s = new stream{home, blocking, priority, {}, nullptr};
	all().streams.insert(s);
	return s;
}

stream &legacy(context &c) {
	if (c.legacy == nullptr) {
		c.legacy = make_stream(&c, true, 0);
	}
	return *c.legacy;
}

void step(stream &s);

void finish_before(stream &s, uint64_t order) {
	while (!s.queue.empty() && s.queue.front().order < order) {
		step(s);
	}
}

void finish_mark(const mark &m) {
	while (!m.done && !m.in->queue.empty()) {
		step(*m.in);
	}
}

// held says whether the oldest operation of a stream waits for others.
bool held(const stream &s) {
	return !s.queue.empty() && s.queue.front().ready && !s.queue.front().ready();
}

// step runs the oldest operation of a stream, after what it depends on.
void step(stream &s) {
	while (held(s)) {
		breathe();
	}
	operation o = std::move(s.queue.front());
	s.queue.pop_front();
	if (o.awaited != nullptr) {
		finish_mark(*o.awaited);
	}
	// The legacy stream comes after all that the blocking streams got before, and the reverse.
	if (&s == s.home->legacy) {
		for (stream *other : std::set<stream *>(all().streams)) {
			if (other->home == s.home && other->blocking && other != &s) {
				finish_before(*other, o.order);
			}
		}
	} else if (s.blocking && s.home->legacy != nullptr) {
		finish_before(*s.home->legacy, o.order);
	}
	if (o.run && s.home->error == success) {
		execute(*s.home, o.what, o.run);
	}
	if (o.recorded != nullptr) {
		o.recorded->done = true;
		o.recorded->time = now();
	}
}

void push(stream &s, operation o) {
	o.order = all().orders++;
	s.queue.push_back(std::move(o));
	if (s.queue.size() > kQueueMost) {
		step(s);
	}
}

void close(stream *s) {
	captures_drop(s);
	while (!s->queue.empty()) {
		step(*s);
	}
	all().streams.erase(s);
	delete s;
}

// with_stream runs f with the stream of a handle.
status with_stream(void *handle, const std::function<status(stream &)> &f) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		return s == nullptr ? invalid_handle : f(*s);
	});
}

status with_event(event *e, const std::function<status(event &)> &f) {
	return guarded([&](context &) -> status {
		return event_of(e) == nullptr ? invalid_handle : f(*e);
	});
}

// progress runs one operation and says whether all are done: who asks often enough sees the end.
status progress(stream &s, bool done) {
	if (!done && !s.queue.empty()) {
		if (!held(s)) {
			step(s);
		}
		return s.home->error != success ? s.home->error : not_ready;
	}
	return s.home->error;
}

} // namespace

stream *stream_of(context &c, void *handle) {
	if (reinterpret_cast<uintptr_t>(handle) < 2) { // 1 is CU_STREAM_LEGACY
		return &legacy(c);
	}
	auto *s = static_cast<stream *>(handle);
	bool known = all().streams.count(s) != 0 && s->home == &c && s != c.legacy;
	if (!known) {
		complain("%p is no stream of the current context", handle);
	}
	return known ? s : nullptr;
}

event *event_of(void *handle) {
	auto *e = static_cast<event *>(handle);
	return all().events.count(e) != 0 ? e : nullptr;
}

status execute(context &c, const std::string &what, const std::function<status()> &run) {
	c.error = protect(what.c_str(), run);
	if (std::string damage = memory_overrun(); c.error == success && !damage.empty()) {
		complain("%s wrote behind the end of %s", what.c_str(), damage.c_str());
		c.error = illegal_address;
	}
	return c.error;
}

status enqueue(stream &s, const std::string &what, std::function<status()> run) {
	if (s.capture != nullptr) {
		graph &g = *s.capture;
		g.nodes.push_back({what, std::move(run), std::move(g.ends[&s])});
		g.ends[&s] = {g.nodes.size() - 1};
		g.last[&s] = g.nodes.size();
		return g.invalid ? capture_invalidated : success;
	}
	if (&s == s.home->legacy) {
		for (stream *other : all().streams) {
			if (other->home == s.home && other->blocking && other->capture != nullptr) {
				other->capture->invalid = true;
				return capture_implicit;
			}
		}
	}
	push(s, {0, what, std::move(run), nullptr, nullptr});
	return success;
}

status finish(stream &s) {
	while (!s.queue.empty()) {
		step(s);
	}
	return s.home->error;
}

status finish_all(context &c) {
	std::vector<stream *> mine;
	for (stream *s : all().streams) {
		if (s->home == &c) {
			mine.push_back(s);
		}
	}
	for (size_t i = mine.size(); i > 1; i--) {
		std::swap(mine[i - 1], mine[random_number() % i]);
	}
	for (stream *s : mine) {
		finish(*s);
	}
	return c.error;
}

void streams_close(context *c) {
	for (stream *s : std::set<stream *>(all().streams)) {
		if (s->home == c) {
			close(s);
		}
	}
	for (event *e : std::set<event *>(all().events)) {
		if (e->home == c) {
			all().events.erase(e);
			delete e;
		}
	}
}

} // namespace emulator

using namespace emulator;

EXPORT cuStreamCreateWithPriority(stream **made, unsigned flags, int priority) {
	return guarded([&](context &c) -> status {
		if (flags > 1) {
			return invalid_value;
		}
		*made = make_stream(&c, flags == 0, priority);
		return success;
	});
}

EXPORT cuStreamCreate(stream **made, unsigned flags) {
	return cuStreamCreateWithPriority(made, flags, 0);
}

EXPORT cuStreamDestroy_v2(stream *handle) {
	return guarded([&](context &c) -> status {
		if (handle == nullptr || stream_of(c, handle) == nullptr) {
			return invalid_handle;
		}
		close(handle);
		return success;
	});
}

EXPORT cuStreamGetFlags(void *handle, unsigned *flags) {
	return with_stream(handle, [&](stream &s) {
		*flags = s.blocking ? 0 : 1;
		return success;
	});
}

EXPORT cuStreamGetPriority(void *handle, int *priority) {
	return with_stream(handle, [&](stream &s) {
		*priority = s.priority;
		return success;
	});
}

EXPORT cuStreamSynchronize(void *handle) {
	return with_stream(handle, [](stream &s) -> status {
		if (status bad = forbidden_in(s); bad != success) {
			return bad;
		}
		if (&s == s.home->legacy) { // it is done when the blocking streams are, too
			push(s, {0, "", nullptr, nullptr, nullptr});
		}
		return finish(s);
	});
}

EXPORT cuStreamQuery(void *handle) {
	return with_stream(handle, [](stream &s) -> status {
		status bad = forbidden_in(s);
		return bad != success ? bad : progress(s, s.queue.empty());
	});
}

EXPORT cuStreamWaitEvent(void *handle, event *e, unsigned) {
	return with_stream(handle, [&](stream &s) -> status {
		if (event_of(e) == nullptr) {
			return invalid_handle;
		}
		if (e->last == nullptr) {
			return success;
		}
		if (e->last->captured != nullptr || s.capture != nullptr) {
			return capture_wait(s, *e->last);
		}
		push(s, {0, "", nullptr, e->last, nullptr});
		return success;
	});
}

EXPORT cuEventCreate(event **made, unsigned flags) {
	return guarded([&](context &c) {
		*made = new event{&c, (flags & 2) == 0, nullptr};
		all().events.insert(*made);
		return success;
	});
}

EXPORT cuEventDestroy_v2(event *e) {
	return with_event(e, [](event &known) {
		all().events.erase(&known);
		delete &known;
		return success;
	});
}

EXPORT cuEventRecord(event *e, void *handle) {
	return with_stream(handle, [&](stream &s) -> status {
		if (event_of(e) == nullptr) {
			return invalid_handle;
		}
		e->last = std::make_shared<mark>();
		e->last->in = &s;
		if (s.capture != nullptr) {
			e->last->captured = s.capture;
			e->last->position = s.capture->last[&s];
			e->last->after = s.capture->ends[&s];
			return success;
		}
		push(s, {0, "", nullptr, nullptr, e->last});
		return success;
	});
}

EXPORT cuEventRecordWithFlags(event *e, void *handle, unsigned) { return cuEventRecord(e, handle); }

EXPORT cuEventQuery(event *e) {
	return with_event(e, [](event &known) -> status {
		mark *m = known.last.get();
		if (m == nullptr || m->done) {
			return success;
		}
		return m->captured != nullptr ? captured_event : progress(*m->in, false);
	});
}

EXPORT cuEventSynchronize(event *e) {
	return with_event(e, [](event &known) -> status {
		if (known.last == nullptr) {
			return success;
		}
		if (known.last->captured != nullptr) {
			return captured_event;
		}
		finish_mark(*known.last);
		return known.home->error;
	});
}

EXPORT cuEventElapsedTime(float *milliseconds, event *from, event *to) {
	return guarded([&](context &) -> status {
		for (event *e : {from, to}) {
			if (event_of(e) == nullptr || !e->timed || e->last == nullptr) {
				return invalid_handle;
			}
			if (!e->last->done) {
				return not_ready;
			}
		}
		*milliseconds = static_cast<float>(1e3 * (to->last->time - from->last->time));
		return success;
	});
}

// rondo_emulator_enqueue is how the emulated cuBLAS puts an operation into a stream: run gets a
// copy of the bytes of data.
EXPORT rondo_emulator_enqueue(void *handle, const char *what, void (*run)(void *), void *data,
	size_t bytes) {
	return with_stream(handle, [&](stream &s) {
		auto *from = static_cast<unsigned char *>(data);
		auto kept = std::make_shared<std::vector<unsigned char>>(from, from + bytes);
		return enqueue(s, what, [run, kept] {
			run(kept->data());
			return success;
		});
	});
}

// rondo_emulator_enqueue_when is the same for the emulated NCCL, whose operations wait for what is
// done elsewhere: ready is asked until it says so. They are in no graph.
EXPORT rondo_emulator_enqueue_when(void *handle, const char *what, bool (*ready)(void *),
	void (*run)(void *), void *data) {
	return with_stream(handle, [&](stream &s) -> status {
		if (s.capture != nullptr) {
			return capture_unsupported;
		}
		auto once = [run, data] {
			run(data);
			return success;
		};
		push(s, {0, what, once, nullptr, nullptr, [ready, data] { return ready(data); }});
		return success;
	});
}
