package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/coordinator"
	"rondo/internal/events"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/telemetry/metrics"
)

// Limits of a follower's waits.
const (
	viewPause   = time.Second     // between two looks at etcd
	viewTimeout = 5 * time.Second // of one look
	watchPause  = time.Second     // before the leader is watched again
	// The leader counts as away for this time after its client's last warning: the longest that one
	// attempt of the client takes.
	attempt = 12 * time.Second
)

// An audience receives a job's events and its state.
type audience interface {
	// Begin starts a run: later events belong to it. After a second Begin of the same run its
	// events come again.
	Begin(telemetry.Run)
	Show(telemetry.Event)
	Stand(telemetry.Standing)
	// Trouble reports that a peer is away; with an empty text, that it answers again.
	Trouble(peer, text string)
}

// all is several audiences as one.
type all []audience

func (a all) Begin(run telemetry.Run) {
	for _, each := range a {
		each.Begin(run)
	}
}

func (a all) Show(e telemetry.Event) {
	for _, each := range a {
		each.Show(e)
	}
}

func (a all) Stand(s telemetry.Standing) {
	for _, each := range a {
		each.Stand(s)
	}
}

func (a all) Trouble(peer, text string) {
	for _, each := range a {
		each.Trouble(peer, text)
	}
}

// watchFunc is rpc.Client.Watch of a client that never gives up.
type watchFunc func(ctx context.Context, fn func(*rondov1.Event) error) error

// follower follows a job from run to run.
type follower struct {
	store cluster.Viewer
	watch watchFunc
	show  audience
	away  *away
	log   *slog.Logger
	ready func()             // called after each answer of etcd
	seen  func(cluster.View) // called with each look at the job

	job *followed // nil: nobody has submitted the job
}

// followed is the run whose events are watched.
type followed struct {
	run        telemetry.Run
	generation cluster.Generation // newest generation of this run
	last       cluster.Generation // last generation of the earlier run
	stop       func()             // ends the watch and waits for its end
}

// run follows the job until ctx ends.
func (f *follower) run(ctx context.Context) error {
	defer f.leave()
	due := time.NewTicker(viewPause)
	defer due.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
		}
	}
}

// leave ends the watch of the job's run, if there is one.
func (f *follower) leave() {
	if f.job != nil {
		f.job.stop()
		f.job = nil
	}
}

// look reads the job from etcd.
func (f *follower) look(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	view, err := f.store.View(limited)
	spec := &rondov1.JobSpec{}
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, cluster.ErrNoSpec):
		f.reached()
		f.leave()
		f.show.Stand(telemetry.Standing{Phase: telemetry.PhaseWaiting, Reason: err.Error()})
		f.show.Trouble(metrics.Leader, "")
		return
	case err == nil:
		err = proto.Unmarshal(view.Spec, spec)
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer for %v", viewTimeout)
		}
		f.show.Trouble(metrics.Etcd, err.Error())
		return
	}
	f.reached()
	f.take(ctx, spec, view)
}

func (f *follower) reached() {
	f.show.Trouble(metrics.Etcd, "")
	f.ready()
}

// take shows the job's state, and watches the events of a new run.
func (f *follower) take(ctx context.Context, spec *rondov1.JobSpec, view cluster.View) {
	run := runOf(spec)
	if f.job == nil || run != f.job.run {
		next := &followed{run: run}
		if f.job != nil {
			next.last = f.job.generation
		}
		f.leave()
		f.show.Begin(run)
		next.stop = f.start(ctx, *next)
		f.job = next
	}
	f.job.generation = view.Plan.Generation
	f.show.Stand(StandingOf(coordinator.JobOf(spec), view))
	f.seen(view)
	switch trouble := f.away.trouble(); {
	case view.Plan.Phase == cluster.Ended:
		f.show.Trouble(metrics.Leader, "") // an ended job needs no leader
	case view.Leader.ID == "":
		f.show.Trouble(metrics.Leader, cluster.ErrNoLeader.Error())
	default:
		f.show.Trouble(metrics.Leader, trouble)
	}
}

// start watches a run's events until they end, or stop is called.
func (f *follower) start(ctx context.Context, job followed) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.events(ctx, job)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// errStale: the leader still reports the earlier run.
var errStale = errors.New("the leader still reports the earlier run")

// events shows the leader's events until the run has ended.
func (f *follower) events(ctx context.Context, job followed) {
	for {
		err := f.watch(ctx, func(e *rondov1.Event) error {
			if g := generationOf(e); g > 0 && g <= uint64(job.last) {
				return errStale
			}
			f.away.heard()
			shown, err := events.Telemetry(e)
			if err != nil {
				f.log.Warn("an event is not shown", "error", err)
				return nil
			}
			f.show.Show(shown)
			return nil
		})
		if err == nil && !f.goesOn(ctx, job) || ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errStale
		}
		f.log.Warn("watching the job again", "error", err)
		if !sleep(ctx, watchPause) {
			return
		}
		f.show.Begin(job.run)
	}
}

// goesOn reports whether the run has not ended by etcd's data. Then a watch that ended was of the
// earlier run. It waits while etcd is away.
func (f *follower) goesOn(ctx context.Context, job followed) bool {
	for {
		limited, cancel := context.WithTimeout(ctx, viewTimeout)
		view, err := f.store.View(limited)
		cancel()
		spec := &rondov1.JobSpec{}
		if err == nil {
			err = proto.Unmarshal(view.Spec, spec)
		}
		switch {
		case err == nil:
			return spec.Submitted == job.run.Number && view.Plan.Phase != cluster.Ended
		case errors.Is(err, cluster.ErrNoSpec):
			return false
		}
		if !sleep(ctx, watchPause) {
			return false
		}
	}
}

// generationOf returns the generation of an event; 0: none.
func generationOf(e *rondov1.Event) uint64 {
	switch k := e.GetKind().(type) {
	case *rondov1.Event_Worker:
		return k.Worker.Generation
	case *rondov1.Event_Generation:
		return k.Generation.Generation
	case *rondov1.Event_Step:
		return k.Step.Generation
	case *rondov1.Event_Done:
		return k.Done.Generation
	}
	return 0
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// away is a log handler that keeps the reason why the leader does not answer. The leader's client
// retries forever, and reports the reason in its log only.
type away struct {
	slog.Handler
	now func() time.Time

	mu   sync.Mutex
	text string
	last time.Time
}

// Enabled implements slog.Handler.
func (a *away) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || a.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (a *away) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		text := r.Message
		r.Attrs(func(attribute slog.Attr) bool {
			if attribute.Key == "error" {
				text = fmt.Sprint(attribute.Value.Any())
			}
			return true
		})
		a.mu.Lock()
		a.text, a.last = text, a.now()
		a.mu.Unlock()
	}
	if !a.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return a.Handler.Handle(ctx, r)
}

// heard records that the leader has answered.
func (a *away) heard() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = ""
}

// trouble returns why the leader does not answer; empty: it does, or nothing is known.
func (a *away) trouble() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.text == "" || a.now().Sub(a.last) > attempt {
		return ""
	}
	return a.text
}
