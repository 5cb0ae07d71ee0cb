package train

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"rondo/model"
)

// Saver keeps snapshots, in the background.
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
	Views  []model.View
	Params []float32
	Slots  []Slot
	// Lanes is the state of all lanes, [G, LaneSize].
	Lanes    []float32
	LaneSize int // floats that a lane carries: [L, States, H]
}

// Slot is what an optimizer keeps for every parameter, under torch.optim's name for it.
type Slot struct {
	Name string // exp_avg, exp_avg_sq, momentum_buffer, square_avg or sum
	Data []float32
}

// NewSnapshot returns a snapshot of zeros with the shapes of this job, to be read into and
// restored from.
func (t *Trainer) NewSnapshot() *Snapshot {
	n := len(t.model.Params())
	s := &Snapshot{Views: t.model.Layout(), Params: make([]float32, n),
		Lanes: make([]float32, t.all*t.laneSize), LaneSize: t.laneSize}
	for _, name := range slotNames(t.cfg.Optimizer.Rule) {
		s.Slots = append(s.Slots, Slot{name, make([]float32, n)})
	}
	return s
}

// Restore puts the job where it was when the snapshot was taken, on however many ranks: every rank
// gets the whole snapshot. It is called before Run, on all ranks or on none.
func (t *Trainer) Restore(s *Snapshot) error {
	if err := s.Progress.validate(t.cfg.Steps); err != nil {
		return err
	}
	names := slotNames(t.cfg.Optimizer.Rule)
	named := func(slot Slot, name string) bool { return slot.Name == name }
	if !slices.EqualFunc(s.Slots, names, named) {
		return fmt.Errorf("the checkpoint's optimizer kept other values than %v: give the "+
			"--optimizer that it was made with", names)
	}
	n := len(t.model.Params())
	problems := []error{fits("parameters", s.Params, n),
		fits("lane states", s.Lanes, t.all*t.laneSize)}
	for _, slot := range s.Slots {
		problems = append(problems, fits(slot.Name, slot.Data, n))
	}
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	if err := t.segment.SetState(s.Lanes[t.first*t.laneSize:][:t.count*t.laneSize]); err != nil {
		return err
	}
	t.dev.Upload(t.model.Params(), s.Params)
	for i, slot := range s.Slots {
		t.dev.Upload(t.slots[i], slot.Data)
	}
	t.progress = s.Progress
	return nil
}

func fits(what string, x []float32, want int) error {
	if len(x) != want {
		return fmt.Errorf("the checkpoint has %d floats of %s, this job %d: it is of another "+
			"model or --batch", len(x), what, want)
	}
	return nil
}

// gatherLanes gives every rank the state of all lanes.
func (t *Trainer) gatherLanes(ctx context.Context) error {
	own := t.lanes[t.first*t.laneSize:][:t.count*t.laneSize]
	if err := t.segment.State(own); err != nil || t.reducer == nil {
		return err
	}
	return t.reducer.AllGather(ctx, t.lanes, t.laneFloats)
}

// snapshot returns the job as it is. In host memory it has the tensors themselves, and copies of
// them otherwise.
func (t *Trainer) snapshot() *Snapshot {
	if t.cfg.HostMemory {
		s := &Snapshot{Progress: t.progress, Views: t.model.Layout(), Params: t.model.Params(),
			Lanes: t.lanes, LaneSize: t.laneSize}
		for i, name := range slotNames(t.cfg.Optimizer.Rule) {
			s.Slots = append(s.Slots, Slot{name, t.slots[i]})
		}
		return s
	}
	if t.copied == nil {
		t.copied = t.NewSnapshot()
	}
	s := t.copied
	t.dev.Download(s.Params, t.model.Params())
	for i := range s.Slots {
		t.dev.Download(s.Slots[i].Data, t.slots[i])
	}
	copy(s.Lanes, t.lanes)
	s.Progress = t.progress
	return s
}

// save gathers the lanes on all ranks, and on rank 0 hands a snapshot to the Saver. A Saver that
// fails does not end the training: the failure is told at once, and again at the end.
func (t *Trainer) save(ctx context.Context) error {
	if err := t.gatherLanes(ctx); err != nil {
		return fmt.Errorf("gathering the lanes' state: %w", err)
	}
	if t.cfg.Rank != 0 {
		return nil
	}
	err := t.handOver(ctx)
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

// handOver gives the Saver a snapshot that can be resumed from: one with a parameter that is not
// finite would only push a sound one out.
func (t *Trainer) handOver(ctx context.Context) error {
	for _, x := range append([][]float32{t.model.Params()}, t.slots...) {
		if !isFinite(t.dev.SumSquares(x)) {
			return errors.New("the parameters or what the optimizer keeps are not finite: " +
				"lower --lr")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.SaveTimeout)
	defer cancel()
	return t.cfg.Saver.Save(ctx, t.snapshot())
}

// flush waits for the Saver at the job's end, and says what it did not save.
func (t *Trainer) flush(ctx context.Context) error {
	if !t.cfg.Save || t.cfg.Rank != 0 {
		return nil
	}
	err := t.saveErr
	if t.saveFailures > 1 {
		err = fmt.Errorf("%d checkpoints were not saved; the last: %w", t.saveFailures, err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.SaveTimeout)
	defer cancel()
	return errors.Join(err, t.cfg.Saver.Flush(ctx))
}
