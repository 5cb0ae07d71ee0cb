// Package coordinator is a coordinator process: it wires the elected state machine of
// cluster/coordinator to etcd and to the gRPC service of cluster/rpc, for one run of a job or,
// where it stays, for one after the other. It may submit the job itself.
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
	"rondo/internal/events"
	"rondo/internal/health"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

const (
	// drainTimeout is how long watchers and workers have to hear of the job's end.
	drainTimeout = 5 * time.Second
	// stayPatience is how long a coordinator that stays waits for etcd, which may have been started
	// in the same moment.
	stayPatience = 5 * time.Minute
)

// Config is where the job is, and what this process does beside leading it.
type Config struct {
	meet.Config
	// Spec is the YAML file of the job, which this process submits as run Config.Run; empty:
	// somebody else does.
	Spec string
	// Stay: the process outlasts the job, and leads its next run.
	Stay bool
	// Show logs the job's events while this process leads; nil: events are not shown. It remembers
	// those that an earlier leader had, and does not log them again.
	Show *telemetry.LogView
}

// Run campaigns for the leadership of a job, leads it when elected, and returns its last plan when
// it has ended; its failure is the error. When ctx ends it gives the leadership up, and the job
// goes on; the error is an app.LeftError.
func Run(ctx context.Context, cfg Config) (cluster.Plan, error) {
	if err := cfg.Validate(); err != nil {
		return cluster.Plan{}, app.Usage(err)
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
			return plan, nil // the job had ended; this process only stayed
		}
		err = &app.LeftError{Text: "asked to go before the job's end; another coordinator can " +
			"lead it"}
	}
	return plan, err
}

// process is a coordinator process.
type process struct {
	cfg     Config
	log     *slog.Logger
	own     *rondov1.JobSpec // the run that it submits; nil: none
	store   *etcdstore.Store
	last    int64       // the run that ended last; -1: none has
	idle    bool        // it waits for the next run
	started health.Flag // etcd has answered
	ready   health.Flag
	pulse   pulse
	told    bool // that its own spec is not what runs
}

// run leads one run, or, with --stay, one after the other.
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

// leadRun leads one run until it has ended. The error is why it has failed, or why this process
// cannot lead it any more; only with the first has the plan ended.
func (p *process) leadRun(ctx context.Context, spec *rondov1.JobSpec) (cluster.Plan, error) {
	if p.own != nil && spec.Submitted < p.own.Submitted {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go p.tellWaiting(ctx, spec.Submitted)
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
		options = append(options, grpc.Creds(identity.ServerCredentials(p.log)))
	}
	listener, err := p.cfg.Open(ctx)
	if err != nil {
		return cluster.Plan{}, err
	}
	// A container's process has the same number after each restart: what it reports then is another
	// source's.
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
	service.Heard = p.heard
	server := service.GRPC(options...)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if stopped := <-served; !errors.Is(stopped, grpc.ErrServerStopped) {
			err = errors.Join(err, stopped)
		}
	}()
	p.ready.Set(true) // for good: who stays between two runs does what it is there for
	p.pulse.follow(spec.LeaseTtl.AsDuration())
	return elected.Run(ctx, elected.Config{
		Job:      job,
		Self:     cluster.Leader{ID: id, Address: listener.Addr().String()},
		LeaseTTL: spec.LeaseTtl.AsDuration(),
		Election: &election{Election: p.store, registry: p.store, run: spec.Submitted},
		Events:   service.Events(),
		Audience: service,
		Farewell: func(ctx context.Context) { drain(ctx, service, p.log) },
		Turned:   p.pulse.turned,
		Log:      p.log,
	})
}

// heard shows an event that reached this process while it leads.
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

// JobOf is what membership needs to know of the spec.
func JobOf(spec *rondov1.JobSpec) cluster.Job {
	return cluster.Job{Workers: int(spec.Workers), MinWorkers: int(spec.MinWorkers),
		MaxWorkers: int(spec.MaxWorkers), Lanes: int(spec.Batch),
		Groups: int(jobspec.LaneGroups(spec)),
		Spread: spec.RingOrder == "spread", JoinTimeout: spec.JoinTimeout.AsDuration(),
		PauseTimeout: spec.PauseTimeout.AsDuration(), Version: meet.Version()}
}

// drain waits until somebody has heard of the job's end, and everybody who listens.
func drain(ctx context.Context, service *rpc.Server, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := service.Drain(ctx); err != nil {
		log.Debug("leaving after the job's end", "error", err)
	}
}
