package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// heardBy is an audience that records its events in a few letters.
type heardBy struct {
	mu             sync.Mutex
	words          []string
	phase, trouble string
}

func (h *heardBy) note(format string, arguments ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.words = append(h.words, fmt.Sprintf(format, arguments...))
}

func (h *heardBy) Begin(run telemetry.Run) { h.note("run %d", run.Number) }

func (h *heardBy) Stand(s telemetry.Standing) {
	if s.Phase != h.phase {
		h.note("%s", s.Phase)
	}
	h.phase = s.Phase
}

func (h *heardBy) Show(e telemetry.Event) {
	if s, ok := e.(telemetry.Step); ok {
		h.note("step %d", s.Step)
	}
}

func (h *heardBy) Trouble(peer, text string) {
	if text != h.trouble {
		h.note("%s: %q", peer, text)
	}
	h.trouble = text
}

func (h *heardBy) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.words)
}

// held is a store that holds one view, or an error.
type held struct {
	mu   sync.Mutex
	view cluster.View
	err  error
}

func (s *held) View(context.Context) (cluster.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view, s.err
}

func (s *held) put(t *testing.T, run int64, plan cluster.Plan, err error) {
	spec := jobspec.Textbook()
	spec.Submitted = run
	text, bad := proto.Marshal(spec)
	if bad != nil {
		t.Fatal(bad)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.view = cluster.View{Spec: text, Plan: plan, Leader: cluster.Leader{ID: "c"}}
}

// inBubble runs a follower of a store and a watch by simulated time.
func inBubble(t *testing.T, watch watchFunc, test func(*testing.T, *held, *heardBy)) {
	synctest.Test(t, func(t *testing.T) {
		store, heard := &held{err: cluster.ErrNoSpec}, &heardBy{}
		asked := func(ctx context.Context, fn func(*rondov1.Event) error) error {
			time.Sleep(time.Millisecond) // as a leader takes to answer
			return watch(ctx, fn)
		}
		f := &follower{store: store, watch: asked, show: heard, log: slog.New(slog.DiscardHandler),
			away:  &away{Handler: slog.DiscardHandler, now: time.Now},
			ready: func() {}, seen: func(cluster.View) {}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.run(ctx) }()
		synctest.Wait() // nobody has submitted the job yet
		test(t, store, heard)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the follower ended with %v", err)
		}
	})
}

func want(t *testing.T, heard *heardBy, words ...string) {
	t.Helper()
	if got := heard.all(); !slices.Equal(got, words) {
		t.Errorf("shown %q\nwant %q", got, words)
	}
}

// pass lets simulated time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func running(g cluster.Generation) cluster.Plan {
	return cluster.Plan{Generation: g, Phase: cluster.Running}
}

func ended(g cluster.Generation) cluster.Plan {
	return cluster.Plan{Generation: g, Phase: cluster.Ended}
}

// A leader that still reports the earlier run is asked again, until it reports this one.
func TestFollowerDoesNotMixRuns(t *testing.T) {
	calls := 0
	watch := func(ctx context.Context, fn func(*rondov1.Event) error) error {
		calls++
		generation := uint64(1)
		if calls > 3 { // the first is of run 1, the next two of a leader that is late
			generation = 3
		}
		for n := range int64(2) {
			if err := fn(step(generation, int64(calls*10)+n)); err != nil {
				return err
			}
		}
		return nil
	}
	inBubble(t, watch, func(t *testing.T, store *held, heard *heardBy) {
		pass(2 * time.Second)
		store.put(t, 1, ended(1), nil)
		pass(2 * time.Second)
		store.put(t, 2, ended(3), nil)
		pass(20 * time.Second)
		want(t, heard, "waiting", "run 1", "ended", "step 10", "step 11", "run 2", "run 2",
			"run 2", "step 40", "step 41")
	})
	if calls != 4 {
		t.Errorf("the leader was asked %d times", calls)
	}
}

// A watch that ends before the run has is started anew, and events that were shown are shown again.
func TestFollowerWatchesToTheEnd(t *testing.T) {
	var watched chan struct{}
	watch := func(ctx context.Context, fn func(*rondov1.Event) error) error {
		if err := fn(step(1, 1)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-watched:
			return nil
		}
	}
	inBubble(t, watch, func(t *testing.T, store *held, heard *heardBy) {
		watched = make(chan struct{}) // of the bubble, and before there is a job to watch
		store.put(t, 1, running(1), nil)
		pass(3 * time.Second)
		watched <- struct{}{} // too early
		pass(3 * time.Second)
		store.put(t, 1, ended(1), nil)
		watched <- struct{}{}
		pass(3 * time.Second)
		want(t, heard, "waiting", "run 1", "running", "step 1", "run 1", "step 1", "ended")
	})
}

// Without etcd the watch goes on; a job that is removed is waited for.
func TestFollowerOutlastsItsStore(t *testing.T) {
	var fn func(*rondov1.Event) error
	watch := func(ctx context.Context, tell func(*rondov1.Event) error) error {
		fn = tell
		<-ctx.Done()
		return ctx.Err()
	}
	inBubble(t, watch, func(t *testing.T, store *held, heard *heardBy) {
		store.put(t, 1, running(1), nil)
		pass(2 * time.Second)
		store.put(t, 1, running(1), errors.New("away"))
		pass(2 * time.Second)
		if err := fn(step(1, 7)); err != nil {
			t.Error(err)
		}
		store.put(t, 1, running(2), nil)
		pass(2 * time.Second)
		store.put(t, 1, running(2), cluster.ErrNoSpec)
		pass(2 * time.Second)
		store.put(t, 1, running(3), nil)
		pass(2 * time.Second)
		want(t, heard, "waiting", "run 1", "running", `etcd: "away"`, "step 7", `etcd: ""`,
			"waiting", "run 1", "running")
	})
}

// A client's log about a leader that it cannot reach is shown as the trouble, as long as it may be
// true.
func TestAway(t *testing.T) {
	at := time.Unix(1000, 0)
	a := &away{Handler: slog.DiscardHandler, now: func() time.Time { return at }}
	log := slog.New(a)
	log.Info("nothing")
	if got := a.trouble(); got != "" {
		t.Errorf("trouble %q from nothing", got)
	}
	log.Warn("trying again", "error", errors.New("refused"))
	at = at.Add(attempt)
	if got := a.trouble(); got != "refused" {
		t.Errorf("trouble %q, want the error", got)
	}
	at = at.Add(1)
	if got := a.trouble(); got != "" {
		t.Errorf("trouble %q after the client was silent for an attempt", got)
	}
	log.Warn("trying again")
	a.heard()
	if got := a.trouble(); got != "" {
		t.Errorf("trouble %q although the leader was heard", got)
	}
}
