// Package worker is a worker process: it finds its job in etcd, registers, and when the
// coordinator has planned a ring with it, trains its lanes until the job's end.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"

	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/job"
	"rondo/cmd/internal/meet"
	"rondo/internal/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Limits of the waits at a worker's end.
const (
	farewellTimeout = 5 * time.Second  // to tell the coordinator why this worker ends
	endTimeout      = 60 * time.Second // without a leader, once this worker is done
	leaderLooks     = 12               // for a leader in that time
	leaveTimeout    = 3 * time.Second  // to give the registration up
)

// worker is one process of one job.
type worker struct {
	log      *slog.Logger
	id       string
	spec     *rondov1.JobSpec
	store    *etcdstore.Store
	reporter *rpc.Reporter
	links    *grpclink.Server
	member   cluster.Member

	registration cluster.Registration // nil until it is registered
	told         bool                 // the coordinator was told why this worker fails
	heard        bool                 // it knows, or has said so itself
}

// heardError is a failure that the coordinator knows.
type heardError struct{ error }

func (e *heardError) Unwrap() error { return e.error }

// Run works for the job until it has ended, and returns nil, or why it failed. When ctx ends the
// whole job is asked to stop at a step's end, with a checkpoint, and Run goes on until then.
func Run(ctx context.Context, cfg meet.Config) error {
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
	w := &worker{log: cfg.Log, spec: spec, store: store,
		id: fmt.Sprintf("%s-%d-%d", meet.HostName(), os.Getpid(), time.Now().UnixNano()%1e6)}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	client, err := meet.Client(store, w.log)
	if err != nil {
		return err
	}
	if w.reporter, err = client.NewReporter(w.id); err != nil {
		return err
	}
	err = w.serve(ctx, cfg)
	w.farewell(ctx, err)
	w.leave(ctx) // last, so that the coordinator hears the reason before it misses us
	if w.heard {
		return &heardError{err}
	}
	return err
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
	reportErr := w.reporter.Report(ctx, failure(w.id, err))
	if reportErr == nil {
		reportErr = w.reporter.Flush(ctx)
	}
	w.heard = reportErr == nil
	if reportErr != nil {
		w.log.Warn("telling the coordinator of a failure", "error", reportErr)
	}
}

// farewell is a worker's last word.
func (w *worker) farewell(ctx context.Context, err error) {
	w.tell(ctx, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if w.told && !w.heard {
		cancel() // nobody answers; that was waited for already
	}
	if err := w.reporter.Close(ctx); err != nil {
		w.log.Info("leaving without the coordinator's answer", "error", err)
	}
}

func failure(id string, err error) *rondov1.Event {
	f := &rondov1.FailureEvent{Id: id, Text: err.Error()}
	var wrong *app.UsageError
	var spec *jobspec.UsageError
	f.Usage = errors.As(err, &wrong) || errors.As(err, &spec)
	var lost *lostPeerError
	if errors.As(err, &lost) {
		return &rondov1.Event{Kind: &rondov1.Event_Suspect{Suspect: &rondov1.SuspectEvent{
			Id: id, Rank: int64(lost.rank), Text: err.Error()}}}
	}
	return &rondov1.Event{Kind: &rondov1.Event_Failure{Failure: f}}
}

// serve opens what the job needs here, registers, and trains.
func (w *worker) serve(ctx context.Context, cfg meet.Config) (err error) {
	data, err := job.OpenData(ctx, w.spec)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	listener, err := cfg.Open(ctx)
	if err != nil {
		return err
	}
	device, err := job.OpenDevice(w.spec, 1)
	if err != nil {
		return err
	}
	name := device.Name()
	device.Close() // its threads depend on who else is on this host, which the plan says
	w.member = cluster.Member{ID: w.id, Address: listener.Addr().String(),
		Host: meet.HostName(), PID: os.Getpid(), Device: name}
	if w.links, err = grpclink.NewServer(w.spec.Job, grpclink.ServerConfig{}); err != nil {
		return err
	}
	server := grpc.NewServer(grpclink.ServerOptions(nil)...)
	w.links.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if stopped := <-served; !errors.Is(stopped, grpc.ErrServerStopped) {
			err = errors.Join(err, stopped)
		}
	}()
	w.registration, err = w.store.Register(ctx, w.member, w.spec.LeaseTtl.AsDuration())
	if err != nil {
		return err
	}
	return w.follow(ctx, data)
}

// leave gives the registration up, if there is one.
func (w *worker) leave(ctx context.Context) {
	if w.registration == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := w.registration.Leave(ctx); err != nil {
		w.log.Info("leaving; the lease ends by itself", "error", err)
	}
}
