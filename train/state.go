package train

import "rondo/train/agree"

// version is a step and the ring that completed it.
type version = agree.Version

// state is what a rank goes on from, beside its tensors. It lasts from ring to ring. A step changes
// it when the ring has summed.
type state struct {
	hasState   bool
	progress   Progress
	pending    bool  // work that is due after the last step was broken off
	stopped    bool  // the job ends after the last step, by RequestStop on some rank
	committed  int64 // the ring that completed the last step
	joined     int64 // the last ring that was joined with this state
	touched    bool  // the tensors are not those of a job that has not begun
	torn       bool  // a step that is not committed may have changed them
	laneStates agree.LaneStates
}

// member is the trainer as agree.Join knows it.
type member struct{ t *Trainer }

func (m member) Standing() agree.Standing[Progress] {
	t := m.t
	if !t.hasState {
		return agree.Standing[Progress]{}
	}
	return agree.Standing[Progress]{Has: true, Pending: t.pending, Stopped: t.stopped,
		Joined: t.joined, Version: t.version(), Progress: t.progress}
}

func (m member) StartFresh() error {
	t := m.t
	if t.touched {
		t.task.Initialise()
		t.touched = false
	}
	t.progress, t.committed, t.joined = Progress{}, t.ring.Generation, 0
	t.pending, t.stopped, t.hasState = false, false, true
	t.laneStates.At(t.version()).Zero()
	return t.slots.Fresh()
}

func (m member) Overwrite(by agree.Version) {
	m.t.slots.CatchUp(by)
	m.t.hasState, m.t.touched = false, true
}

func (m member) Adopt(from agree.Standing[Progress]) {
	t := m.t
	t.progress, t.committed, t.joined = from.Progress, from.Version.Ring, from.Joined
	t.pending, t.stopped, t.hasState = from.Pending, from.Stopped, true
}

func (m member) Lanes() *agree.Entry { return m.t.lastStates() }

// version is that of this rank's parameters.
func (t *Trainer) version() version { return version{Step: t.progress.Step, Ring: t.committed} }

// lastStates returns the lanes' states after the last step, as far as this rank can know them by
// itself.
func (t *Trainer) lastStates() *agree.Entry {
	e := t.laneStates.At(t.version())
	if t.task.Reset(t.position(t.progress.Step)) {
		e.Zero()
	} else if t.progress.NonfiniteRun > 0 {
		e.Heal(agree.Lanes{}) // a rank that did not complete the step has not done it yet
	}
	return e
}
