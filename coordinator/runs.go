package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// idlePause is the time between two checks for the next run.
	idlePause = time.Second
	// waitLogInterval is the time between two lines about a run that waits for an older one.
	waitLogInterval = time.Minute
	// specPause is the time between two attempts of a new leader to read the spec from etcd.
	specPause = 200 * time.Millisecond
)

// ownSpec reads the spec that this process submits. It returns nil if there is none.
func (c Config) ownSpec() (*rondov1.JobSpec, error) {
	if c.Spec == "" {
		return nil, nil
	}
	if c.Run < 1 {
		return nil, app.Usagef("--spec needs --run: the number of the run, above that of the last")
	}
	text, err := os.ReadFile(c.Spec)
	if err != nil {
		return nil, app.Usagef("--spec: %w", err)
	}
	spec, err := jobspec.FromYAML(c.Spec, text)
	if err == nil && spec.Job != jobspec.Default().Job && spec.Job != c.Job {
		err = fmt.Errorf("%s: job %q, and --job is %q: give one name", c.Spec, spec.Job, c.Job)
	}
	if err == nil {
		spec.Job, spec.Submitted = c.Job, c.Run
		err = jobspec.Validate(spec)
	}
	if err == nil && spec.CheckpointEvery > 0 && spec.CheckpointDir == "" {
		err = fmt.Errorf("%s: checkpoint_every needs checkpoint_dir", c.Spec)
	}
	return spec, app.Usage(err)
}

// next returns the spec of the run to lead, which must be newer than p.last. It submits this
// process's own spec when it may, and otherwise waits for another process to submit one.
func (p *process) next(ctx context.Context) (*rondov1.JobSpec, error) {
	if p.last < 0 && p.own == nil {
		return p.cfg.Config.Spec(ctx, p.store)
	}
	for failures := 0; ; {
		stored, err := p.stored(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && jobspec.RunOf(stored) > p.last:
			return meet.Decode(stored)
		case err != nil && failures == 0 && !errors.Is(err, cluster.ErrNoSpec):
			p.log.Warn("looking for the next run again", "error", err)
			failures++
		case err == nil:
			failures = 0
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(idlePause):
		}
	}
}

// stored returns the stored spec. If this process's own run is due, stored submits it first.
func (p *process) stored(ctx context.Context) ([]byte, error) {
	if p.own == nil || p.own.Submitted <= p.last {
		return p.store.Spec(ctx)
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.own)
	if err != nil {
		return nil, fmt.Errorf("the job's spec: %w", err)
	}
	stored, created, err := p.store.PutRun(ctx, text, func(stored []byte) bool {
		return jobspec.RunOf(stored) < p.own.Submitted
	})
	if created {
		p.log.Info("the job is submitted", "job", p.own.Job, "run", p.own.Submitted)
	}
	p.logDifference(stored)
	return stored, err
}

// logDifference logs once that this process's run was submitted with another spec.
func (p *process) logDifference(stored []byte) {
	spec := &rondov1.JobSpec{}
	if p.differenceLogged || jobspec.RunOf(stored) != p.own.Submitted ||
		proto.Unmarshal(stored, spec) != nil || proto.Equal(spec, p.own) {
		return
	}
	p.differenceLogged = true
	p.log.Warn("this file is not what the run was submitted with, and changes nothing: raise the "+
		"run's number (--run, rondo.dev/run) to run it", "file", p.cfg.Spec, "job", p.own.Job,
		"run", p.own.Submitted)
}

// logWaiting logs, until ctx ends, that this process's own run waits for an older one.
func (p *process) logWaiting(ctx context.Context, older int64) {
	tick := time.NewTicker(waitLogInterval)
	defer tick.Stop()
	for {
		p.log.Warn("an older run of the job has not ended: leading that; the new one waits until "+
			"it ends, you end it with rondo stop, or it does not train and has no worker",
			"job", p.own.Job, "older", older, "new", p.own.Submitted)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// errSuperseded says that the run to lead has ended, and another was submitted.
var errSuperseded = errors.New("another run of the job has been submitted meanwhile")

// election elects the leader of one run. A process elected after that run's end, when the next run
// is already submitted, must not lead the next run by the old spec.
type election struct {
	*etcdstore.Store
	spec   *rondov1.JobSpec
	losses int // of etcd's writes, before the run
	seen   int // the same when the spec was there last
}

func (e *election) lostWrites() bool { return e.Losses() > e.losses }

// Campaign implements cluster.Election.
func (e *election) Campaign(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	cluster.Leadership, error) {
	leading, err := e.Store.Campaign(ctx, self, ttl)
	if err != nil {
		return nil, err
	}
	return &runLeadership{Leadership: leading, election: e}, nil
}

// storeAgain stores the run's spec in an etcd that has lost it. It returns the stored one, which
// may be another process's.
func (e *election) storeAgain(ctx context.Context) ([]byte, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.spec)
	if err != nil {
		return nil, err
	}
	stored, _, err := e.PutSpec(ctx, text)
	return stored, err
}

type runLeadership struct {
	cluster.Leadership
	election *election
}

// LoadPlan implements cluster.Leadership. It reads the spec after the plan: submitting a run
// replaces both at once, and happens only after the end of the last run. A job without a spec has
// been deleted, unless etcd has lost writes since the spec was there: then it is stored again.
func (l *runLeadership) LoadPlan(ctx context.Context) (cluster.Plan, error) {
	plan, err := l.Leadership.LoadPlan(ctx)
	if err != nil {
		return plan, err
	}
	for {
		losses := l.election.Losses()
		stored, err := l.election.Spec(ctx)
		if errors.Is(err, cluster.ErrNoSpec) && l.election.Losses() > l.election.seen {
			stored, err = l.election.storeAgain(ctx)
		}
		if err == nil {
			l.election.seen = losses
		}
		switch {
		case err == nil && jobspec.RunOf(stored) == l.election.spec.Submitted:
			return plan, nil
		case err == nil:
			return cluster.Plan{}, errSuperseded
		case errors.Is(err, cluster.ErrNoSpec):
			return cluster.Plan{}, err
		}
		select {
		case <-l.Lost():
			return cluster.Plan{}, cluster.ErrDeposed
		case <-ctx.Done():
			return cluster.Plan{}, ctx.Err()
		case <-time.After(specPause):
		}
	}
}
