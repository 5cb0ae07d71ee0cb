// Package coordinator runs cluster.Decide. It campaigns for the leadership, passes the events of
// the store, the workers and the clock to the state machine, and performs the actions returned. It
// makes no decision itself, and is off the data path: training goes on without a leader. It may
// import cluster; its caller provides the store and the audience.
package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"rondo/cluster"
)

// resignTimeout limits Resign. After that the lease ends by itself.
const resignTimeout = 2 * time.Second

// Audience receives the coordinator's actions. Its methods return without waiting.
type Audience interface {
	// Lead: this process leads from now on. Earlier calls belong to another term.
	Lead()
	// Follow: this process leads no more, and must forget the term.
	Follow()
	// Planned: the plan is stored. A plan in the phase cluster.Ended is the job's last.
	Planned(cluster.Plan)
	// Notify sends a message to people, about worker id if that is not empty.
	Notify(id, text string)
}

// Config has a coordinator's settings and what it works on.
type Config struct {
	Job      cluster.Job
	Self     cluster.Leader // the address for workers
	LeaseTTL time.Duration  // a leader is replaced after this long without renewal
	Election cluster.Election
	// Events are reports to this coordinator while it leads. Reports sent before the first plan is
	// loaded wait in the channel.
	Events   <-chan cluster.Event
	Audience Audience
	// Farewell, if set, is called after the job's end, while this process is still registered as
	// the leader, so that late callers learn of the end. It returns soon, or when ctx ends.
	Farewell func(ctx context.Context)
	// Turned, if set, is called in each turn of a leader's loop, at most TurnInterval apart unless
	// the loop is stuck. It is called with false when this process leads no more.
	Turned func(leading bool)
	// LostWrites, if set, reports whether the store has lost writes during the job.
	LostWrites func() bool
	Log        *slog.Logger // nil: no log
}

// TurnInterval is the longest time between two turns of a leader's loop.
const TurnInterval = 5 * time.Second

// Validate returns an error that names the missing or invalid field.
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

// Run campaigns and leads until the job has ended, and returns the job's last plan, which says
// whether the job failed. It returns an error if ctx ends first or the store refuses.
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
	if cfg.LostWrites == nil {
		cfg.LostWrites = func() bool { return false }
	}
	var known history
	for {
		leadership, err := cfg.Election.Campaign(ctx, cfg.Self, cfg.LeaseTTL)
		if err != nil {
			return cluster.Plan{}, err
		}
		cfg.Log.Debug("elected", "id", cfg.Self.ID)
		cfg.Turned(true)
		plan, err := serve(ctx, cfg, leadership, &known)
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

// history is the plans that a process has loaded or stored in its terms.
type history struct {
	last    cluster.Plan
	digests [][sha256.Size]byte // of the last maxDigests
}

const maxDigests = 100

func digest(p cluster.Plan) [sha256.Size]byte { return sha256.Sum256(fmt.Append(nil, p)) }

func (h *history) add(p cluster.Plan) {
	h.last = p
	h.digests = append(h.digests[max(0, len(h.digests)+1-maxDigests):], digest(p))
}

// continues reports whether the last plan follows a stored one, which the store has gone back to.
// A plan that this process does not know may be newer, whatever its generation.
func (h *history) continues(stored cluster.Plan) bool {
	return h.last.Generation > stored.Generation && stored.Phase != cluster.Ended &&
		(stored.Equal(cluster.Plan{}) || slices.Contains(h.digests, digest(stored)))
}

// term is one leadership, until it is lost or the job ends.
type term struct {
	cfg        Config
	leadership cluster.Leadership
	known      *history
	state      cluster.State
	stored     cluster.Plan // the last one loaded or stored
	ended      bool
}

// serve leads until the job ends. It returns the job's last plan, or an error such as
// cluster.ErrDeposed.
func serve(ctx context.Context, cfg Config, leadership cluster.Leadership, known *history) (
	cluster.Plan, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &term{cfg: cfg, leadership: leadership, known: known, state: cluster.NewState(cfg.Job)}
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
	for range watched { // wait for the watch to end
	}
	return t.stored, err
}

func (t *term) run(ctx context.Context, members <-chan []cluster.Member,
	watched <-chan error) error {
	plan, err := t.leadership.LoadPlan(ctx)
	if err != nil {
		return err
	}
	if err := plan.Fits(t.cfg.Job); err != nil {
		return err
	}
	if t.known.continues(plan) {
		t.cfg.Log.Warn("the store has lost a plan, which is stored again",
			"generation", t.known.last.Generation, "after", plan.Generation)
		plan = t.known.last
		if err := t.leadership.PutPlan(ctx, plan); err != nil {
			return err
		}
	}
	t.keep(plan)
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

func (t *term) takeOver(ctx context.Context, plan cluster.Plan, members []cluster.Member) error {
	t.cfg.Log.Info("leading", "generation", plan.Generation, "phase", plan.Phase.String(),
		"members", len(members))
	if !plan.Equal(cluster.Plan{}) {
		t.cfg.Audience.Planned(plan)
	}
	tip, err := t.tip(ctx)
	if err != nil {
		return err
	}
	return t.decide(ctx, cluster.Elected{Plan: plan, Members: members,
		Lost: t.cfg.LostWrites(), Tip: tip})
}

// tip returns the tip on record, if it belongs to this run.
func (t *term) tip(ctx context.Context) (cluster.Tip, error) {
	tip, err := t.leadership.LoadTip(ctx)
	if tip.Run != t.cfg.Job.Run {
		tip = cluster.Tip{}
	}
	return tip, err
}

// keep remembers the plan that is stored now.
func (t *term) keep(plan cluster.Plan) {
	t.stored = plan
	t.known.add(plan)
}

// compare reports changes of the members to the state machine: those that are gone in one event, so
// that one ring is formed without them, and those that have come in another.
func (t *term) compare(ctx context.Context, now []cluster.Member) error {
	tip, err := t.tip(ctx)
	if err == nil {
		err = t.decide(ctx, cluster.Recorded{Tip: tip})
	}
	if err != nil || t.ended {
		return err
	}
	known := make(map[string]cluster.Member, len(t.state.Members()))
	for _, m := range t.state.Members() {
		known[m.ID] = m
	}
	var joined []cluster.Member
	for _, m := range now {
		if known[m.ID] != m {
			joined = append(joined, m)
		}
		delete(known, m.ID)
	}
	var gone []string
	for _, m := range t.state.Members() {
		if _, is := known[m.ID]; is {
			gone = append(gone, m.ID)
		}
	}
	if len(gone) > 0 {
		if err := t.decide(ctx, cluster.Left{IDs: gone}); err != nil {
			return err
		}
	}
	if len(joined) == 0 || t.ended {
		return nil
	}
	return t.decide(ctx, cluster.Joined{Members: joined})
}

// decide passes one event to the state machine and performs its actions in order.
func (t *term) decide(ctx context.Context, e cluster.Event) error {
	state, actions := cluster.Decide(t.state, e, time.Now())
	t.state = state
	for _, action := range actions {
		switch a := action.(type) {
		case cluster.WritePlan:
			if a.Plan.Nonce = t.stored.Nonce; a.Plan.Generation != t.stored.Generation {
				a.Plan.Nonce = rand.Text()
			}
			if err := t.leadership.PutPlan(ctx, a.Plan); err != nil {
				return err
			}
			t.keep(a.Plan)
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

// timer returns a channel that delivers at the given time; at the zero time never.
func timer(at time.Time) (<-chan time.Time, func()) {
	if at.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(at))
	return timer.C, func() { timer.Stop() }
}
