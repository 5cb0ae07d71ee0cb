// Package coordinator is a coordinator process. It connects the elected state machine of
// cluster/coordinator with etcd and with the gRPC service of cluster/rpc, for one run of a job or,
// with Config.Stay, for one run after another. It can submit the job itself. It decides nothing
// about membership: cluster does. It may import cluster and its adapters, job/jobspec, proto and
// telemetry.
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
	"rondo/cluster/meet"
	"rondo/cluster/rpc"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/connlimit"
	"rondo/internal/events"
	"rondo/internal/health"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

const (
	// drainTimeout bounds the wait for watchers and workers to receive the job's end.
	drainTimeout = 5 * time.Second
	// flushTimeout bounds the wait until it is written to their connections.
	flushTimeout = time.Second
	// stayPatience bounds the wait for etcd with Config.Stay: etcd may start at the same time.
	stayPatience = 5 * time.Minute
)

// Config says where the job is and how this process leads it.
type Config struct {
	meet.Config
	// Spec is the YAML file of the job, which this process submits as run Config.Run. Empty:
	// another process submits it.
	Spec string
	// Stay makes the process outlast the job and lead its next run.
	Stay bool
	// Show logs the job's events while this process leads; nil: they are not shown. Events of an
	// earlier leader are remembered, but not logged again.
	Show *telemetry.LogView
}

// Run campaigns for the leadership of a job, leads it if elected, and returns its last plan when it
// has ended. The job's failure is the error. When ctx ends, Run resigns, the job goes on, and the
// error is an app.LeftError.
func Run(ctx context.Context, cfg Config) (cluster.Plan, error) {
	cfg.Role = certs.Coordinator
	if err := cfg.Validate(); err != nil {
		return cluster.Plan{}, app.Usage(err)
	}
	if err := cfg.CheckListeners(ctx); err != nil {
		return cluster.Plan{}, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	own, err := cfg.ownSpec()
	if err != nil {
		return cluster.Plan{}, err
	}
	p := &process{cfg: cfg, log: cfg.Log, own: own, last: -1}
	plan, err := p.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		if p.idle {
			return plan, nil // the job had ended before
		}
		err = &app.LeftError{Text: "asked to go before the job's end; another coordinator can " +
			"lead it"}
	}
	return plan, err
}

type process struct {
	cfg              Config
	log              *slog.Logger
	own              *rondov1.JobSpec // the run that it submits; nil: none
	store            *etcdstore.Store
	last             int64       // number of the last run that has ended; -1: none
	idle             bool        // it waits for the next run
	started          health.Flag // etcd has answered
	ready            health.Flag
	pulse            pulse
	differenceLogged bool // logDifference has logged
}

// run leads one run or, with Config.Stay, one run after another.
func (p *process) run(ctx context.Context) (plan cluster.Plan, err error) {
	stop, err := health.Serve(p.cfg.Health, health.Checks{Started: p.started.Is, Ready: p.ready.Is,
		Alive: func() bool { return p.pulse.beats(time.Now()) }})
	if err != nil {
		return cluster.Plan{}, err
	}
	defer stop()
	where := p.cfg.Config
	if p.cfg.Stay {
		where.Patience = stayPatience
	}
	if p.store, err = where.Store(ctx); err != nil {
		return cluster.Plan{}, err
	}
	defer func() { _ = p.store.Close() }()
	p.started.Set(true)
	for {
		p.idle = p.last >= 0
		spec, err := p.next(ctx)
		if err != nil {
			return plan, err
		}
		p.idle = false
		ended, err := p.leadRun(ctx, spec)
		switch {
		case errors.Is(err, errSuperseded) && p.cfg.Stay:
			p.log.Warn("the run was over before this coordinator led it", "run", spec.Submitted)
			continue
		case errors.Is(err, cluster.ErrNoSpec) && p.cfg.Stay:
			// The job is being deleted: this coordinator must not submit it anew.
			p.log.Info("etcd has forgotten the run", "run", spec.Submitted)
			p.last = max(spec.Submitted, 0)
			continue
		case err != nil && ended.Phase != cluster.Ended:
			return plan, err
		}
		if plan, p.last = ended, max(spec.Submitted, 0); !p.cfg.Stay {
			return plan, err
		}
		p.log.Info("the run has ended; waiting for the next one", "run", spec.Submitted,
			"failed", plan.Failed, "reason", plan.Reason)
	}
}

// leadRun leads one run until it has ended. The error is why the run failed, or why this process
// cannot lead it any more. Only in the first case has the returned plan ended.
func (p *process) leadRun(ctx context.Context, spec *rondov1.JobSpec) (cluster.Plan, error) {
	if p.own != nil && spec.Submitted < p.own.Submitted {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go p.logWaiting(ctx, spec.Submitted)
	}
	plan, err := p.lead(ctx, spec)
	switch {
	case err != nil:
		return cluster.Plan{}, err
	case plan.Usage:
		return plan, app.Usage(errors.New(plan.Reason))
	case plan.Failed:
		return plan, &app.JobError{Err: errors.New(plan.Reason)}
	}
	return plan, nil
}

// lead serves until the run has ended, and returns its last plan.
func (p *process) lead(ctx context.Context, spec *rondov1.JobSpec) (_ cluster.Plan, err error) {
	identity, err := p.cfg.Identity()
	if err != nil {
		return cluster.Plan{}, err
	}
	var options []grpc.ServerOption
	if identity != nil {
		options = append(identity.Authorize(callers()),
			grpc.Creds(identity.ServerCredentials(p.log, certs.Roles()...)))
	}
	listener, err := p.cfg.Open(ctx)
	if err != nil {
		return cluster.Plan{}, err
	}
	// A container's process has the same number after each restart, but its events must count as
	// another source's. So the id includes the time.
	id := fmt.Sprintf("coordinator-%s-%d-%d", meet.HostName(), os.Getpid(),
		time.Now().UnixNano()%1e9)
	job := JobOf(spec)
	if p.own != nil && p.own.Submitted > spec.Submitted {
		job.Next = p.own.Submitted
	}
	service, err := rpc.NewServer(id, job, p.store.Leader)
	if err != nil {
		return cluster.Plan{}, errors.Join(err, listener.Close())
	}
	bounded := connlimit.New(listener, service.Connections)
	service.Heard, service.Keep = p.heard, bounded.Keep
	server := service.GRPC(options...)
	served := make(chan error, 1)
	go func() { served <- server.Serve(bounded) }()
	defer func() {
		server.Stop()
		if stopped := <-served; !errors.Is(stopped, grpc.ErrServerStopped) {
			err = errors.Join(err, stopped)
		}
	}()
	p.ready.Set(true) // permanently: a process that waits between two runs works as intended
	p.pulse.follow(spec.LeaseTtl.AsDuration())
	election := &election{Store: p.store, spec: spec, losses: p.store.Losses(),
		seen: p.store.Losses()}
	return elected.Run(ctx, elected.Config{
		Job:      job,
		Self:     cluster.Leader{ID: id, Address: listener.Addr().String()},
		LeaseTTL: spec.LeaseTtl.AsDuration(),
		Election: election,
		Events:   service.Events(),
		Audience: service,
		Farewell: func(ctx context.Context) {
			drain(ctx, service, p.log)
			flush(server)
		},
		Turned:     p.pulse.turned,
		LostWrites: election.lostWrites,
		Log:        p.log,
	})
}

// callers says which roles may call which methods of the service.
func callers() map[string][]certs.Role {
	return map[string][]certs.Role{
		rondov1.Coordinator_Report_FullMethodName: {certs.Worker},
		rondov1.Coordinator_Watch_FullMethodName: {certs.Worker, certs.Observer, certs.User,
			certs.Coordinator},
		rondov1.Coordinator_Stop_FullMethodName:  {certs.User},
		rondov1.Coordinator_Scale_FullMethodName: {certs.User},
	}
}

// heard shows an event that this process receives while it leads. retold marks an earlier leader's.
func (p *process) heard(e *rondov1.Event, retold bool) {
	if p.cfg.Show == nil {
		return
	}
	shown, err := events.Telemetry(e)
	switch {
	case err != nil:
	case retold:
		p.cfg.Show.Remember(shown)
	default:
		err = p.cfg.Show.Show(shown)
	}
	if err != nil {
		p.log.Warn("an event is not shown", "error", err)
	}
}

// JobOf returns what cluster needs to know of the spec.
func JobOf(spec *rondov1.JobSpec) cluster.Job {
	return cluster.Job{Workers: int(spec.Workers), MinWorkers: int(spec.MinWorkers),
		MaxWorkers: int(spec.MaxWorkers), Lanes: int(spec.Batch),
		Groups: int(jobspec.LaneGroups(spec)),
		Spread: spec.RingOrder == "spread", JoinTimeout: spec.JoinTimeout.AsDuration(),
		PauseTimeout: spec.PauseTimeout.AsDuration(), Version: meet.Version(),
		Run: spec.Submitted}
}

// flush ends a server whose calls have ended. Stop alone would close the connections before the
// last events are written to them.
func flush(server *grpc.Server) {
	late := time.AfterFunc(flushTimeout, server.Stop)
	defer late.Stop()
	server.GracefulStop()
}

// drain waits until at least one watcher has the job's end, and all streams have ended.
func drain(ctx context.Context, service *rpc.Server, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := service.Drain(ctx); err != nil {
		log.Debug("leaving after the job's end", "error", err)
	}
}
