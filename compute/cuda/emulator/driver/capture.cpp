// Stream capture and graphs. A captured operation keeps its arguments by value and the memory it
// copies by address, as on a real driver. A graph runs its nodes in an order that the seed decides,
// another at each launch, of those that the streams and events of the capture allow: what a program
// forgot to wait for shows.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "machine.h"

namespace emulator {
namespace {

// A made_graph is a handle to a graph, or to an executable one.
struct made_graph {
	std::shared_ptr<graph> held;
	bool executable;
};

struct registry {
	std::set<made_graph *> graphs;
	std::set<std::shared_ptr<graph>> captures; // under way
};

registry &all() {
	static registry *r = new registry;
	return *r;
}

uint64_t thread_number() { return static_cast<uint64_t>(syscall(SYS_gettid)); }

bool known(made_graph *g, bool executable) {
	return all().graphs.count(g) != 0 && g->executable == executable;
}

status destroy(made_graph *g, bool executable) {
	return guarded([&](context &) -> status {
		if (!known(g, executable)) {
			return invalid_handle;
		}
		all().graphs.erase(g);
		delete g;
		return success;
	});
}

made_graph *make(std::shared_ptr<graph> held, bool executable) {
	auto *g = new made_graph{std::move(held), executable};
	all().graphs.insert(g);
	return g;
}

// joined says whether the origin has waited for all that the other streams got.
bool joined(const graph &g) {
	for (stream *s : g.streams) {
		if (s == g.origin) {
			continue;
		}
		auto got = g.last.find(s), waited = g.waited.find(s);
		size_t need = got == g.last.end() ? 0 : got->second;
		if (waited == g.waited.end() || waited->second < need) {
			return false;
		}
	}
	return true;
}

// any_order is an order in which the nodes of a graph may run.
std::vector<size_t> any_order(const graph &g) {
	std::vector<std::vector<size_t>> behind(g.nodes.size());
	std::vector<size_t> missing, ready, order;
	for (size_t i = 0; i < g.nodes.size(); i++) {
		for (size_t before : g.nodes[i].after) {
			behind[before].push_back(i);
		}
		missing.push_back(g.nodes[i].after.size());
		if (missing[i] == 0) {
			ready.push_back(i);
		}
	}
	while (!ready.empty()) {
		std::swap(ready.back(), ready[random_number() % ready.size()]);
		order.push_back(ready.back());
		ready.pop_back();
		for (size_t next : behind[order.back()]) {
			if (--missing[next] == 0) {
				ready.push_back(next);
			}
		}
	}
	return order;
}

} // namespace

status forbidden(context &c) {
	status s = success;
	for (auto &g : all().captures) {
		if (g->home == &c && (g->mode == 0 || (g->mode == 1 && g->thread == thread_number()))) {
			complain("a call that waits or allocates, while a stream is captured");
			g->invalid = true;
			s = capture_unsupported;
		}
	}
	return s;
}

status forbidden_in(stream &s) {
	if (s.capture == nullptr) {
		return success;
	}
	complain("a call that waits for a stream that is captured");
	s.capture->invalid = true;
	return capture_unsupported;
}

void captures_drop(stream *s) {
	if (s->capture != nullptr) {
		std::shared_ptr<graph> g = s->capture;
		for (stream *member : g->streams) {
			member->capture = nullptr;
		}
		all().captures.erase(g);
	}
}

status capture_wait(stream &s, const mark &m) {
	if (m.captured == nullptr || (s.capture != nullptr && s.capture != m.captured) ||
		all().captures.count(m.captured) == 0) {
		if (s.capture != nullptr) {
			s.capture->invalid = true;
		}
		complain("a wait for an event that was recorded outside of the capture, or in another");
		return capture_isolation;
	}
	graph &g = *m.captured;
	s.capture = m.captured;
	g.streams.insert(&s);
	size_t &waited = g.waited[m.in];
	waited = std::max(waited, m.position);
	std::vector<size_t> &ends = g.ends[&s];
	ends.insert(ends.end(), m.after.begin(), m.after.end());
	std::sort(ends.begin(), ends.end());
	ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
	return success;
}

} // namespace emulator

using namespace emulator;

EXPORT cuStreamBeginCapture_v2(void *handle, int mode) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		if (s == nullptr) {
			return invalid_handle;
		}
		if (s == c.legacy || s->capture != nullptr || mode < 0 || mode > 2) {
			return capture_unsupported;
		}
		auto g = std::make_shared<graph>();
		g->home = &c;
		g->origin = s;
		g->mode = mode;
		g->thread = thread_number();
		g->streams.insert(s);
		s->capture = g;
		all().captures.insert(g);
		return success;
	});
}

EXPORT cuStreamEndCapture(void *handle, made_graph **made) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		*made = nullptr;
		if (s == nullptr || s->capture == nullptr || s->capture->origin != s) {
			return s == nullptr ? invalid_handle : capture_unmatched;
		}
		std::shared_ptr<graph> g = s->capture;
		captures_drop(s);
		if (g->invalid) {
			return capture_invalidated;
		}
		if (!joined(*g)) {
			return capture_unjoined;
		}
		*made = make(g, false);
		return success;
	});
}

// Its answer is 0, none; 1, active; 2, invalidated.
EXPORT cuStreamIsCapturing(void *handle, int *answer) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		if (s == nullptr) {
			return invalid_handle;
		}
		*answer = s->capture == nullptr ? 0 : s->capture->invalid ? 2 : 1;
		return success;
	});
}

EXPORT cuGraphInstantiateWithFlags(made_graph **made, made_graph *from, unsigned long long) {
	return guarded([&](context &c) -> status {
		if (!known(from, false)) {
			return invalid_handle;
		}
		if (status s = forbidden(c); s != success) {
			return s;
		}
		*made = make(from->held, true);
		return success;
	});
}

EXPORT cuGraphLaunch(made_graph *g, void *handle) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		if (s == nullptr || !known(g, true)) {
			return invalid_handle;
		}
		for (size_t place : any_order(*g->held)) {
			const node &n = g->held->nodes[place];
			if (status bad = enqueue(*s, n.what, n.run); bad != success) {
				return bad;
			}
		}
		return success;
	});
}

EXPORT cuGraphGetNodes(made_graph *g, void **, size_t *count) {
	return guarded([&](context &) -> status {
		if (!known(g, false)) {
			return invalid_handle;
		}
		*count = g->held->nodes.size();
		return success;
	});
}

EXPORT cuGraphDestroy(made_graph *g) { return destroy(g, false); }
EXPORT cuGraphExecDestroy(made_graph *g) { return destroy(g, true); }
