package rpc

import (
	"cmp"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	rondov1 "rondo/proto/rondo/v1"
)

// hub keeps the records of one leader's term in order. Each watcher reads them at its own pace,
// from a position in that order. So a slow watcher delays no other; it misses the records dropped
// meanwhile, which are step events first. The history is bounded in records and in bytes.
type hub struct {
	mu      sync.Mutex
	limit   int // of records
	room    int // of their bytes
	records []numbered
	bytes   int    // of the records
	last    uint64 // number of the newest record
	steps   uint64 // number of step events so far
	stride  uint64 // thin keeps the step events at its multiples
	seen    map[string]uint64
	over    bool
	changed chan struct{} // closed at the next change
}

// numbered is a record with its number in this hub, from 1.
type numbered struct {
	number uint64
	step   uint64 // number among the step events, from 1; 0: another event
	bytes  int
	record *rondov1.Record
}

func newHub(limit, room int) *hub {
	return &hub{limit: limit, room: room, stride: 2, seen: make(map[string]uint64),
		changed: make(chan struct{})}
}

// What Go's memory adds to the bytes on the wire of a record and of a metric.
const (
	recordBytes = 512
	metricBytes = 96
)

// sizeOf bounds a record's bytes in memory.
func sizeOf(r *rondov1.Record) int {
	metrics := len(r.Event.GetEval().GetMetrics()) + len(r.Event.GetDone().GetMetrics())
	return recordBytes + proto.Size(r) + metricBytes*metrics
}

// add appends a record, unless it is known or the history is over, and reports whether it did.
func (h *hub) add(r *rondov1.Record) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || r.Sequence <= h.seen[r.Source] {
		return false
	}
	h.seen[r.Source] = r.Sequence
	h.last++
	added := numbered{number: h.last, bytes: sizeOf(r), record: r}
	if isStep(r.Event) {
		h.steps++
		added.step = h.steps
	}
	h.records = append(h.records, added)
	h.bytes += added.bytes
	if len(h.records) > h.limit {
		h.thin()
	}
	if h.bytes > h.room {
		h.shrink()
	}
	h.touch()
	return true
}

// drop removes the records for which gone is true.
func (h *hub) drop(gone func(n numbered) bool) {
	h.records = slices.DeleteFunc(h.records, func(n numbered) bool {
		if !gone(n) {
			return false
		}
		h.bytes -= n.bytes
		return true
	})
}

// shrink drops the oldest records until an eighth of the room is free, step events last: each has
// few bytes, and together they are the run's curve.
func (h *hub) shrink() {
	for _, steps := range []bool{false, true} {
		h.drop(func(n numbered) bool {
			return h.bytes > h.room*7/8 && (steps || n.step == 0)
		})
	}
}

// thin makes room. Of the older step events, not in the newest quarter, it keeps every second,
// fourth, eighth and so on, so that the rest spans the whole run evenly. If that is not enough, it
// drops the oldest records of any kind.
func (h *hub) thin() {
	enough, newest := h.limit*7/8, h.last-uint64(h.limit/4)
	for {
		h.drop(func(n numbered) bool { return n.step%h.stride != 0 && n.number <= newest })
		excess := len(h.records) - enough
		switch {
		case excess <= 0:
			return
		case h.stride > h.steps:
			h.drop(func(numbered) bool {
				excess--
				return excess >= 0
			})
			return
		}
		h.stride *= 2
	}
}

// open registers a source, and returns the highest sequence known from it; false if there are too
// many sources.
func (h *hub) open(source string) (uint64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sequence, known := h.seen[source]
	if !known {
		if len(h.seen) >= SourceLimit {
			return 0, false
		}
		h.seen[source] = 0
	}
	return sequence, true
}

func (h *hub) knows(source string, sequence uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sequence <= h.seen[source]
}

// mark records a source's sequence as seen, without a record for watchers.
func (h *hub) mark(source string, sequence uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[source] = max(h.seen[source], sequence)
}

func (h *hub) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.over = true
		h.touch()
	}
}

// touch wakes the watchers. The caller holds the lock.
func (h *hub) touch() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// after returns the next records after a number, a channel that closes when there are more, and
// whether the history is over.
func (h *hub) after(number uint64) (batch []numbered, changed <-chan struct{}, over bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	from, _ := slices.BinarySearchFunc(h.records, number+1, func(n numbered, at uint64) int {
		return cmp.Compare(n.number, at)
	})
	to := min(from+watchBatch, len(h.records))
	return append(batch, h.records[from:to]...), h.changed, h.over
}
