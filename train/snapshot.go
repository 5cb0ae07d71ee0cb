package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"rondo/compute"
	"rondo/train/agree"
)

// Saver keeps snapshots, in the background. It may be given a step again, as another rank 0 may
// have been, when a ring was lost at its end: it is to ignore one that it has stored.
type Saver interface {
	// Save hands a snapshot over. It may wait for room, but not for storage. When it returns, the
	// snapshot's memory is the trainer's again.
	Save(ctx context.Context, s *Snapshot) error
	// Flush waits until all that was handed over is on storage, and says what is not.
	Flush(ctx context.Context) error
}

// Snapshot is a job between two steps: all that the next one depends on, beside the text.
type Snapshot struct {
	Progress Progress
	// Views say where each tensor lies in Params and in each slot's Data.
	Views  []compute.Tensor
	Params []float32
	Slots  []Slot
	// Lanes is the state of all lanes, [G, LaneSize].
	Lanes    []float32
	LaneSize int // floats that a lane carries: [L, States, H]
}

// Slot is what an optimizer keeps for every parameter, under torch.optim's name for it.
type Slot struct {
	// Name is exp_avg, exp_avg_sq, momentum_buffer, square_avg or sum; outer_momentum_buffer is the
	// outer optimizer's.
	Name string
	Data []float32
}

// slotNames are the names of all that the optimizer and the outer one keep.
func (c *core) slotNames() []string {
	return append(slices.Clone(slotNames(c.cfg.Optimizer.Rule)), c.cfg.Local.slots()...)
}

// keeper makes snapshots of the state, and hands them to the Saver.
type keeper struct {
	*core
	copied       *Snapshot // used again by snapshot
	saveErr      error     // of the last save that failed
	saveFailures int
}

// NewSnapshot returns a snapshot of zeros with the shapes of this job, to be read into and
// restored from.
func (k *keeper) NewSnapshot() *Snapshot {
	s := k.withoutSlots()
	for _, name := range k.slotNames() {
		s.Slots = append(s.Slots, Slot{name, make([]float32, len(s.Params))})
	}
	return s
}

func (k *keeper) withoutSlots() *Snapshot {
	return &Snapshot{Views: k.task.Tensors(), Params: make([]float32, len(k.task.Params())),
		Lanes: make([]float32, k.cfg.Lanes*k.laneSize), LaneSize: k.laneSize}
}

// load makes a snapshot this rank's state.
func (k *keeper) load(s *Snapshot) error {
	if err := s.Progress.validate(k.cfg.Steps); err != nil {
		return err
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

// snapshot returns the job as it is. In host memory it has the tensors themselves, and copies of
// them otherwise.
func (k *keeper) snapshot(progress Progress) (*Snapshot, error) {
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
	s.Progress = progress
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
	return &s, nil
}

// save gathers the lanes on all ranks, and on rank 0 hands a snapshot to the Saver, with what the
// ranks have shared out of the optimizer's. A Saver that fails does not end the training: the
// failure is told at once, and again at the end.
func (k *keeper) save(ctx context.Context, progress Progress) error {
	if err := k.at(ctx, PhaseCheckpoint, k.progress.Step); err != nil {
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
	err := k.handOver(ctx, progress)
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

// Keep hands the state to the Saver and waits until it is stored, without a ring: for a rank that
// leaves when no other is left to hold it. It does nothing where this rank has no state, and fails
// where it does not know the states of all lanes; after a Run that ended with Regroup it does. What
// is due after the last step needs all lanes, so whoever restores the snapshot does it.
func (k *keeper) Keep(ctx context.Context) error {
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
	if err := k.handOver(ctx, progress); err != nil {
		return fmt.Errorf("step %d was not saved: %w", step, err)
	}
	return k.cfg.Saver.Flush(ctx)
}

// errNotFinite is why a state is not saved.
var errNotFinite = errors.New("the parameters or what the optimizer keeps are not finite: " +
	"lower --lr")

// handOver gives the Saver a snapshot that can be resumed from: one with a parameter that is not
// finite would only push a sound one out.
func (k *keeper) handOver(ctx context.Context, progress Progress) error {
	if !isFinite(k.dev.SumSquares(k.task.Params())) {
		return errNotFinite
	}
	snapshot, err := k.snapshot(progress)
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil { // a Saver may not look
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.SaveTimeout)
	defer cancel()
	return k.cfg.Saver.Save(ctx, snapshot)
}

// flush waits for the Saver at the job's end, and says what it did not save.
func (k *keeper) flush(ctx context.Context) error {
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

// SaveError is what a Run ends with that has come to its end, but could not store it all. The state
// is still there: Keep may do better later.
type SaveError struct{ Err error }

func (e *SaveError) Error() string { return e.Err.Error() }
func (e *SaveError) Unwrap() error { return e.Err }
