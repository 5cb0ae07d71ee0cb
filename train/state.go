package train

import (
	"fmt"
	"sync/atomic"

	"rondo/compute"
	"rondo/train/agree"
)

// version is a step and the generation that completed it.
type version = agree.Version

// state is what a rank resumes from, besides its tensors. It outlives rings, and changes only after
// the ring has summed.
type state struct {
	hasState   bool
	split      agree.Version // of the state that was dropped, until the next ring: see Standing
	progress   Progress
	pending    bool  // the work due after the last step is not done
	stopped    bool  // the job ends after the last step, by RequestStop on some rank
	committed  int64 // the ring that completed the last step
	joined     int64 // the last ring that was joined with this state
	touched    bool  // the tensors may differ from their initial values
	torn       bool  // an uncommitted step may have changed the tensors
	laneStates agree.LaneStates
}

// core is shared by all parts of a trainer: configuration, task, state and ring.
type core struct {
	cfg      Config
	task     Task
	dev      compute.Device
	laneSize int  // floats that a lane carries
	records  bool // the device is a compute.Recorder

	segmentsPerEpoch int64
	counted          [2]counted // the last two: usually the whole batch and this rank

	state
	slots    Slots
	grads    []float32    // device memory
	copyRows []int32      // row indices 0, 1, 2, ... for copyWithin
	memory   agree.Memory // copies tensors to and from the host

	ring     Ring
	ranks    agree.Ranks // of the ring
	exchange *exchange
	seat     Seat

	laps  laps
	spoil Spoil // faults to inject in the current step

	stopping, regrouping atomic.Bool
}

// member adapts the trainer to agree.Join.
type member struct{ t *Trainer }

func (m member) Standing() agree.Standing[Progress] {
	t := m.t
	if !t.hasState {
		return agree.Standing[Progress]{Split: t.split}
	}
	return agree.Standing[Progress]{Has: true, Pending: t.pending, Stopped: t.stopped,
		Joined: t.joined, Version: t.version(), Digest: t.Digest(), Progress: t.progress,
		Split: t.split}
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

// Check implements agree.State.
func (m member) Check(of agree.Standing[Progress]) error {
	if of.Version.Step != of.Progress.Step {
		return fmt.Errorf("step %d, with the progress of step %d", of.Version.Step,
			of.Progress.Step)
	}
	return of.Progress.validate(m.t.cfg.Steps)
}

func (m member) Overwrite(by agree.Version) {
	m.t.slots.CatchUp(by)
	m.t.hasState, m.t.touched = false, true
}

// Drop implements agree.State.
func (m member) Drop(split agree.Version) {
	m.t.Forget()
	m.t.split = split
}

func (m member) Adopt(from agree.Standing[Progress]) {
	t := m.t
	t.progress, t.committed, t.joined = from.Progress, from.Version.Ring, from.Joined
	t.pending, t.stopped, t.hasState = from.Pending, from.Stopped, true
}

func (m member) Lanes() *agree.Entry { return m.t.lastStates() }

// version is the version of this rank's parameters.
func (c *core) version() version { return version{Step: c.progress.Step, Ring: c.committed} }

// lastStates returns the lanes' states after the last step, as far as this rank knows them.
func (c *core) lastStates() *agree.Entry {
	e := c.laneStates.At(c.version())
	if c.task.Reset(c.position(c.progress.Step)) {
		e.Zero()
	} else if c.progress.NonfiniteRun > 0 {
		// A rank that did not complete the skipped step has not healed its lanes.
		e.Heal(agree.Lanes{})
	}
	return e
}

// innerSlots is the number of slots that belong to the inner optimizer.
func (c *core) innerSlots() int { return c.cfg.Optimizer.Rule.Slots() }

// copyRow is the row length, in floats, that copyWithin passes to Embed.
const copyRow = 1 << 10

// copyWithin copies within device memory, bit for bit. A device with its own memory copies by
// Embed: whole rows of copyRow floats, then the rest as one row.
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
