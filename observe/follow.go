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

// Limits of what a follower waits for.
const (
	viewPause   = time.Second     // between looks at what etcd holds
	viewTimeout = 5 * time.Second // of one look
	watchPause  = time.Second     // before the leader is asked for its history anew
	// A leader is not reached while its client says so, and for as long after the last time as one
	// attempt of the client's takes at most.
	attempt = 12 * time.Second
)

// An audience is shown a job: what happens to it, and how it stands.
type audience interface {
	// Begin: what follows is of this run; what was shown of it is shown again, if anything.
	Begin(telemetry.Run)
	Show(telemetry.Event)
	Stand(telemetry.Standing)
	// Trouble: a peer is not reached; or is, if text is empty.
	Trouble(peer, text string)
}

// all passes everything on to each of several.
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

// watchFunc is rpc.Client.Watch with a patience that does not end.
type watchFunc func(ctx context.Context, fn func(*rondov1.Event) error) error

// follower follows a job, for one run after another.
type follower struct {
	store cluster.Viewer
	watch watchFunc
	show  audience
	away  *away
	log   *slog.Logger
	ready func()             // called after each answer of etcd
	seen  func(cluster.View) // called with each job that etcd holds

	job *followed // nil: nobody has submitted the job
}

// followed is the run whose events are watched.
type followed struct {
	run        telemetry.Run
	generation cluster.Generation // the newest of this run
	last       cluster.Generation // of the run before
	stop       func()             // ends the watch, and waits until it has
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

// leave stops to watch the job's run, if it has one.
func (f *follower) leave() {
	if f.job != nil {
		f.job.stop()
		f.job = nil
	}
}

// look takes what etcd holds of the job.
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

// take shows how the job stands, and sees to it that the events of its run are watched.
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
		f.show.Trouble(metrics.Leader, "") // nobody has to lead it any more
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

// errStale: the leader still tells of the run before.
var errStale = errors.New("the leader still tells of the run before")

// events shows what the leader tells, until the run has ended.
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
		f.log.Warn("watching the job anew", "error", err)
		if !sleep(ctx, watchPause) {
			return
		}
		f.show.Begin(job.run)
	}
}

// goesOn says whether a run has not ended by what etcd holds; it waits for an etcd that is away.
// What a leader told to its end was then the run before.
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

// generationOf is the ring that an event is of; 0: none.
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

// away is a log handler that notes why the leader is not reached: its client tries again for ever,
// and says so in its log alone.
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

// heard: the leader is reached.
func (a *away) heard() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = ""
}

// trouble is why the leader is not reached; empty: it is, as far as is known.
func (a *away) trouble() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.text == "" || a.now().Sub(a.last) > attempt {
		return ""
	}
	return a.text
}
