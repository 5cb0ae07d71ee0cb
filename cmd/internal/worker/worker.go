// Package worker is a worker process: it finds its job in etcd, registers, and trains its lanes in
// one ring after another, as the coordinator plans them, until the job's end.
//
// What it has trained outlives the rings: the engine (device, model, trainer) is opened once. A
// ring is a session; what happens between two of them is in life.go.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/job"
	"rondo/cmd/internal/meet"
	"rondo/internal/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Limits of the waits at a worker's end.
const (
	farewellTimeout = 5 * time.Second // to tell the coordinator why this worker ends
	leaveTimeout    = 3 * time.Second // to give the registration up
)

// fabric is the world around a worker: etcd, whoever leads, and the ring's network.
type fabric struct {
	registry cluster.Registry
	// report returns the reporter of a member.
	report func(id string) (reporter, error)
	// connect joins the ring of a seat, of members with these addresses.
	connect func(ctx context.Context, seat grpclink.Seat, addresses []string) (
		allreduce.Links, error)
	// claim returns true once in a job for each name.
	claim func(ctx context.Context, name string) (bool, error)
}

// reporter tells whoever leads what happens here; rpc.Reporter is one.
type reporter interface {
	Report(ctx context.Context, e *rondov1.Event) error
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// worker is one process of one job.
type worker struct {
	fabric
	log    *slog.Logger
	spec   *rondov1.JobSpec
	data   *job.Data
	name   string         // the process's own; a member's id begins with it
	member cluster.Member // as it is registered, or was last
	engine *engine        // nil before the first ring
	well   bool           // a ring with this worker has trained for a while

	voice atomic.Pointer[voice] // of the member
	told  bool                  // the coordinator was told why this worker fails
	heard bool                  // it knows, or has said so itself
}

// voice is a member's reporter.
type voice struct {
	reporter
	id string
}

func (w *worker) openVoice() error {
	r, err := w.report(w.member.ID)
	if err == nil {
		w.voice.Store(&voice{reporter: r, id: w.member.ID})
	}
	return err
}

// tellEvent queues an event; a coordinator that does not listen must not stop the training.
func (w *worker) tellEvent(ctx context.Context, e *rondov1.Event) {
	if err := w.voice.Load().Report(ctx, e); err != nil {
		w.log.Warn("an event is lost", "error", err)
	}
}

func (w *worker) notice(ctx context.Context, text string) {
	w.tellEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Id: w.voice.Load().id, Text: text}}})
}

// jobNotice is a notice of the job, not of the worker that happens to tell it.
func (w *worker) jobNotice(ctx context.Context, text string) {
	w.tellEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Text: text}}})
}

// flush waits for the coordinator to have what it was told, but not for long.
func (w *worker) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout)
	defer cancel()
	if err := w.voice.Load().Flush(ctx); err != nil {
		w.log.Info("the coordinator does not answer", "error", err)
	}
}

// heardError is a failure that the coordinator knows.
type heardError struct{ error }

func (e *heardError) Unwrap() error { return e.error }

// Run works for the job until it has ended, and returns nil, or why it failed. When ctx ends the
// worker leaves at a step's end, and the others go on without it.
func Run(ctx context.Context, cfg meet.Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return app.Usage(err)
	}
	store, err := cfg.Store(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	spec, err := cfg.Spec(ctx, store)
	if err != nil {
		return err
	}
	w := &worker{log: cfg.Log, spec: spec,
		name: fmt.Sprintf("%s-%d-%d", meet.HostName(), os.Getpid(), time.Now().UnixNano()%1e6)}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	client, err := cfg.Client(store, 0)
	if err != nil {
		return err
	}
	w.registry, w.claim = store, store.Claim
	w.report = func(id string) (reporter, error) { return client.NewReporter(id) }
	w.member = cluster.Member{ID: w.name, Host: meet.HostName(), PID: os.Getpid(),
		Version: meet.Version()}
	if err := w.openVoice(); err != nil {
		return err
	}
	err = w.serve(ctx, cfg)
	w.farewell(ctx, err)
	if w.heard {
		return &heardError{err}
	}
	return err
}

// serve opens what the job needs here, and works.
func (w *worker) serve(ctx context.Context, cfg meet.Config) (err error) {
	if w.data, err = job.OpenData(ctx, w.spec); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.data.Close()) }()
	listener, err := cfg.Open(ctx)
	if err != nil {
		return err
	}
	// Its share of the cores depends on who else is on this host, which the plan says.
	device, err := job.OpenDevice(w.spec, runtime.GOMAXPROCS(0))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	w.member.Address, w.member.Device = listener.Addr().String(), device.Name()
	w.member.Identity = jobspec.Identity(w.spec, w.data.Corpus.Fingerprint())
	device.Close()
	links, err := grpclink.NewServer(w.spec.Job, grpclink.ServerConfig{
		PlanTimeout: w.spec.StepTimeout.AsDuration()})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	w.connect = func(ctx context.Context, seat grpclink.Seat, addresses []string) (
		allreduce.Links, error) {
		return grpclink.Connect(ctx, links, seat, addresses,
			grpclink.DialConfig{Timeout: w.spec.StepTimeout.AsDuration()})
	}
	server := grpc.NewServer(grpclink.ServerOptions(nil)...)
	links.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if stopped := <-served; !errors.Is(stopped, grpc.ErrServerStopped) {
			err = errors.Join(err, stopped)
		}
	}()
	return w.live(ctx)
}

// tell tells the coordinator, once, why this worker cannot go on, unless it was the coordinator
// who said so. It returns when the coordinator has it: only then may others see this worker go.
func (w *worker) tell(ctx context.Context, err error) {
	var ended *endedError
	if errors.As(err, &ended) {
		w.heard = true
	}
	if err == nil || w.told || w.heard {
		return
	}
	w.told = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	reportErr := w.voice.Load().Report(ctx, w.failure(err))
	if reportErr == nil {
		reportErr = w.voice.Load().Flush(ctx)
	}
	w.heard = reportErr == nil
	if reportErr != nil {
		w.log.Warn("telling the coordinator of a failure", "error", reportErr)
	}
}

// farewell is a member's last word.
func (w *worker) farewell(ctx context.Context, err error) {
	w.tell(ctx, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if w.told && !w.heard {
		cancel() // nobody answers; that was waited for already
	}
	if err := w.voice.Load().Close(ctx); err != nil {
		w.log.Info("leaving without the coordinator's answer", "error", err)
	}
}

// failure says whether the error is this worker's alone, or one that every worker would meet.
func (w *worker) failure(err error) *rondov1.Event {
	f := &rondov1.FailureEvent{Id: w.member.ID, Text: err.Error()}
	var wrong *app.UsageError
	var spec *jobspec.UsageError
	var ring *ringError
	f.Usage = errors.As(err, &wrong) || errors.As(err, &spec)
	if errors.As(err, &ring) {
		f.Generation, f.Fatal = uint64(ring.generation), ring.fatal
	}
	return &rondov1.Event{Kind: &rondov1.Event_Failure{Failure: f}}
}
