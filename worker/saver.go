package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"rondo/checkpoint"
	"rondo/compute"
	"rondo/job"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// closeTimeout bounds the wait for the last checkpoint when training has ended with an error.
const closeTimeout = 30 * time.Second

// saver saves the trainer's snapshots in the job's checkpoint folder while this worker is rank 0.
type saver struct {
	engine *engine
	spec   json.RawMessage

	writer  *checkpoint.Writer // nil: there is nothing to save
	began   bool               // checkpoints after --resume STEP, of an earlier run, are deleted
	closing sync.WaitGroup     // writers that finish in the background

	mu     sync.Mutex
	newest string // path of the newest checkpoint on storage
}

func newSaver(e *engine) (*saver, error) {
	spec, err := job.SpecText(job.WithFiles(e.worker.spec, e.worker.data))
	if err != nil {
		return nil, fmt.Errorf("the job's spec: %w", err)
	}
	return &saver{engine: e, spec: spec}, nil
}

// startFrom sets the checkpoint from which the job continues.
func (v *saver) startFrom(c *checkpoint.Checkpoint) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.newest = c.Path
}

// saved reports the result of a save. The writer calls it.
func (v *saver) saved(r checkpoint.Result) {
	w := v.engine.worker
	ctx := context.Background() // reports bound their wait themselves
	if r.Err != nil {
		w.notice(ctx, r.Err.Error())
		return
	}
	v.mu.Lock()
	v.newest = r.Path
	v.mu.Unlock()
	v.engine.recorder.saved(r.Step)
	w.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Checkpoint{
		Checkpoint: &rondov1.CheckpointEvent{Step: r.Step, Path: r.Path}}})
	if r.RetainErr != nil {
		w.notice(ctx, r.RetainErr.Error())
	}
}

func (v *saver) path() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.newest
}

// Save implements train.Saver. The other ranks wait in the ring meanwhile.
func (v *saver) Save(ctx context.Context, s *train.Snapshot) error {
	w := v.engine.worker
	ctx, cancel := context.WithTimeout(ctx, v.engine.patience())
	defer cancel()
	if err := v.open(ctx); err != nil {
		return err
	}
	if !v.began {
		// Old checkpoints are deleted only now, when there is a new one to save.
		if err := v.engine.stored.Abandon(ctx, w.spec); err != nil {
			return err
		}
		v.began = true
	}
	training, err := json.Marshal(s.Progress)
	if err != nil {
		return fmt.Errorf("the training's progress: %w", err)
	}
	elapsed, timed := v.engine.stored.Elapsed(time.Now())
	return v.writer.Submit(ctx, checkpoint.Snapshot{
		Step: s.Progress.Step, Epoch: s.Progress.Epoch, Digest: s.Digest, Files: files(s),
		Spec: v.spec, Training: training,
		Vocabulary: w.data.Vocabulary().Tokens(), Outputs: w.data.Outputs(),
		Tokenizer: w.data.Vocabulary().TokenizerJSON(),
		Metrics:   job.Metrics(w.spec, w.data, &s.Progress, elapsed, timed),
	})
}

// open claims the folder, which another worker may have owned meanwhile, and starts the writer if
// there is none.
func (v *saver) open(ctx context.Context) (err error) {
	if err := v.engine.stored.Store.Claim(ctx); err != nil {
		return err
	}
	if v.writer == nil {
		v.writer, err = checkpoint.NewWriter(v.engine.stored.Store, checkpoint.WriterConfig{
			Keep: int(v.engine.worker.spec.CheckpointKeep), Done: v.saved})
	}
	return err
}

// Flush implements train.Saver: it closes the writer, which saves what it holds.
func (v *saver) Flush(ctx context.Context) error {
	writer := v.writer
	v.writer = nil
	if writer == nil {
		return nil
	}
	defer v.engine.worker.pulse.pause()()
	return writer.Close(ctx)
}

// abandonWriter lets the writer finish in the background.
func (v *saver) abandonWriter() {
	if v.writer == nil {
		return
	}
	writer := v.writer
	v.writer = nil
	v.closing.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := writer.Close(ctx); err != nil {
			v.engine.worker.notice(ctx, fmt.Sprintf("a checkpoint was given up by a worker that "+
				"is not rank 0 any more: %v", err))
		}
	})
}

// close waits for all writers.
func (v *saver) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := v.Flush(ctx)
	v.closing.Wait()
	return err
}

// files returns a snapshot's tensors as a checkpoint's files. The optimizer's tensors are named
// SLOT.PARAMETER, for example exp_avg.rnn.weight_ih_l0.
func files(s *train.Snapshot) []checkpoint.File {
	out := []checkpoint.File{{Name: job.ModelFile, Tensors: tensors("", s.Views, s.Params)}}
	optimizer := checkpoint.File{Name: job.OptimizerFile}
	for _, slot := range s.Slots {
		optimizer.Tensors = append(optimizer.Tensors,
			tensors(slot.Name+".", s.Views, slot.Data)...)
	}
	out = append(out, optimizer)
	if s.LaneSize == 0 {
		return out
	}
	return append(out, checkpoint.File{Name: job.LanesFile, Tensors: []checkpoint.Tensor{{
		Name: "state", Shape: []int{len(s.Lanes) / s.LaneSize, s.LaneSize}, Data: s.Lanes}}})
}

func tensors(prefix string, views []compute.Tensor, flat []float32) []checkpoint.Tensor {
	var out []checkpoint.Tensor
	for _, v := range views {
		out = append(out, checkpoint.Tensor{Name: prefix + v.Name, Shape: v.Shape,
			Data: flat[v.Offset : v.Offset+v.Len]})
	}
	return out
}

// readSnapshot reads a checkpoint into a snapshot, which has the job's shapes.
func readSnapshot(
	ctx context.Context, c *checkpoint.Checkpoint, s *train.Snapshot,
) (*train.Snapshot, error) {
	if err := json.Unmarshal(c.Training, &s.Progress); err != nil {
		return nil, fmt.Errorf("manifest.json in %s: the training's progress: %w", c.Path, err)
	}
	for _, f := range files(s) {
		if err := c.ReadInto(ctx, f.Name, f.Tensors); err != nil {
			return nil, err
		}
	}
	return s, nil
}
