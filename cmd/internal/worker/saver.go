package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"rondo/checkpoint"
	"rondo/cmd/internal/job"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// closeTimeout bounds the wait for the last checkpoint when training has ended with an error.
const closeTimeout = 30 * time.Second

// saver keeps the trainer's snapshots in the job's checkpoint folder.
type saver struct {
	session *session
	writer  *checkpoint.Writer
	spec    json.RawMessage

	abandon bool // what lies after the checkpoint that the job went on from must go first
	flushed bool // the writer has been closed, and its error told

	mu     sync.Mutex
	newest string // path of the newest checkpoint on storage
}

func newSaver(s *session) (*saver, error) {
	spec, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(s.spec)
	if err != nil {
		return nil, fmt.Errorf("the job's spec: %w", err)
	}
	v := &saver{session: s, spec: spec}
	if s.found != nil {
		v.newest, v.abandon = s.found.Path, true
	}
	v.writer, err = checkpoint.NewWriter(s.stored.Store, checkpoint.WriterConfig{
		Keep: int(s.spec.CheckpointKeep), Done: v.saved})
	return v, err
}

// saved hears of each save from the writer.
func (v *saver) saved(r checkpoint.Result) {
	ctx := context.Background() // Report bounds its wait itself
	if r.Err != nil {
		v.session.notice(ctx, r.Err.Error())
		return
	}
	v.mu.Lock()
	v.newest = r.Path
	v.mu.Unlock()
	v.session.report(ctx, &rondov1.Event{Kind: &rondov1.Event_Checkpoint{
		Checkpoint: &rondov1.CheckpointEvent{Step: r.Step, Path: r.Path}}})
	if r.RetainErr != nil {
		v.session.notice(ctx, r.RetainErr.Error())
	}
}

func (v *saver) path() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.newest
}

// Save implements train.Saver. The other ranks meet this one again in the ring, so it takes half
// of what they wait there at most.
func (v *saver) Save(ctx context.Context, s *train.Snapshot) error {
	if v.session.stored.OnlyStopped && s.Progress.Step == v.session.data.Steps(v.session.spec) {
		return nil // the job was not stopped
	}
	ctx, cancel := context.WithTimeout(ctx, v.session.spec.ChunkTimeout.AsDuration()/2)
	defer cancel()
	if v.abandon {
		// Not earlier: until there is something new to keep, nothing old is given up.
		err := v.session.stored.Abandon(ctx, v.session.spec, v.session.found)
		if err != nil {
			return err
		}
		v.abandon = false
	}
	training, err := json.Marshal(s.Progress)
	if err != nil {
		return fmt.Errorf("the training's progress: %w", err)
	}
	metrics := map[string]float64{"loss": s.Progress.Loss}
	if loss := s.Progress.EpochLoss(); !math.IsNaN(loss) {
		metrics["epoch_loss"], metrics["epoch_perplexity"] = loss, math.Exp(loss)
	}
	return v.writer.Submit(ctx, checkpoint.Snapshot{
		Step: s.Progress.Step, Epoch: s.Progress.Epoch, Files: files(s), Spec: v.spec,
		Training:   training,
		Vocabulary: v.session.data.Corpus.Vocabulary().Tokens(), Metrics: metrics,
	})
}

// Flush implements train.Saver: it closes the writer, which waits for what it holds.
func (v *saver) Flush(ctx context.Context) error {
	v.flushed = true
	return v.writer.Close(ctx)
}

// close waits for what the writer holds when training has ended with an error.
func (v *saver) close() error {
	if v.flushed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return v.writer.Close(ctx)
}

// files are a snapshot's tensors as a checkpoint has them. The optimizer's are named
// SLOT.PARAMETER, such as exp_avg.rnn.weight_ih_l0.
func files(s *train.Snapshot) []checkpoint.File {
	out := []checkpoint.File{{Name: job.ModelFile, Tensors: tensors("", s.Views, s.Params)}}
	optimizer := checkpoint.File{Name: job.OptimizerFile}
	for _, slot := range s.Slots {
		optimizer.Tensors = append(optimizer.Tensors,
			tensors(slot.Name+".", s.Views, slot.Data)...)
	}
	lanes := checkpoint.File{Name: job.LanesFile, Tensors: []checkpoint.Tensor{{Name: "state",
		Shape: []int{len(s.Lanes) / s.LaneSize, s.LaneSize}, Data: s.Lanes}}}
	return append(out, optimizer, lanes)
}

func tensors(prefix string, views []model.View, flat []float32) []checkpoint.Tensor {
	var out []checkpoint.Tensor
	for _, v := range views {
		out = append(out, checkpoint.Tensor{Name: prefix + v.Name, Shape: v.Shape,
			Data: flat[v.Offset : v.Offset+v.Len]})
	}
	return out
}

// readSnapshot fills a snapshot of the job's shapes from a checkpoint.
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
