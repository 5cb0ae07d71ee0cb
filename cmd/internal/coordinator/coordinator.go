// Package coordinator is a coordinator process: it wires the elected state machine of
// cluster/coordinator to etcd and to the gRPC service of cluster/rpc.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"

	"rondo/cluster"
	elected "rondo/cluster/coordinator"
	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/meet"
	rondov1 "rondo/proto/rondo/v1"
)

// drainTimeout is how long watchers and workers have to hear of the job's end.
const drainTimeout = 5 * time.Second

// Run campaigns for the leadership of a job, leads it when elected, and returns when it has
// ended: nil, or why it failed. When ctx ends it gives the leadership up; the job goes on.
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
	plan, err := lead(ctx, cfg, store, spec)
	switch {
	case err != nil:
		return err
	case plan.Usage:
		return app.Usage(errors.New(plan.Reason))
	case plan.Failed:
		return errors.New(plan.Reason)
	}
	return nil
}

// lead serves until the job has ended, and returns its last plan.
func lead(
	ctx context.Context, cfg meet.Config, store *etcdstore.Store, spec *rondov1.JobSpec,
) (plan cluster.Plan, err error) {
	listener, err := cfg.Open(ctx)
	if err != nil {
		return cluster.Plan{}, err
	}
	id := fmt.Sprintf("coordinator-%s-%d", meet.HostName(), os.Getpid())
	job := JobOf(spec)
	service, err := rpc.NewServer(id, job, store.Leader)
	if err != nil {
		return cluster.Plan{}, err
	}
	server := service.GRPC()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if stopped := <-served; !errors.Is(stopped, grpc.ErrServerStopped) {
			err = errors.Join(err, stopped)
		}
	}()
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	plan, err = elected.Run(ctx, elected.Config{
		Job:      job,
		Self:     cluster.Leader{ID: id, Address: listener.Addr().String()},
		LeaseTTL: spec.LeaseTtl.AsDuration(),
		Election: store,
		Events:   service.Events(),
		Audience: service,
		Farewell: func(ctx context.Context) { drain(ctx, service, log) },
		Log:      log,
	})
	return plan, err
}

// JobOf is what membership needs to know of the spec.
func JobOf(spec *rondov1.JobSpec) cluster.Job {
	return cluster.Job{Workers: int(spec.Workers), MinWorkers: int(spec.MinWorkers),
		MaxWorkers: int(spec.MaxWorkers), Lanes: int(spec.Batch),
		Spread: spec.RingOrder == "spread", JoinTimeout: spec.JoinTimeout.AsDuration(),
		PauseTimeout: spec.PauseTimeout.AsDuration(), Version: meet.Version()}
}

// drain waits until somebody has heard of the job's end, and everybody who listens.
func drain(ctx context.Context, service *rpc.Server, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := service.Drain(ctx); err != nil {
		log.Info("leaving after the job's end", "error", err)
	}
}
