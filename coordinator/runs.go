package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// idlePause is between two looks for a next run, for as long as the process stays.
	idlePause = time.Second
	// tellInterval is between two lines about a run that another one waits for.
	tellInterval = time.Minute
	// lookPause is between two looks of a new leader at an etcd that does not answer.
	lookPause = 200 * time.Millisecond
)

// ownSpec reads the spec that this process submits; nil if it submits none.
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

// next returns the spec of the run to lead: one that has not been led to its end here. It submits
// this process's own, if it may, and otherwise waits for somebody else's.
func (p *process) next(ctx context.Context) (*rondov1.JobSpec, error) {
	if p.last < 0 && p.own == nil {
		return p.cfg.Config.Spec(ctx, p.store)
	}
	for failures := 0; ; {
		stored, err := p.stored(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && meet.RunOf(stored) > p.last:
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

// stored returns the stored spec, after this process's own was submitted, if that was to be.
func (p *process) stored(ctx context.Context) ([]byte, error) {
	if p.own == nil || p.own.Submitted <= p.last {
		return p.store.Spec(ctx)
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.own)
	if err != nil {
		return nil, fmt.Errorf("the job's spec: %w", err)
	}
	stored, created, err := p.store.PutRun(ctx, text, func(stored []byte) bool {
		return meet.RunOf(stored) < p.own.Submitted
	})
	if created {
		p.log.Info("the job is submitted", "job", p.own.Job, "run", p.own.Submitted)
	}
	p.tellDifference(stored)
	return stored, err
}

// tellDifference says, once, that the run of this process's spec was submitted with another.
func (p *process) tellDifference(stored []byte) {
	spec := &rondov1.JobSpec{}
	if p.told || meet.RunOf(stored) != p.own.Submitted || proto.Unmarshal(stored, spec) != nil ||
		proto.Equal(spec, p.own) {
		return
	}
	p.told = true
	p.log.Warn("this file is not what the run was submitted with, and changes nothing: raise the "+
		"run's number (--run, rondo.dev/run) to run it", "file", p.cfg.Spec, "job", p.own.Job,
		"run", p.own.Submitted)
}

// tellWaiting says, until ctx ends, that this process's own run waits for an older one.
func (p *process) tellWaiting(ctx context.Context, older int64) {
	tick := time.NewTicker(tellInterval)
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

// errSuperseded: the run that a process was elected to lead has ended, and another was submitted.
var errSuperseded = errors.New("another run of the job has been submitted meanwhile")

// election is that of the leader of one run. Who was elected after the end of that run, and when
// the next one was submitted already, must not lead the next one by the spec of the last.
type election struct {
	cluster.Election
	registry cluster.Registry
	run      int64
}

// Campaign implements cluster.Election.
func (e *election) Campaign(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	cluster.Leadership, error) {
	leading, err := e.Election.Campaign(ctx, self, ttl)
	if err != nil {
		return nil, err
	}
	return &runLeadership{Leadership: leading, election: e}, nil
}

type runLeadership struct {
	cluster.Leadership
	election *election
}

// LoadPlan implements cluster.Leadership. The spec is looked at after the plan: who submits a run
// replaces both at once, and only after the end of the last.
func (l *runLeadership) LoadPlan(ctx context.Context) (cluster.Plan, error) {
	plan, err := l.Leadership.LoadPlan(ctx)
	if err != nil {
		return plan, err
	}
	for {
		stored, err := l.election.registry.Spec(ctx)
		switch {
		case err == nil && meet.RunOf(stored) == l.election.run:
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
		case <-time.After(lookPause):
		}
	}
}
