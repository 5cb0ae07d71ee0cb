package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"rondo/compute"
	"rondo/train/agree"
)

// Saver stores snapshots in the background. It may receive a step twice, if a ring was lost at its
// end and another rank became rank 0; it must ignore a step that it has stored.
type Saver interface {
	// Save takes a snapshot. It may wait for room, but not for storage. After it returns, the
	// trainer may overwrite the snapshot's memory.
	Save(ctx context.Context, s *Snapshot) error
	// Flush waits until all snapshots are stored, and returns an error for those that are not.
	Flush(ctx context.Context) error
}

// Snapshot is a job between two steps: everything that the next step depends on, but the data.
type Snapshot struct {
	Progress Progress
	Digest   uint64 // Digest of the parameters at its step, which an average may replace
	// Views gives each tensor's place in Params and in each slot's Data.
	Views  []compute.Tensor
	Params []float32
	Slots  []Slot
	// Lanes is the state of all lanes, [G, LaneSize].
	Lanes    []float32
	LaneSize int // floats per lane: [L, States, H]
}

// Slot is one optimizer value per parameter, with torch.optim's name.
type Slot struct {
	// Name is exp_avg, exp_avg_sq, momentum_buffer, square_avg or sum; outer_momentum_buffer
	// belongs to the outer optimizer.
	Name string
	Data []float32
}

// slotNames names all slots of the inner and the outer optimizer.
func (c *core) slotNames() []string {
	return slices.Concat(c.cfg.Optimizer.SlotNames(), c.cfg.Local.SlotNames(),
		c.cfg.Average.SlotNames())
}

// snapshotter makes snapshots and passes them to the Saver.
type snapshotter struct {
	*core
	copied       *Snapshot // reused by snapshot
	saveErr      error     // error of the last failed save; nil after a later good one
	saveFailures int
}

// NewSnapshot returns a zero snapshot with this job's shapes, for a caller to read into.
func (k *snapshotter) NewSnapshot() *Snapshot {
	s := k.withoutSlots()
	for _, name := range k.slotNames() {
		s.Slots = append(s.Slots, Slot{name, make([]float32, len(s.Params))})
	}
	return s
}

func (k *snapshotter) withoutSlots() *Snapshot {
	return &Snapshot{Views: k.task.Tensors(), Params: make([]float32, len(k.task.Params())),
		Lanes: make([]float32, k.cfg.Lanes*k.laneSize), LaneSize: k.laneSize}
}

// load sets this rank's state from a snapshot.
func (k *snapshotter) load(s *Snapshot) error {
	if err := s.Progress.validate(k.cfg.Steps); err != nil {
		return fmt.Errorf("the checkpoint: %w", err)
	}
	names := k.slotNames()
	named := func(slot Slot, name string) bool { return slot.Name == name }
	if !slices.EqualFunc(s.Slots, names, named) {
		return fmt.Errorf("the checkpoint's optimizer kept other values than %v: give the "+
			"--optimizer (with --sync-every, the --outer-optimizer) that it was made with", names)
	}
	n := len(k.task.Params())
	problems := []error{fits("parameters", s.Params, n),
		fits("lane states", s.Lanes, k.cfg.Lanes*k.laneSize)}
	for _, slot := range s.Slots {
		problems = append(problems, fits(slot.Name, slot.Data, n))
	}
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	if k.cfg.Average.On() { // its own inverse; the slot of one that has not begun is unused
		own := *s
		own.Slots = slices.Clone(s.Slots)
		own.showAverage()
		s = &own
	}
	k.hasState, k.touched = false, true
	k.dev.Upload(k.task.Params(), s.Params)
	k.progress, k.committed, k.joined = s.Progress, k.ring.Generation, 0
	slots := make([][]float32, len(s.Slots))
	for i, slot := range s.Slots {
		slots[i] = slot.Data
	}
	k.slots.Load(slots)
	k.progress.startEvaluations(k.task.EvalData())
	k.pending, k.progress.Pending = s.Progress.Pending, false
	k.stopped, k.hasState = false, true
	e := k.laneStates.At(k.version())
	copy(e.States, s.Lanes)
	e.Know(agree.Lanes{Count: k.cfg.Lanes})
	return nil
}

func fits(what string, x []float32, want int) error {
	if len(x) != want {
		return fmt.Errorf("the checkpoint has %d floats of %s, this job %d: it is of another "+
			"model or --batch", len(x), what, want)
	}
	return nil
}

// snapshot returns the current state. It holds the tensors themselves if they are in host memory,
// and copies otherwise.
func (k *snapshotter) snapshot(progress Progress) (*Snapshot, error) {
	lanes := k.laneStates.At(k.version()).States
	s := Snapshot{Views: k.task.Tensors(), Params: k.task.Params(), Lanes: lanes,
		LaneSize: k.laneSize}
	if !k.cfg.HostMemory {
		if k.copied == nil {
			k.copied = k.withoutSlots()
		}
		s = *k.copied
		k.dev.Download(s.Params, k.task.Params())
		copy(s.Lanes, lanes)
	}
	s.Progress, s.Digest = progress, Digest(s.Params, progress.Commits)
	slots, err := k.slots.Host()
	if err != nil {
		return nil, err
	}
	for i, name := range k.slotNames() {
		if !allFinite(slots[i]) {
			return nil, errNotFinite
		}
		s.Slots = append(s.Slots, Slot{name, slots[i]})
	}
	if k.cfg.Average.On() {
		s.showAverage()
	}
	return &s, nil
}

// saveDue reports whether a checkpoint is due after a step, whatever its evaluation gives.
func (k *snapshotter) saveDue(step int64) bool {
	return k.cfg.Save && (k.cfg.Local.Due(step, k.cfg.SaveEvery) || step == k.cfg.Steps)
}

// save gathers the lanes and shared-out slots over the ranks; rank 0 passes a snapshot to the
// Saver. A failed save does not end the training: it is reported at once, and again at the end if
// no later one succeeds.
func (k *snapshotter) save(ctx context.Context, progress Progress) error {
	if err := k.beginPhase(ctx, PhaseCheckpoint, k.progress.Step); err != nil {
		return err
	}
	if err := k.lastStates().Gather(ctx, k.ranks); err != nil {
		return err
	}
	if err := k.slots.Gather(ctx, false); err != nil {
		return err
	}
	if k.ring.Rank != 0 {
		return nil
	}
	err := k.saveSnapshot(ctx, progress)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		k.saveFailures++
		k.saveErr = fmt.Errorf("step %d was not saved: %w", k.progress.Step, err)
		k.cfg.Observer.Notice(k.saveErr.Error())
		return nil
	}
	k.cfg.Observer.Checkpoint(k.progress.Step)
	return nil
}

// Keep saves the state without a ring and waits until it is stored. A rank calls it when it leaves
// and no other rank holds the state. It does nothing if this rank has no state. It fails if this
// rank lacks some lanes' states; after a Run that ended with Regroup it has all. Work that is due
// after the last step stays pending in the snapshot, since it needs all ranks.
func (k *snapshotter) Keep(ctx context.Context) error {
	if !k.cfg.Save || !k.hasState {
		return nil
	}
	step := k.progress.Step
	if lost := k.lastStates().Lost(); len(lost) > 0 {
		return fmt.Errorf("step %d was not saved: this worker does not know the states of the "+
			"lanes %v; the steps since the newest checkpoint are lost unless others have them",
			step, lost)
	}
	progress := k.progress
	progress.Pending = k.pending
	if err := k.saveSnapshot(ctx, progress); err != nil {
		return fmt.Errorf("step %d was not saved: %w", step, err)
	}
	return k.cfg.Saver.Flush(ctx)
}

// errNotFinite says why a state is not saved.
var errNotFinite = errors.New("the parameters or what the optimizer keeps are not finite: " +
	"lower --lr")

// allFinite reports whether every element is finite.
func allFinite(x []float32) bool {
	const exponent = 0x7f800000 // all ones: an infinity, or not a number
	for _, v := range x {
		if math.Float32bits(v)&exponent == exponent {
			return false
		}
	}
	return true
}

// saveSnapshot passes a snapshot to the Saver, unless it is not finite: such a snapshot would only
// displace a sound one.
func (k *snapshotter) saveSnapshot(ctx context.Context, progress Progress) error {
	if !isFinite(k.dev.SumSquares(k.task.Params())) {
		return errNotFinite
	}
	snapshot, err := k.snapshot(progress)
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil { // a Saver may not check ctx
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.SaveTimeout)
	defer cancel()
	if err := k.cfg.Saver.Save(ctx, snapshot); err != nil {
		return err
	}
	k.saveErr, k.saveFailures = nil, 0 // the newest state is what a later run goes on from
	return nil
}

// flush waits for the Saver at the job's end, and returns the errors of the saves that failed since
// the last good one.
func (k *snapshotter) flush(ctx context.Context) error {
	if !k.cfg.Save || k.ring.Rank != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.SaveTimeout)
	defer cancel()
	err := k.saveErr
	if k.saveFailures > 1 {
		err = fmt.Errorf("%d checkpoints were not saved; the last: %w", k.saveFailures, err)
	}
	if err = errors.Join(err, k.cfg.Saver.Flush(ctx)); err != nil {
		return &SaveError{err}
	}
	return nil
}

// SaveError is returned by a Run that completed its steps, but could not store its state. The
// trainer still has the state, so Keep may succeed later.
type SaveError struct{ Err error }

func (e *SaveError) Error() string { return e.Err.Error() }
func (e *SaveError) Unwrap() error { return e.Err }
