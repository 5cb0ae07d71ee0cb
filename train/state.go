package train

import (
	"sync/atomic"

	"rondo/compute"
	"rondo/train/agree"
)

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

// core is what all parts of a trainer share: the job, its task, the state, and the ring.
type core struct {
	cfg      Config
	task     Task
	dev      compute.Device
	laneSize int  // floats that a lane carries
	records  bool // the device is a compute.Recorder

	segmentsPerEpoch int64

	state
	slots    Slots
	grads    []float32    // device memory
	copyRows []int32      // copyWithin's rows: 0, 1, 2 and so on
	memory   agree.Memory // of the tensors

	ring     Ring
	ranks    agree.Ranks // of the ring
	exchange *exchange
	seat     Seat

	laps  laps
	spoil Spoil // of the step that is done

	stopping, regrouping atomic.Bool
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
func (c *core) version() version { return version{Step: c.progress.Step, Ring: c.committed} }

// lastStates returns the lanes' states after the last step, as far as this rank can know them by
// itself.
func (c *core) lastStates() *agree.Entry {
	e := c.laneStates.At(c.version())
	if c.task.Reset(c.position(c.progress.Step)) {
		e.Zero()
	} else if c.progress.NonfiniteRun > 0 {
		e.Heal(agree.Lanes{}) // a rank that did not complete the step has not done it yet
	}
	return e
}

// innerSlots is how many of the slots are not the outer rule's.
func (c *core) innerSlots() int { return c.cfg.Optimizer.Rule.Slots() }

// copyRow is how much of a tensor copyWithin takes for a row of a table.
const copyRow = 1 << 10

// copyWithin copies within the device's memory, every bit. In memory of its own the device gathers
// all rows of a table, and what is left as the only row of another.
func (c *core) copyWithin(dst, src []float32) {
	if c.cfg.HostMemory {
		copy(dst, src)
		return
	}
	for len(c.copyRows) < len(src)/copyRow {
		c.copyRows = append(c.copyRows, int32(len(c.copyRows)))
	}
	whole := len(src) / copyRow * copyRow
	if whole > 0 {
		c.dev.Embed(dst[:whole], src[:whole], c.copyRows[:whole/copyRow])
	}
	if whole < len(src) {
		c.dev.Embed(dst[whole:], src[whole:], []int32{0})
	}
}
