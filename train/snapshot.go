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

// NewSnapshot returns a snapshot of zeros with the shapes of this job, to be read into and
// restored from.
func (t *Trainer) NewSnapshot() *Snapshot {
	s := t.withoutSlots()
	for _, name := range t.slotNames() {
		s.Slots = append(s.Slots, Slot{name, make([]float32, len(s.Params))})
	}
	return s
}

func (t *Trainer) withoutSlots() *Snapshot {
	return &Snapshot{Views: t.task.Tensors(), Params: make([]float32, len(t.task.Params())),
		Lanes: make([]float32, t.cfg.Lanes*t.laneSize), LaneSize: t.laneSize}
}

// load makes a snapshot this rank's state.
func (t *Trainer) load(s *Snapshot) error {
	if err := s.Progress.validate(t.cfg.Steps); err != nil {
		return err
	}
	names := t.slotNames()
	named := func(slot Slot, name string) bool { return slot.Name == name }
	if !slices.EqualFunc(s.Slots, names, named) {
		return fmt.Errorf("the checkpoint's optimizer kept other values than %v: give the "+
			"--optimizer (with --sync-every, the --outer-optimizer) that it was made with", names)
	}
	n := len(t.task.Params())
	problems := []error{fits("parameters", s.Params, n),
		fits("lane states", s.Lanes, t.cfg.Lanes*t.laneSize)}
	for _, slot := range s.Slots {
		problems = append(problems, fits(slot.Name, slot.Data, n))
	}
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	t.hasState, t.touched = false, true
	t.dev.Upload(t.task.Params(), s.Params)
	if t.shards == nil {
		for i, slot := range s.Slots {
			t.dev.Upload(t.slots[i], slot.Data)
		}
	} else {
		t.loadShards(s)
	}
	t.progress, t.committed, t.joined = s.Progress, t.ring.Generation, 0
	t.progress.startEvaluations(t.task.EvalData())
	t.pending, t.progress.Pending = s.Progress.Pending, false
	t.stopped, t.hasState = false, true
	e := t.laneStates.At(t.version())
	copy(e.States, s.Lanes)
	e.Know(agree.Lanes{Count: t.cfg.Lanes})
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
func (t *Trainer) snapshot(progress Progress) (*Snapshot, error) {
	lanes := t.laneStates.At(t.version()).States
	var s *Snapshot
	if t.cfg.HostMemory {
		s = &Snapshot{Progress: progress, Views: t.task.Tensors(), Params: t.task.Params(),
			Lanes: lanes, LaneSize: t.laneSize}
		for i, x := range t.slots {
			s.Slots = append(s.Slots, Slot{t.slotNames()[i], x})
		}
	} else {
		if t.copied == nil && t.shards == nil {
			t.copied = t.NewSnapshot()
		} else if t.copied == nil {
			t.copied = t.withoutSlots()
		}
		s = t.copied
		t.dev.Download(s.Params, t.task.Params())
		for i, x := range t.slots {
			t.dev.Download(s.Slots[i].Data, x)
		}
		copy(s.Lanes, lanes)
		s.Progress = progress
	}
	if t.shards != nil {
		return t.withShards(*s)
	}
	return s, nil
}

// save gathers the lanes on all ranks, and on rank 0 hands a snapshot to the Saver, with what the
// ranks have shared out of the optimizer's. A Saver that fails does not end the training: the
// failure is told at once, and again at the end.
func (t *Trainer) save(ctx context.Context, progress Progress) error {
	if err := t.at(ctx, PhaseCheckpoint, t.progress.Step); err != nil {
		return err
	}
	if err := t.lastStates().Gather(ctx, t.ranks); err != nil {
		return err
	}
	if err := t.gatherShards(ctx, false); err != nil {
		return err
	}
	if t.ring.Rank != 0 {
		return nil
	}
	defer t.dropWhole()
	err := t.handOver(ctx, progress)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		t.saveFailures++
		t.saveErr = fmt.Errorf("step %d was not saved: %w", t.progress.Step, err)
		t.cfg.Observer.Notice(t.saveErr.Error())
		return nil
	}
	t.cfg.Observer.Checkpoint(t.progress.Step)
	return nil
}

// Keep hands the state to the Saver and waits until it is stored, without a ring: for a rank that
// leaves when no other is left to hold it. It does nothing where this rank has no state, and fails
// where it does not know the states of all lanes; after a Run that ended with Regroup it does. What
// is due after the last step needs all lanes, so whoever restores the snapshot does it.
func (t *Trainer) Keep(ctx context.Context) error {
	if !t.cfg.Save || !t.hasState {
		return nil
	}
	step := t.progress.Step
	if lost := t.lastStates().Lost(); len(lost) > 0 {
		return fmt.Errorf("step %d was not saved: this worker does not know the states of the "+
			"lanes %v; the steps since the newest checkpoint are lost unless others have them",
			step, lost)
	}
	progress := t.progress
	progress.Pending = t.pending
	if err := t.handOver(ctx, progress); err != nil {
		return fmt.Errorf("step %d was not saved: %w", step, err)
	}
	return t.cfg.Saver.Flush(ctx)
}

// errNotFinite is why a state is not saved.
var errNotFinite = errors.New("the parameters or what the optimizer keeps are not finite: " +
	"lower --lr")

// handOver gives the Saver a snapshot that can be resumed from: one with a parameter that is not
// finite would only push a sound one out.
func (t *Trainer) handOver(ctx context.Context, progress Progress) error {
	for _, x := range t.tensors() {
		if !isFinite(t.dev.SumSquares(x)) {
			return errNotFinite
		}
	}
	snapshot, err := t.snapshot(progress)
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil { // a Saver may not look
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.SaveTimeout)
	defer cancel()
	return t.cfg.Saver.Save(ctx, snapshot)
}

// flush waits for the Saver at the job's end, and says what it did not save.
func (t *Trainer) flush(ctx context.Context) error {
	if !t.cfg.Save || t.ring.Rank != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.SaveTimeout)
	defer cancel()
	err := t.saveErr
	if t.saveFailures > 1 {
		err = fmt.Errorf("%d checkpoints were not saved; the last: %w", t.saveFailures, err)
	}
	if err = errors.Join(err, t.cfg.Saver.Flush(ctx)); err != nil {
		return &SaveError{err}
	}
	return nil
}

// SaveError is what a Run ends with that has come to its end, but could not store it all. The state
// is still there: Keep may do better later.
type SaveError struct{ Err error }

func (e *SaveError) Error() string { return e.Err.Error() }
func (e *SaveError) Unwrap() error { return e.Err }
