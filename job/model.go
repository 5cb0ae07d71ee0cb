package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/lm"
	"rondo/telemetry"
	"rondo/train"
	"rondo/train/optim"
)

// The files of a checkpoint.
const (
	ModelFile     = "model.safetensors"
	OptimizerFile = "optimizer.safetensors"
	LanesFile     = "lanes.safetensors"
)

// ModelConfig is the model of a job; vocabulary is the number of tokens.
func ModelConfig(spec *rondov1.JobSpec, vocabulary int) (model.Config, error) {
	c, err := modelConfig(spec, vocabulary)
	if err != nil {
		return c, err
	}
	return c, app.Usage(c.Validate())
}

// modelConfig is ModelConfig without a check.
func modelConfig(spec *rondov1.JobSpec, vocabulary int) (model.Config, error) {
	initial, err := model.ParseInit(spec.Init)
	if err != nil {
		return model.Config{}, app.Usage(err)
	}
	cell, err := compute.ParseCell(spec.Cell)
	if err != nil {
		return model.Config{}, app.Usage(fmt.Errorf("--cell %w", err))
	}
	periods := compute.Periods{}
	if cell == compute.Clockwork {
		if periods, err = compute.ParsePeriods(spec.Periods); err != nil {
			return model.Config{}, app.Usage(err)
		}
	}
	cutoffs, err := compute.ParseCutoffs(spec.AdaptiveSoftmax)
	if err != nil {
		return model.Config{}, app.Usagef("--adaptive-softmax %w", err)
	}
	c := model.Config{
		Cell:          cell,
		Vocab:         vocabulary,
		Embed:         int(spec.Embed),
		Hidden:        int(spec.Hidden),
		Layers:        int(spec.Layers),
		Dropout:       spec.Dropout,
		DropoutInput:  spec.DropoutInput,
		DropoutLocked: spec.DropoutLocked,
		DropoutWords:  spec.DropoutWords, WeightDrop: spec.WeightDrop,
		ActivationL2: spec.ActivationL2, TemporalL2: spec.TemporalL2,
		LayerNorm: spec.LayerNorm, Skip: spec.SkipConnections,
		HiddenBackward: int(spec.HiddenBackward), SkipThroughTime: int(spec.SkipThroughTime),
		DeepInput: int(spec.DeepInput), DeepTransition: int(spec.DeepTransition),
		DeepOutput:     int(spec.DeepOutput),
		TieWeights:     spec.TieWeights,
		Cutoffs:        cutoffs,
		Init:           initial,
		ForgetBias:     spec.ForgetBias,
		Leak:           spec.Leak,
		Periods:        periods,
		Seed:           spec.Seed,
		Recompute:      int(spec.Recompute),
		LabelSmoothing: spec.LabelSmoothing,
		Omega:          spec.Omega,
	}
	if spec.DropoutOutput >= 0 {
		c.DropoutOutput = &spec.DropoutOutput
	}
	return c, nil
}

// Trained is a network loaded from a checkpoint.
type Trained struct {
	Spec       *rondov1.JobSpec
	Vocabulary *corpus.Vocabulary
	Outputs    []string // what it predicts; nil: the vocabulary
	Path       string   // of the checkpoint
	Why        string   // reason for this step; empty if the location names the step
	Step       int64
	Metrics    checkpoint.Metrics

	weights
}

// Use says how to compute with a trained model, which may differ from its training.
type Use struct {
	Device    string // --device; "": auto
	Precision string // --precision; "": the training's, or fp32 if the device lacks that
	Threads   int    // --threads; 0: all cores that this process may use
}

// maxThreads bounds Use.Threads, like a job's --threads.
const maxThreads = 1024

// apply sets the spec's device, threads and precision. The training's device and threads do not
// count: it may have run on another machine.
func (u Use) apply(spec *rondov1.JobSpec) error {
	if _, err := u.Count(); err != nil {
		return err
	}
	spec.Device, spec.Threads = cmp.Or(u.Device, "auto"), int64(u.Threads)
	if task.OnHost(spec.Task) {
		if device, err := jobspec.ParseDevice(spec.Device); err != nil || device.CUDA {
			return app.Usagef("--device %s: --task %s computes on the CPU: leave it out",
				spec.Device, spec.Task)
		}
		spec.Device = "cpu"
	}
	if u.Precision != "" {
		spec.Precision = u.Precision
		return nil
	}
	chosen, err := Choose(spec.Device)
	if len(chosen.GPUs) == 0 && jobspec.OfGPUs(spec.Precision) {
		spec.Precision = compute.FP32.String()
	}
	return err
}

// Count is the number of threads on this machine.
func (u Use) Count() (int, error) {
	if u.Threads < 0 {
		return 0, app.Usagef("--threads %d is below its least value, 0", u.Threads)
	}
	if u.Threads > maxThreads {
		return 0, app.Usagef("--threads %d is above its greatest value, %d", u.Threads, maxThreads)
	}
	return Threads(&rondov1.JobSpec{Threads: int64(u.Threads)}, 1), nil
}

// LoadTrained reads the network of a checkpoint of one of these tasks. location is a checkpoint's
// own folder, or a folder of checkpoints: then it takes the one with the lowest validation loss, or
// the newest if none has one.
func LoadTrained(
	ctx context.Context, location string, use Use, tasks ...string,
) (*Trained, error) {
	store, c, why, err := checkpoint.ResolveBest(ctx, location,
		checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		if errors.Is(err, checkpoint.ErrNone) {
			err = app.Usage(err)
		}
		return nil, err
	}
	defer func() { _ = store.Close() }()
	spec, err := Spec(c)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(tasks, spec.Task) {
		return nil, app.Usagef("checkpoint %s was trained with --task %s, and this needs --task "+
			"%s: give another folder", c.Path, spec.Task, strings.Join(tasks, " or "))
	}
	if err := jobspec.ValidateFields(spec); err != nil {
		return nil, fmt.Errorf("manifest.json in %s: %s", c.Path, err.Error()) // no UsageError
	}
	if err := use.apply(spec); err != nil {
		return nil, err
	}
	vocabulary, err := corpus.StoredVocabulary(c.Vocabulary, c.Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("manifest.json in %s: %w", c.Path, err)
	}
	device, err := OpenDevice(spec, 1)
	if err != nil {
		return nil, err
	}
	t := &Trained{Spec: spec, Vocabulary: vocabulary, Outputs: c.Outputs, Path: c.Path,
		Step: c.Step, Why: why, Metrics: c.Metrics}
	network, err := NetworkOf(spec, extentOf(c))
	if err == nil {
		err = matches(ctx, c, network)
	}
	if err == nil {
		t.weights, err = network.make(device)
	}
	if err != nil {
		device.Close()
		return nil, fmt.Errorf("manifest.json in %s: %w", c.Path, err)
	}
	if err := t.read(ctx, c); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// matches checks the network of a manifest against the tensors in the file of parameters, before
// the network takes memory.
func matches(ctx context.Context, c *checkpoint.Checkpoint, network Network) error {
	infos, err := c.Tensors(ctx, ModelFile)
	if err != nil {
		return err
	}
	shapes := make(map[string][]int, len(infos))
	for _, info := range infos {
		shapes[info.Name] = info.Shape
	}
	for _, t := range network.Tensors {
		if shape, ok := shapes[t.Name]; !ok || !slices.Equal(shape, t.Shape) {
			return fmt.Errorf("its network has a tensor %q %v, and %s has %v", t.Name, t.Shape,
				ModelFile, shape)
		}
	}
	return nil
}

// SavedDigest reads a checkpoint's parameters and returns their train.Digest. Each tensor begins at
// a multiple of model.Alignment; zeros are between them.
func SavedDigest(
	ctx context.Context, c *checkpoint.Checkpoint,
) (digest uint64, file string, err error) {
	var progress train.Progress
	if err := json.Unmarshal(c.Training, &progress); err != nil {
		return 0, "", &checkpoint.DamageError{File: "manifest.json", Path: c.Path,
			Problem: fmt.Sprintf("has no training progress: %v", err)}
	}
	file = ModelFile
	var prefix string
	if progress.Average.Count > 0 { // the model's file has the average
		file, prefix = OptimizerFile, optim.TrainingWeights+"."
	}
	tensors, err := c.ReadAll(ctx, file)
	if err != nil {
		return 0, file, err
	}
	var params []float32
	for _, t := range tensors {
		if !strings.HasPrefix(t.Name, prefix) {
			continue
		}
		params = append(params, t.Data...)
		params = append(params, make([]float32, -len(params)&(model.Alignment-1))...)
	}
	return train.Digest(params, progress.Commits), file, nil
}

// read reads the parameters into the device, through host memory if the device has its own.
func (t *Trained) read(ctx context.Context, c *checkpoint.Checkpoint) (err error) {
	defer compute.Catch(&err)
	params, device := t.Params(), t.Device()
	if HostMemory(device) {
		return c.ReadInto(ctx, ModelFile, Tensors(t.Layout(), params))
	}
	staged := make([]float32, len(params))
	if err := c.ReadInto(ctx, ModelFile, Tensors(t.Layout(), staged)); err != nil {
		return err
	}
	device.Upload(params, staged)
	return nil
}

// Evaluate measures the network on other data.
func (t *Trained) Evaluate(ctx context.Context, source string, how Search) (telemetry.Eval, error) {
	e, err := taskOf(t.Spec)
	if err != nil {
		return telemetry.Eval{}, err
	}
	if _, reads := t.weights.(*model.Model); how.Reading != (lm.Reading{}) &&
		!(reads && t.Spec.Task == task.LM) {
		return telemetry.Eval{}, app.Usagef("--rows, --dynamic and --cache are for networks of " +
			"--task lm that read in one direction: leave them out")
	}
	if err := how.Reading.Validate(); err != nil {
		return telemetry.Eval{}, app.Usage(err)
	}
	return e.evaluate(ctx, t, source, how)
}

// scored is the result of an evaluation: the loss, summed over targets, and the task's metrics.
func (t *Trained) scored(sum float64, targets int64, metrics ...train.Metric) telemetry.Eval {
	loss := sum / float64(targets)
	e := telemetry.Eval{Step: t.Step, Tokens: targets, Loss: loss,
		Perplexity: telemetry.Perplexity(loss), BitsPerToken: loss / math.Ln2}
	for _, m := range metrics {
		e.Metrics = append(e.Metrics, telemetry.Metric(m))
	}
	return e
}

// Close frees the network and its device.
func (t *Trained) Close() {
	device := t.Device()
	t.weights.Close()
	device.Close()
}

// Tensors are a network's tensors under their checkpoint names, as views of flat, which is laid out
// like the parameters.
func Tensors(layout []model.View, flat []float32) []checkpoint.Tensor {
	var tensors []checkpoint.Tensor
	for _, v := range layout {
		tensors = append(tensors, checkpoint.Tensor{Name: v.Name, Shape: v.Shape,
			Data: flat[v.Offset : v.Offset+v.Len]})
	}
	return tensors
}
