package cluster

import (
	"fmt"
	"slices"
	"time"
)

// How long a leader waits for more workers to appear when some have.
const (
	// One ring is formed for all of them.
	settleTime = 300 * time.Millisecond
	// A paused job that only newcomers have come to would begin anew, from a checkpoint at best:
	// those that were cut off come back with its state, a second or two after etcd does.
	returnTime = 5 * time.Second
)

// vacancyTime is how long a run that does not train has nobody before one that waits for its end
// supersedes it: those that were cut off from etcd are back sooner.
const vacancyTime = 2 * returnTime

// State is everything that a leader knows of a job. It is a value: Decide returns a new one and
// changes neither the old one nor what its slices hold.
type State struct {
	job     Job
	leading bool      // Elected has come
	plan    Plan      // the last one decided
	members []Member  // who is registered now, by host and id
	done    []string  // ids of the ring's workers that have reported their end
	asked   []string  // ids of the ring's workers that were asked to go: no plan says so yet
	leaving []string  // ids of registered workers that were asked to go, and are chosen no more
	before  []Member  // of the ring before the present one: what is said of them may come late
	giveUp  time.Time // while forming or paused: when to wait no longer
	settled time.Time // when who appeared is taken in, and who was asked to go is let go; or zero
	anew    bool      // until settled those that have the state are waited for, and then no longer
	vacant  time.Time // when the next run supersedes this one, which has nobody; or zero
	// evictions is how often processes were put out that are registered, or were not long ago.
	evictions []repeats
}

// NewState returns the state of a job before anybody leads it.
func NewState(job Job) State { return State{job: job} }

// Plan returns the last plan that was decided.
func (s State) Plan() Plan { return s.plan }

// Members returns who is registered now, by host and id. The slice is not to be changed.
func (s State) Members() []Member { return s.members }

// Wake returns when Decide wants a Tick; the zero time: not before something else happens.
func (s State) Wake() time.Time {
	at := s.due()
	if !s.vacant.IsZero() && (at.IsZero() || s.vacant.Before(at)) {
		return s.vacant
	}
	return at
}

// due is Wake, but for the next run.
func (s State) due() time.Time {
	switch {
	case !s.leading:
		return time.Time{}
	case s.plan.Phase == Forming:
		return s.giveUp
	case s.plan.Phase == Paused && (s.settled.IsZero() || s.giveUp.Before(s.settled)):
		return s.giveUp
	case s.plan.Phase == Running || s.plan.Phase == Paused:
		return s.settled
	}
	return time.Time{}
}

// Event is something that happened, as Decide takes it.
type Event interface{ event() }

// Elected comes first: this process leads, the store holds this plan and these members. A leader
// that takes over goes on from there.
type Elected struct {
	Plan    Plan
	Members []Member
}

// Joined is a member that registered, or changed its entry.
type Joined struct{ Member Member }

// Left are members whose registrations are gone: they left, or their leases ended. Those that are
// seen to be gone together come together, so that one new ring is formed without all of them.
type Left struct{ IDs []string }

// Failed is a worker that cannot go on in its ring, in its own words or in those of whoever saw
// its process end.
type Failed struct {
	ID         string
	Generation Generation // of the ring that it was in; 0: in none, or not known
	Text       string
	Usage      bool // the job's input is wrong, not the run
	Fatal      bool // every worker would fail in this way
	Resync     bool // its state is not to be trusted
}

// Suspected is a worker that accuses another one of its ring.
type Suspected struct {
	ID         string     // who says so
	Generation Generation // of the ring of which it speaks
	Rank       Rank       // the accused
	Text       string     // what was seen of it
	Slow       bool       // it works, but keeps the others waiting
	Resync     bool       // its state is not to be trusted
}

// Leaving is a worker that was asked to go, and does when a ring without it is planned.
type Leaving struct {
	ID         string
	Generation Generation // of the ring that it is in; 0: of none, or of the present one
}

// Seated is a worker whose ring has formed: it, and so every member, has the job's state.
type Seated struct {
	ID         string
	Generation Generation
}

// ScaleRequested sets how many workers the ring has at most.
type ScaleRequested struct{ Workers int }

// Done is a worker that has nothing left to do: it completed the last step, or stopped.
type Done struct {
	ID         string
	Generation Generation // of the ring in which it did; 0: the present one
}

// StopRequested asks the workers to stop at the same step and to save.
type StopRequested struct{ Reason string }

// Tick says only that time has passed; see State.Wake.
type Tick struct{}

func (Elected) event()        {}
func (Joined) event()         {}
func (Left) event()           {}
func (Failed) event()         {}
func (Suspected) event()      {}
func (Leaving) event()        {}
func (Seated) event()         {}
func (ScaleRequested) event() {}
func (Done) event()           {}
func (StopRequested) event()  {}
func (Tick) event()           {}

// Action is something that the leader must do, in the order in which Decide returns them.
type Action interface{ action() }

// WritePlan stores the plan. Nothing that follows may be done before it is stored.
type WritePlan struct{ Plan Plan }

// Notify tells people, and the worker ID if there is one, what is going on.
type Notify struct{ ID, Text string }

// End says that the job has ended, and its last plan is stored. The leader's work is over.
type End struct{}

func (WritePlan) action() {}
func (Notify) action()    {}
func (End) action()       {}

// Decide returns what a leader in state s does about an event at the time now. The first event is
// Elected; another one first is a broken invariant, and panics.
func Decide(s State, event Event, now time.Time) (State, []Action) {
	s, actions := decide(s, event, now)
	idle := s.plan.Phase == Forming || s.plan.Phase == Paused
	switch {
	case s.job.Next == 0 || !idle || len(s.members) > 0:
		s.vacant = time.Time{}
	case s.vacant.IsZero():
		s.vacant = now.Add(vacancyTime)
	}
	return s, actions
}

func decide(s State, event Event, now time.Time) (State, []Action) {
	if e, ok := event.(Elected); ok {
		return elected(s, e, now)
	}
	if !s.leading {
		panic(fmt.Sprintf("cluster: %#v came before Elected", event))
	}
	s = s.forget(now)
	if s.plan.Phase == Ended {
		return s, nil
	}
	switch e := event.(type) {
	case Joined:
		return joined(s, e.Member, now)
	case Left:
		return left(s, e.IDs, now)
	case Failed:
		return failed(s, e, now)
	case Suspected:
		return suspected(s, e, now)
	case Leaving:
		return leaving(s, e, now)
	case Seated:
		return seated(s, e)
	case ScaleRequested:
		return scaleRequested(s, e.Workers, now)
	case Done:
		return done(s, e)
	case StopRequested:
		return stopRequested(s, e.Reason)
	case Tick:
		return tick(s, now)
	}
	panic(fmt.Sprintf("cluster: unknown event %#v", event))
}

// elected takes over the job as the store holds it. What workers have reported before they report
// again to a new leader.
func elected(s State, e Elected, now time.Time) (State, []Action) {
	s = State{
		job: s.job, leading: true, plan: e.Plan, members: RingOrder(e.Members),
		giveUp: now.Add(s.job.JoinTimeout),
	}
	switch s.plan.Phase {
	case Ended:
		return s, []Action{End{}}
	case Forming:
		return admit(s, s.members, now)
	case Paused:
		s.giveUp = now.Add(s.job.PauseTimeout)
		return admit(s, s.members, now)
	}
	var missing []string
	for _, m := range s.plan.Members {
		if !s.registered(m.ID) {
			missing = append(missing, m.ID)
		}
	}
	if len(missing) == 0 {
		return admit(s, s.members, now)
	}
	s, refusals := s.refuse(s.members)
	s, actions := lose(s, missing, "not registered any more when a new leader came", now)
	return s, append(actions, refusals...)
}

func done(s State, e Done) (State, []Action) {
	stale := e.Generation != 0 && e.Generation != s.plan.Generation
	if _, inRing := s.plan.Rank(e.ID); stale || !inRing || slices.Contains(s.done, e.ID) {
		return s, nil
	}
	s.done = append(slices.Clone(s.done), e.ID)
	if len(s.done) < len(s.plan.Members) {
		return seated(s, Seated{ID: e.ID, Generation: s.plan.Generation})
	}
	if s.plan.Phase == Stopping {
		return end(s, s.plan.Reason)
	}
	return end(s, "all workers are done")
}

func stopRequested(s State, reason string) (State, []Action) {
	reason = clip(reason)
	switch s.plan.Phase {
	case Forming:
		return end(s, "stopped before the start: "+reason)
	case Running:
		s = s.release(s.asked)
		s.plan.Phase, s.plan.Reason, s.settled = Stopping, "stopped: "+reason, time.Time{}
		return s.write()
	case Paused:
		s.plan.Phase = Stopping
		if there := s.choose(1); len(there) > 0 {
			return s.with(there, "stopped while paused: "+reason)
		}
		return end(s, "stopped while paused: "+reason)
	}
	return s, nil
}

// scaleRequested stores the limit, and has the ring follow it at once.
func scaleRequested(s State, workers int, now time.Time) (State, []Action) {
	if err := s.job.CheckScale(workers); err != nil {
		return s, []Action{Notify{Text: "rondo scale: " + err.Error()}}
	}
	if s.plan.Phase == Stopping || s.plan.Limit == workers {
		return s, nil
	}
	s.plan.Limit = workers
	text := fmt.Sprintf("rondo scale: %s at most", count(workers, "worker", "workers"))
	there := s.choose(s.job.MinWorkers)
	var actions []Action
	switch {
	case s.plan.Phase == Forming && len(there) >= s.wanted(),
		s.plan.Phase == Paused && s.complete(there):
		s, actions = s.with(there, text)
	case s.plan.Phase == Running && len(s.done) == 0 && s.ringWouldChange():
		s, actions = regroup(s, text, now)
	default:
		if s.plan.Reason == "" {
			s.plan.Reason = text
		}
		s, actions = s.write()
	}
	if short := workers - len(there); short > 0 {
		actions = append(actions, Notify{Text: fmt.Sprintf("%s; %d are there: %d more can join",
			text, len(there), short)})
	}
	return s, actions
}

func tick(s State, now time.Time) (State, []Action) {
	settled := !s.settled.IsZero() && !now.Before(s.settled)
	gaveUp := !now.Before(s.giveUp)
	switch {
	case !s.vacant.IsZero() && !now.Before(s.vacant):
		return fail(s, fmt.Sprintf("superseded by run %d: no worker is left of this one",
			s.job.Next), false)
	case s.plan.Phase == Forming && gaveUp:
		return startWithFewer(s)
	case settled:
		return settle(s, now)
	case s.plan.Phase == Paused && gaveUp:
		return goOnOrFail(s)
	}
	return s, nil
}

func fail(s State, reason string, usage bool) (State, []Action) {
	s.plan.Failed, s.plan.Usage = true, usage
	return end(s, reason)
}

func end(s State, reason string) (State, []Action) {
	s.plan.Phase, s.plan.Reason = Ended, reason
	s, actions := s.write()
	return s, append(actions, End{})
}

// write stores the plan as it is now, without the evictions of those that have gone.
func (s State) write() (State, []Action) {
	s.plan.Evicted = slices.DeleteFunc(slices.Clone(s.plan.Evicted), func(e Eviction) bool {
		return !s.registered(e.ID)
	})
	return s, []Action{WritePlan{s.plan}}
}
