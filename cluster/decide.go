package cluster

import (
	"fmt"
	"slices"
	"time"
)

// Waits of a leader for more workers.
const (
	// settleTime is the wait after a worker appears or asks to leave, so that one ring serves all
	// of them.
	settleTime = 300 * time.Millisecond
	// returnTime is how long a paused job waits for workers with its state if only newcomers are
	// there. Workers that were cut off return a second or two after etcd does. Without them the job
	// would start again from a checkpoint or the beginning.
	returnTime = 5 * time.Second
)

// resumeTime is how long a job waits after its store has lost writes. Workers look at the store
// every few seconds, and register again within a second or two; the longest wait is for one whose
// request found no answer.
const resumeTime = 15 * time.Second

// vacancyTime is how long a run may have no workers and no ring before the next run, which waits,
// supersedes it. Workers that were cut off from etcd return sooner.
const vacancyTime = 2 * returnTime

// State is a leader's knowledge of a job. It is a value: Decide returns a new State and changes
// neither the old one nor its slices.
type State struct {
	job         Job
	leading     bool      // Elected has arrived
	plan        Plan      // last decided
	members     []Member  // registered now, by host and id
	done        []string  // ids of the ring's workers that reported their end
	result      string    // Done.Result of the lowest rank that reported one
	resultOf    Rank      // that rank
	asked       []string  // ids of the ring's workers that asked to leave; not planned yet
	leaving     []string  // ids of registered workers that asked to leave; not chosen any more
	lastMembers []Member  // last ring's members: reports about them may come late
	broken      Plan      // of the last ring that began and lost a member
	giveUp      time.Time // while forming or paused: end of the wait
	settled     time.Time // when newcomers join and asked workers leave; zero: not set
	awaitsState bool      // until settled wait for members with the job's state
	begun       bool      // a member has reported that it trains in the present ring
	// known is the newest generation that was in the store at the election or has begun. Rings
	// after it may exist twice: once formed now, and once forgotten by the store.
	known  Generation
	vacant time.Time // when the next run supersedes this one without workers; zero: not set
	// evictions counts the evictions of processes that are registered or were recently.
	evictions  evictionCounts
	suspicions suspicions
	now        time.Time // of the present event
}

// NewState returns the state of a job without a leader.
func NewState(job Job) State { return State{job: job} }

// Plan returns the last decided plan.
func (s State) Plan() Plan { return s.plan }

// Members returns the registered members, by host and id. The caller must not change the slice.
func (s State) Members() []Member { return s.members }

// Wake returns when Decide needs a Tick; the zero time: only after another event.
func (s State) Wake() time.Time {
	at := s.due()
	if !s.vacant.IsZero() && (at.IsZero() || s.vacant.Before(at)) {
		return s.vacant
	}
	return at
}

// due is Wake without regard to the next run.
func (s State) due() time.Time {
	switch {
	case !s.leading:
		return time.Time{}
	case s.plan.Phase == Forming:
		return s.giveUp
	case s.plan.Phase == Paused && (s.settled.IsZero() || s.giveUp.Before(s.settled)):
		return s.giveUp
	case s.plan.Phase == Running && len(s.done) == 0:
		return earlier(s.settled, s.evictions.returns(s.members, s.now))
	case s.plan.Phase == Running || s.plan.Phase == Paused:
		return s.settled
	}
	return time.Time{}
}

// Event is an input of Decide.
type Event interface{ event() }

// Elected is the first event: this process leads, and the store holds this plan and these members.
// A new leader continues from them.
type Elected struct {
	Plan    Plan
	Members []Member
	Lost    bool // the store has lost writes during the job
	Tip     Tip  // on record, of this run; the zero Tip: none
}

// Joined reports members that registered or changed their entries. Members that appear together
// come in one event.
type Joined struct{ Members []Member }

// Left reports members whose registrations are gone: they left, or their leases ended. Members that
// leave together come in one event, so that one new ring is formed without all of them.
type Left struct{ IDs []string }

// Failed reports a worker that cannot go on in its ring. The report comes from the worker, or from
// the process that saw it end.
type Failed struct {
	ID         string
	Generation Generation // of its ring; 0: none or unknown
	Text       string
	Usage      bool // the job's input is at fault
	Fatal      bool // every worker would fail in the same way
	Resync     bool // its state may be wrong
}

// Suspected is a worker's accusation of another one in its ring.
type Suspected struct {
	ID         string     // the accuser
	Generation Generation // of their ring
	Rank       Rank       // the accused
	Text       string     // the observation
	Slow       bool       // it works, but delays the others
	Resync     bool       // its state may be wrong
	// Unreachable is the accused's id, if no connection to it opens. Then the accusation holds in
	// any ring of both that has not begun.
	Unreachable string
}

// Leaving reports a worker that was asked to leave. It leaves when a ring without it is planned.
type Leaving struct {
	ID         string
	Generation Generation // of its ring; 0: none, or the present one
}

// Seated reports that a worker's ring has formed, so every member has the job's state.
type Seated struct {
	ID         string
	Generation Generation
}

// ScaleRequested sets the most workers in the ring.
type ScaleRequested struct{ Workers int }

// Done reports a worker that has completed the last step or has stopped.
type Done struct {
	ID         string
	Generation Generation // of the ring in which it ended; 0: the present one
	Result     string     // for Plan.Result; "" if it has none
}

// StopRequested makes the workers stop at the same step, and save.
type StopRequested struct{ Reason string }

// Tick reports that time has passed; see State.Wake.
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

// Action is an output of Decide. The leader performs actions in the order returned.
type Action interface{ action() }

// WritePlan stores the plan. Later actions must wait until it is stored.
type WritePlan struct{ Plan Plan }

// Notify sends a message to people, and to worker ID if it is set.
type Notify struct{ ID, Text string }

// End reports that the job has ended and its last plan is stored. The leader's work is over.
type End struct{}

func (WritePlan) action() {}
func (Notify) action()    {}
func (End) action()       {}

// Decide returns the next state and the leader's actions for an event at time now. The first event
// must be Elected; any other panics.
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
	s.now = now
	s.evictions = s.evictions.forget(s.members, now)
	if s.plan.Phase == Ended {
		return s, nil
	}
	switch e := event.(type) {
	case Joined:
		return joined(s, e.Members, now)
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
	case Recorded:
		return recorded(s, e)
	case StopRequested:
		return stopRequested(s, e.Reason)
	case Tick:
		return tick(s, now)
	}
	panic(fmt.Sprintf("cluster: unknown event %#v", event))
}

// elected takes over the job from the store. Workers repeat their earlier reports to a new leader.
func elected(s State, e Elected, now time.Time) (State, []Action) {
	s = State{
		job: s.job, leading: true, plan: e.Plan, members: RingOrder(e.Members),
		giveUp: now.Add(s.job.JoinTimeout), known: e.Plan.Generation, now: now,
	}
	if s.plan.Phase != Ended && e.Tip.Final {
		return recorded(s, Recorded{e.Tip})
	}
	if s.plan.Phase != Ended && !s.resuming() &&
		(e.Lost && s.plan.Phase == Forming || slices.ContainsFunc(s.members, s.plan.isBefore)) {
		return resume(s, now)
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
	registered := idsOf(s.members)
	for _, m := range s.plan.Members {
		if !registered[m.ID] {
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

// resume pauses a job whose store has lost writes, until all members that may have its state could
// be back. Those that knew the last generation may all be gone. So generations go on from the
// seconds of the clock, which are above any number of rings.
func resume(s State, now time.Time) (State, []Action) {
	s.plan.Resume, s.plan.Rings = s.known+1, max(s.plan.Rings, 1)
	s.plan.Generation = max(s.plan.Generation, Generation(now.Unix()))
	wait := min(resumeTime, s.job.PauseTimeout)
	s, actions := pause(s, fmt.Sprintf("the store has lost writes; paused: waiting for the "+
		"workers with the job's state, for %v", wait), now.Add(wait), now)
	s, refusals := s.refuse(s.members)
	return s, append(actions, refusals...)
}

// resuming reports whether the job waits as resume says.
func (s State) resuming() bool { return s.plan.Resume > 0 && s.plan.Phase == Paused }

func done(s State, e Done) (State, []Action) {
	stale := e.Generation != 0 && e.Generation != s.plan.Generation
	rank, inRing := s.plan.Rank(e.ID)
	if stale || !inRing || slices.Contains(s.done, e.ID) {
		return s, nil
	}
	s.done = append(slices.Clone(s.done), e.ID)
	known := s.result != "" && s.resultOf < rank
	if n := len(e.Result); !known && n > 0 && n <= ResultLimit {
		s.result, s.resultOf = e.Result, rank
	}
	if len(s.done) < len(s.plan.Members) {
		return seated(s, Seated{ID: e.ID, Generation: s.plan.Generation})
	}
	if s.plan.Phase == Stopping {
		return end(s, s.plan.Reason)
	}
	return end(s, doneReason)
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
			return s.formRing(there, "stopped while paused: "+reason)
		}
		return end(s, "stopped while paused: "+reason)
	}
	return s, nil
}

// scaleRequested stores the limit and applies it to the ring at once.
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
		s.plan.Phase == Paused && s.complete(there) && !s.resuming():
		s, actions = s.formRing(there, text)
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
	case s.plan.Phase == Running && len(s.done) == 0 && s.settled.IsZero() && s.ringWouldChange():
		return regroup(s, "a worker that was put out is taken back", now)
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
	s.plan.Phase, s.plan.Reason, s.plan.Result = Ended, reason, s.result
	s, actions := s.write()
	return s, append(actions, End{})
}

// write stores the present plan, without evictions of workers that are not registered.
func (s State) write() (State, []Action) {
	registered := idsOf(s.members)
	s.plan.Evicted = slices.DeleteFunc(slices.Clone(s.plan.Evicted), func(e Eviction) bool {
		return !registered[e.ID]
	})
	return s, []Action{WritePlan{s.plan}}
}
