package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rondo/audit"
)

const (
	// watchPause is the time between two looks at the audit logs. After mostLooks in vain a wait is
	// given up: while this process stands still, with all others of the job, no look is counted.
	watchPause = 5 * time.Millisecond
	mostLooks  = eventTimeout / watchPause
	// standstill is the time between two looks from which on this process has stood still.
	standstill = time.Second
	// watchedSteps is how many steps' commits a watch remembers.
	watchedSteps = 1 << 12
)

// watch follows a job by the audit logs of its workers, which depend on no leader.
type watch struct {
	t      *testing.T
	logs   *audit.Tail
	worlds map[uint64]int        // by generation
	first  map[int64]audit.Entry // first commit of each step that was read
	newest uint64                // generation
	taken  int                   // steps of the newest ring
	last   int64                 // highest step committed
	again  map[int64]bool        // steps that two rings have committed, since begin
	old    uint64                // the newest generation at begin
	before int64                 // highest step committed by generations up to it
	beyond bool                  // a later one has committed a later step
	stood  bool                  // this process has stood still since begin
}

func newWatch(t *testing.T, dir string) *watch {
	w := &watch{t: t, logs: audit.NewTail(dir), worlds: map[uint64]int{},
		first: map[int64]audit.Entry{}}
	t.Cleanup(w.logs.Close)
	return w
}

// begin starts a round.
func (w *watch) begin() {
	w.t.Helper()
	w.look()
	w.again, w.old, w.before, w.beyond = map[int64]bool{}, w.newest, w.last, false
	w.stood = false
}

// look reads what is new.
func (w *watch) look() {
	w.t.Helper()
	lines, err := w.logs.Next()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range lines {
		switch e.Kind {
		case audit.RingLine:
			w.worlds[e.Generation] = e.World
			delete(w.worlds, e.Generation-watchedSteps)
			if e.Generation > w.newest {
				w.newest, w.taken = e.Generation, 0
			}
		case audit.CommitLine:
			w.commit(e)
		case audit.ReadLine:
		}
	}
	for _, e := range lines { // after all commits of the rings before
		if e.Kind == audit.CommitLine && e.Generation > w.old && e.Step > w.before {
			w.beyond = true
		}
	}
}

// commit holds all commits of a step to the same parameters, in whatever ring it was done.
func (w *watch) commit(e audit.Entry) {
	w.t.Helper()
	known, done := w.first[e.Step]
	switch {
	case !done:
		w.first[e.Step] = e
		delete(w.first, e.Step-watchedSteps)
		w.last = max(w.last, e.Step)
		if e.Generation == w.newest {
			w.taken++
		}
	case known.Digest != e.Digest:
		w.t.Fatalf("step %d: %s in generation %d and %s in generation %d have other parameters",
			e.Step, known.Log, known.Generation, e.Log, e.Generation)
	case known.Generation != e.Generation:
		w.again[e.Step] = true
	}
	if e.Generation <= w.old {
		w.before = max(w.before, e.Step)
	}
}

// until looks until a condition holds.
func (w *watch) until(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(watchPause)
	defer tick.Stop()
	looked := time.Now()
	for range mostLooks {
		if w.look(); holds() {
			return
		}
		<-tick.C
		w.stood = w.stood || time.Since(looked) > standstill
		looked = time.Now()
	}
	w.t.Fatalf("%s: not within %v; generation %d of %d workers is at step %d", what,
		eventTimeout, w.newest, w.worlds[w.newest], w.last)
}

// untilBeyond waits for a step that no ring before begin has committed.
func (w *watch) untilBeyond(what string) {
	w.t.Helper()
	w.until(what+": a new step", func() bool { return w.beyond })
}

// untilMore waits for more steps.
func (w *watch) untilMore(what string, steps int) {
	w.t.Helper()
	from := w.last
	w.until(fmt.Sprintf("%s: %d more steps", what, steps), func() bool {
		return w.last >= from+int64(steps)
	})
}

// untilWorld waits for a step of a ring with this many workers.
func (w *watch) untilWorld(what string, world int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s: a ring of %d", what, world), func() bool {
		return w.worlds[w.newest] == world && w.taken > 0
	})
}

// drop ends the reading of a process's log, which has ended.
func (w *watch) drop(pid int) {
	w.t.Helper()
	w.look()
	w.logs.Drop(func(log string) bool {
		return strings.Contains(log, fmt.Sprintf("-%d-", pid))
	})
}

// end returns the last step, after the job's end.
func (w *watch) end() int64 {
	w.t.Helper()
	w.look()
	return w.last
}
