package cluster

import (
	"fmt"
	"slices"
	"time"
)

// State is everything that a leader knows of a job. It is a value: Decide returns a new one and
// changes neither the old one nor what its slices hold.
type State struct {
	job     Job
	leading bool      // Elected has come
	plan    Plan      // the last one decided
	members []Member  // who is registered now, in ring order
	done    []string  // ids of the ring's workers that have reported their end
	joinBy  time.Time // while forming: when to give up
}

// NewState returns the state of a job before anybody leads it.
func NewState(job Job) State { return State{job: job} }

// Plan returns the last plan that was decided.
func (s State) Plan() Plan { return s.plan }

// Members returns who is registered now, in ring order. The slice is not to be changed.
func (s State) Members() []Member { return s.members }

// Wake returns when Decide wants a Tick; the zero time: not before something else happens.
func (s State) Wake() time.Time {
	if s.leading && s.plan.Phase == Forming {
		return s.joinBy
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

// Left is a member whose registration is gone: it left, or its lease ended.
type Left struct{ ID string }

// Failed is a worker that cannot go on, in its own words.
type Failed struct {
	ID    string
	Text  string
	Usage bool // the job's input is wrong, not the run
}

// PeerLost is a worker that cannot go on because another one does not answer.
type PeerLost struct {
	ID   string // who says so
	Rank Rank   // who was lost, in the ring of the plan
	Text string // what was seen of it
}

// Done is a worker that has nothing left to do: it completed the last step, or stopped.
type Done struct{ ID string }

// StopRequested asks the workers to stop at the same step and to save.
type StopRequested struct{ Reason string }

// Tick says only that time has passed; see State.Wake.
type Tick struct{}

func (Elected) event()       {}
func (Joined) event()        {}
func (Left) event()          {}
func (Failed) event()        {}
func (PeerLost) event()      {}
func (Done) event()          {}
func (StopRequested) event() {}
func (Tick) event()          {}

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
	if e, ok := event.(Elected); ok {
		return elected(s, e, now)
	}
	if !s.leading {
		panic(fmt.Sprintf("cluster: %#v came before Elected", event))
	}
	if s.plan.Phase == Ended {
		return s, nil
	}
	switch e := event.(type) {
	case Joined:
		return joined(s, e.Member)
	case Left:
		return left(s, e.ID)
	case Failed:
		return failed(s, e)
	case PeerLost:
		return peerLost(s, e)
	case Done:
		return done(s, e.ID)
	case StopRequested:
		return stopRequested(s, e.Reason)
	case Tick:
		return tick(s, now)
	}
	panic(fmt.Sprintf("cluster: unknown event %#v", event))
}

// elected takes over the job as the store holds it. What the ring's workers have reported before
// they report again to a new leader.
func elected(s State, e Elected, now time.Time) (State, []Action) {
	s = State{
		job: s.job, leading: true, plan: e.Plan,
		members: RingOrder(e.Members), joinBy: now.Add(s.job.JoinTimeout),
	}
	switch s.plan.Phase {
	case Forming:
		return formIfComplete(s)
	case Ended:
		return s, []Action{End{}}
	}
	for _, m := range s.plan.Members {
		if !slices.ContainsFunc(s.members, func(n Member) bool { return n.ID == m.ID }) {
			return lose(s, m.ID, "its registration ended while nobody led the job", false)
		}
	}
	return s, spares(s)
}

func joined(s State, m Member) (State, []Action) {
	s.members = RingOrder(append(without(s.members, m.ID), m))
	if s.plan.Phase != Forming {
		if _, inRing := s.plan.Rank(m.ID); inRing {
			return s, nil
		}
		return s, []Action{spare(m)}
	}
	return formIfComplete(s)
}

func left(s State, id string) (State, []Action) {
	s.members = without(s.members, id)
	_, inRing := s.plan.Rank(id)
	if !inRing || slices.Contains(s.done, id) {
		return s, nil
	}
	return lose(s, id, "its registration ended: it was killed, cut off, or stuck", false)
}

func failed(s State, e Failed) (State, []Action) {
	if _, inRing := s.plan.Rank(e.ID); inRing || s.plan.Phase == Forming {
		return lose(s, e.ID, e.Text, e.Usage)
	}
	return s, []Action{Notify{ID: e.ID, Text: "a spare worker failed: " + e.Text}}
}

func peerLost(s State, e PeerLost) (State, []Action) {
	by, inRing := s.plan.Rank(e.ID)
	if !inRing || e.Rank < 0 || int(e.Rank) >= len(s.plan.Members) {
		return s, []Action{Notify{ID: e.ID, Text: fmt.Sprintf(
			"reports the loss of rank %d, of which the plan knows nothing: %s", e.Rank, e.Text)}}
	}
	lost := s.plan.Members[e.Rank].ID
	if slices.Contains(s.done, lost) {
		return lose(s, e.ID, e.Text, false)
	}
	return lose(s, lost, fmt.Sprintf("rank %d (%s) says: %s", by, e.ID, e.Text), false)
}

func done(s State, id string) (State, []Action) {
	if _, inRing := s.plan.Rank(id); !inRing || slices.Contains(s.done, id) {
		return s, nil
	}
	s.done = append(slices.Clone(s.done), id)
	if len(s.done) < len(s.plan.Members) {
		return s, nil
	}
	if s.plan.Phase == Stopping {
		return end(s, s.plan.Reason)
	}
	return end(s, "all workers are done")
}

func stopRequested(s State, reason string) (State, []Action) {
	switch s.plan.Phase {
	case Forming:
		return end(s, "stopped before the start: "+reason)
	case Running:
		s.plan.Phase, s.plan.Reason = Stopping, "stopped: "+reason
		return s, []Action{WritePlan{s.plan}}
	}
	return s, nil
}

func tick(s State, now time.Time) (State, []Action) {
	if s.plan.Phase != Forming || now.Before(s.joinBy) {
		return s, nil
	}
	return fail(s, fmt.Sprintf("%d of %d workers have joined within %v (--join-timeout); "+
		"see the logs of those that are missing", len(s.members), s.job.Workers,
		s.job.JoinTimeout), false)
}

// formIfComplete says how many workers have joined, and starts the job when that is enough.
func formIfComplete(s State) (State, []Action) {
	text := fmt.Sprintf("%d of %d workers have joined",
		min(len(s.members), s.job.Workers), s.job.Workers)
	told := Notify{Text: text}
	if len(s.members) < s.job.Workers {
		return s, []Action{told}
	}
	s, actions := form(s, text)
	return s, append([]Action{told}, actions...)
}

// form makes a new ring of the first members in ring order. The others are spares.
func form(s State, reason string) (State, []Action) {
	s.plan = Plan{
		Generation: s.plan.Generation + 1,
		Members:    slices.Clone(s.members[:s.job.Workers]),
		LaneEnds:   DealLanes(s.job.Lanes, s.job.Workers),
		Phase:      Running,
		Reason:     reason,
	}
	s.done = nil
	return s, append([]Action{WritePlan{s.plan}}, spares(s)...)
}

// lose ends the job because one of its workers is gone, and names it.
func lose(s State, id, text string, usage bool) (State, []Action) {
	reason := s.describe(id) + ": " + text
	if s.plan.Phase != Forming && !usage {
		reason += "; --resume auto goes on from the newest checkpoint, if one was kept"
	}
	return fail(s, reason, usage)
}

func fail(s State, reason string, usage bool) (State, []Action) {
	s.plan.Failed, s.plan.Usage = true, usage
	return end(s, reason)
}

func end(s State, reason string) (State, []Action) {
	s.plan.Phase, s.plan.Reason = Ended, reason
	return s, []Action{WritePlan{s.plan}, End{}}
}

// describe names a worker for people.
func (s State) describe(id string) string {
	if r, ok := s.plan.Rank(id); ok {
		m := s.plan.Members[r]
		return fmt.Sprintf("worker %s (rank %d, host %s, pid %d)", m.ID, r, m.Host, m.PID)
	}
	for _, m := range s.members {
		if m.ID == id {
			return fmt.Sprintf("worker %s (host %s, pid %d)", m.ID, m.Host, m.PID)
		}
	}
	return fmt.Sprintf("worker %s", id)
}

// spares tells each registered worker that has no rank.
func spares(s State) []Action {
	var actions []Action
	for _, m := range s.members {
		if _, inRing := s.plan.Rank(m.ID); !inRing {
			actions = append(actions, spare(m))
		}
	}
	return actions
}

func spare(m Member) Action {
	return Notify{ID: m.ID, Text: fmt.Sprintf(
		"the ring is complete: the worker on host %s, pid %d waits as a spare", m.Host, m.PID)}
}

// without returns a copy of members that lacks id.
func without(members []Member, id string) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.ID == id })
}
