// Package coordinator runs cluster.Decide: it campaigns for the leadership, feeds the state
// machine with what the store and the workers say and with the time, and does what it answers.
// It decides nothing itself, and is off the data path: training goes on while nobody leads. It
// may import cluster; the store, and whoever answers workers and watchers, are handed to it.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"rondo/cluster"
)

// resignTimeout is how long giving up the leadership may take; after it the lease ends by itself.
const resignTimeout = 2 * time.Second

// Audience is told what the coordinator does. Its methods return without waiting for anybody.
type Audience interface {
	// Lead: this process leads from now on. What was told before is of another term.
	Lead()
	// Follow: this process does not lead any more, and knows nothing.
	Follow()
	// Planned: the plan is stored. One in the phase cluster.Ended is the last word of a job.
	Planned(cluster.Plan)
	// Notify tells people something, about the worker id if it is not empty.
	Notify(id, text string)
}

// Config is what a coordinator needs.
type Config struct {
	Job      cluster.Job
	Self     cluster.Leader // how workers find it
	LeaseTTL time.Duration  // a leader not heard from for this long is replaced
	Election cluster.Election
	// Events is what workers and people report to this coordinator while it leads. What comes
	// before the first plan is loaded waits in the channel.
	Events   <-chan cluster.Event
	Audience Audience
	// Farewell, if set, is called when the job has ended, while this process can still be found as
	// its leader: whoever asks late must hear of the end. It returns soon, or when ctx ends.
	Farewell func(ctx context.Context)
	// Turned, if set, is called at each turn of a leader's loop, TurnInterval apart at most unless
	// it is stuck, and with false when it leads no more.
	Turned func(leading bool)
	Log    *slog.Logger // nil: nothing
}

// TurnInterval is how often a leader's loop turns when nothing happens.
const TurnInterval = 5 * time.Second

// Validate returns an error that names what is missing.
func (c Config) Validate() error {
	switch {
	case c.Election == nil || c.Audience == nil || c.Events == nil:
		return errors.New("coordinator: needs an election, an audience and events")
	case c.Self.ID == "" || c.Self.Address == "":
		return fmt.Errorf("coordinator: needs an id and an address, has %+v", c.Self)
	case c.LeaseTTL <= 0:
		return fmt.Errorf("--lease-ttl %v: must be above zero", c.LeaseTTL)
	}
	return c.Job.Validate()
}

// Run campaigns and leads until the job has ended, and returns the plan with which it has; the
// job's failure is in the plan. It returns an error if ctx ends first, or the store refuses.
func Run(ctx context.Context, cfg Config) (cluster.Plan, error) {
	if err := cfg.Validate(); err != nil {
		return cluster.Plan{}, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Turned == nil {
		cfg.Turned = func(bool) {}
	}
	for {
		leadership, err := cfg.Election.Campaign(ctx, cfg.Self, cfg.LeaseTTL)
		if err != nil {
			return cluster.Plan{}, err
		}
		cfg.Log.Debug("elected", "id", cfg.Self.ID)
		cfg.Turned(true)
		plan, err := serve(ctx, cfg, leadership)
		cfg.Turned(false)
		if err == nil && cfg.Farewell != nil {
			cfg.Farewell(ctx)
		}
		resign(ctx, cfg, leadership)
		if err == nil {
			return plan, nil
		}
		cfg.Audience.Follow()
		if ctx.Err() != nil {
			return cluster.Plan{}, ctx.Err()
		}
		if !errors.Is(err, cluster.ErrDeposed) {
			return cluster.Plan{}, err
		}
		cfg.Log.Warn("the leadership is lost; campaigning again", "error", err)
	}
}

func resign(ctx context.Context, cfg Config, leadership cluster.Leadership) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	if err := leadership.Resign(ctx); err != nil {
		cfg.Log.Warn("resigning; the lease ends by itself", "error", err)
	}
}

// term is one leadership, from election to loss or the job's end.
type term struct {
	cfg        Config
	leadership cluster.Leadership
	state      cluster.State
	ended      bool
}

// serve leads. It returns the job's last plan, or cluster.ErrDeposed, or another reason.
func serve(ctx context.Context, cfg Config, leadership cluster.Leadership) (cluster.Plan, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &term{cfg: cfg, leadership: leadership, state: cluster.NewState(cfg.Job)}
	members, watched := make(chan []cluster.Member), make(chan error, 1)
	go func() {
		defer close(watched)
		watched <- leadership.WatchMembers(ctx, func(m []cluster.Member) error {
			select {
			case members <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	err := t.run(ctx, members, watched)
	cancel()
	for range watched { // until the watch has ended
	}
	return t.state.Plan(), err
}

// run takes the job over and feeds the state machine until the end.
func (t *term) run(ctx context.Context, members <-chan []cluster.Member,
	watched <-chan error) error {
	plan, err := t.leadership.LoadPlan(ctx)
	if err != nil {
		return err
	}
	if err := plan.Fits(t.cfg.Job); err != nil {
		return err
	}
	t.cfg.Audience.Lead()
	turn := time.NewTicker(TurnInterval)
	defer turn.Stop()
	elected := false
	for !t.ended {
		t.cfg.Turned(true)
		var events <-chan cluster.Event
		if elected {
			events = t.cfg.Events
		}
		wake, stop := timer(t.state.Wake())
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-t.leadership.Lost():
			err = cluster.ErrDeposed
		case werr := <-watched:
			err = fmt.Errorf("watching the members: %w", werr)
		case now := <-members:
			if !elected {
				elected = true
				err = t.takeOver(ctx, plan, now)
			} else {
				err = t.compare(ctx, now)
			}
		case e := <-events:
			err = t.decide(ctx, e)
		case <-wake:
			err = t.decide(ctx, cluster.Tick{})
		case <-turn.C:
		}
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// takeOver gives the state machine the job as the store holds it.
func (t *term) takeOver(ctx context.Context, plan cluster.Plan, members []cluster.Member) error {
	t.cfg.Log.Info("leading", "generation", plan.Generation, "phase", plan.Phase.String(),
		"members", len(members))
	if !plan.Equal(cluster.Plan{}) {
		t.cfg.Audience.Planned(plan)
	}
	return t.decide(ctx, cluster.Elected{Plan: plan, Members: members})
}

// compare tells the state machine how the members differ from those that it knows. Those that are
// gone come in one event, so that one ring is formed without all of them.
func (t *term) compare(ctx context.Context, now []cluster.Member) error {
	known := t.state.Members()
	var gone []string
	for _, m := range known {
		if !slices.ContainsFunc(now, func(n cluster.Member) bool { return n.ID == m.ID }) {
			gone = append(gone, m.ID)
		}
	}
	if len(gone) > 0 {
		if err := t.decide(ctx, cluster.Left{IDs: gone}); err != nil {
			return err
		}
	}
	for _, m := range now {
		if !slices.Contains(known, m) && !t.ended {
			if err := t.decide(ctx, cluster.Joined{Member: m}); err != nil {
				return err
			}
		}
	}
	return nil
}

// decide takes one event, and does what is to be done about it, in order.
func (t *term) decide(ctx context.Context, e cluster.Event) error {
	state, actions := cluster.Decide(t.state, e, time.Now())
	t.state = state
	for _, action := range actions {
		switch a := action.(type) {
		case cluster.WritePlan:
			if err := t.leadership.PutPlan(ctx, a.Plan); err != nil {
				return err
			}
			t.cfg.Log.Debug("plan", "generation", a.Plan.Generation,
				"phase", a.Plan.Phase.String(), "reason", a.Plan.Reason)
			t.cfg.Audience.Planned(a.Plan)
		case cluster.Notify:
			t.cfg.Log.Debug("notice", "worker", a.ID, "text", a.Text)
			t.cfg.Audience.Notify(a.ID, a.Text)
		case cluster.End:
			t.ended = true
		default:
			panic(fmt.Sprintf("coordinator: unknown action %#v", action))
		}
	}
	return nil
}

// timer returns a channel that delivers at the given time; never at the zero time.
func timer(at time.Time) (<-chan time.Time, func()) {
	if at.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(at))
	return timer.C, func() { timer.Stop() }
}
