package job

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"rondo/checkpoint"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/bucket"
	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/corpus"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
)

// The files of a checkpoint.
const (
	ModelFile     = "model.safetensors"
	OptimizerFile = "optimizer.safetensors"
	LanesFile     = "lanes.safetensors"
)

// OpenDevice opens the device that the spec asks for. processes is how many workers share this
// machine; see Threads.
func OpenDevice(spec *rondov1.JobSpec, processes int) (compute.Device, error) {
	if spec.Device == "cuda" {
		return nil, app.Usagef("--device cuda: this build computes on CPUs only; " +
			"use --device cpu or auto")
	}
	precision, err := compute.ParsePrecision(spec.Precision)
	if err != nil {
		return nil, app.Usage(fmt.Errorf("--precision %w", err))
	}
	return cpu.New(cpu.Config{Threads: Threads(spec, processes), Precision: precision})
}

// Share makes a device that OpenDevice has opened for one worker that of one of so many.
func Share(device compute.Device, spec *rondov1.JobSpec, processes int) error {
	d, ok := device.(interface{ SetThreads(count int) error })
	if !ok {
		return nil // it has no threads
	}
	return d.SetThreads(Threads(spec, processes))
}

// Threads is how many threads one of so many workers of this machine computes with: --threads, or
// an equal share of the cores that this process may use, and at least one.
func Threads(spec *rondov1.JobSpec, processes int) int {
	if spec.Threads > 0 {
		return int(spec.Threads)
	}
	return max(1, runtime.GOMAXPROCS(0)/max(1, processes))
}

// Crowded says, in a line for people, that so many processes with so many threads each have fewer
// cores than threads; "" if they have enough, or if threads is 0: they share what there is.
func Crowded(threads, processes, cores int) string {
	if threads == 0 || processes == 0 || threads*processes <= cores {
		return ""
	}
	text := fmt.Sprintf("--threads %d", threads)
	if processes > 1 {
		text += fmt.Sprintf(" in each of %d workers here", processes)
	}
	return text + fmt.Sprintf(" is more than the cores that they may use, %d: threads that wait "+
		"for each other are slow; 0 is as many as there are", cores)
}

// ModelConfig is the model of a job whose vocabulary has so many tokens.
func ModelConfig(spec *rondov1.JobSpec, vocabulary int) (model.Config, error) {
	initial, err := model.ParseInit(spec.Init)
	if err != nil {
		return model.Config{}, app.Usage(err)
	}
	cell, err := compute.ParseCell(spec.Cell)
	if err != nil {
		return model.Config{}, app.Usage(fmt.Errorf("--cell %w", err))
	}
	c := model.Config{
		Cell:       cell,
		Vocab:      vocabulary,
		Embed:      int(spec.Embed),
		Hidden:     int(spec.Hidden),
		Layers:     int(spec.Layers),
		Dropout:    spec.Dropout,
		TieWeights: spec.TieWeights,
		Init:       initial,
		ForgetBias: spec.ForgetBias,
		Seed:       spec.Seed,
		Recompute:  int(spec.Recompute),
	}
	return c, app.Usage(c.Validate())
}

// Trained is a model as a checkpoint holds it.
type Trained struct {
	Spec       *rondov1.JobSpec
	Vocabulary *corpus.Vocabulary
	Model      *model.Model
	Path       string // of the checkpoint
	Step       int64
}

// Use is how a trained model computes, which may differ from how it was trained.
type Use struct {
	Precision string // --precision; "": that of the training
	Threads   int    // --threads; 0: all cores that this process may use
}

// maxThreads bounds Use.Threads, as it does the --threads of a job.
const maxThreads = 1024

// apply makes a spec one of a job that computes so. The threads of the training do not count: it
// may have been done on another machine.
func (u Use) apply(spec *rondov1.JobSpec) error {
	if _, err := u.Count(); err != nil {
		return err
	}
	if u.Precision != "" {
		spec.Precision = u.Precision
	}
	spec.Threads = int64(u.Threads)
	return nil
}

// Count is with how many threads that is on this machine.
func (u Use) Count() (int, error) {
	if u.Threads < 0 {
		return 0, app.Usagef("--threads %d is below its least value, 0", u.Threads)
	}
	if u.Threads > maxThreads {
		return 0, app.Usagef("--threads %d is above its greatest value, %d", u.Threads, maxThreads)
	}
	return Threads(&rondov1.JobSpec{Threads: int64(u.Threads)}, 1), nil
}

// LoadTrained reads the model of a checkpoint, to be used so; location is a folder of checkpoints,
// of which it takes the newest, or the folder of one.
func LoadTrained(ctx context.Context, location string, use Use) (*Trained, error) {
	store, c, err := checkpoint.Resolve(ctx, location,
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
	if err := use.apply(spec); err != nil {
		return nil, err
	}
	vocabulary, err := corpus.NewVocabulary(c.Vocabulary)
	if err != nil {
		return nil, fmt.Errorf("manifest.json in %s: %w", c.Path, err)
	}
	config, err := ModelConfig(spec, vocabulary.Len())
	if err != nil {
		return nil, fmt.Errorf("manifest.json in %s: %w", c.Path, err)
	}
	device, err := OpenDevice(spec, 1)
	if err != nil {
		return nil, err
	}
	t := &Trained{Spec: spec, Vocabulary: vocabulary, Path: c.Path, Step: c.Step}
	if t.Model, err = model.New(config, device); err != nil {
		device.Close()
		return nil, err
	}
	if err := c.ReadInto(ctx, ModelFile, Tensors(t.Model, t.Model.Params())); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Close frees the model and its device.
func (t *Trained) Close() {
	device := t.Model.Device()
	t.Model.Close()
	device.Close()
}

// Tensors are the model's tensors as a checkpoint names them, cut from a flat slice that is laid
// out like its parameters.
func Tensors(m *model.Model, flat []float32) []checkpoint.Tensor {
	var tensors []checkpoint.Tensor
	for _, v := range m.Layout() {
		tensors = append(tensors, checkpoint.Tensor{Name: v.Name, Shape: v.Shape,
			Data: flat[v.Offset : v.Offset+v.Len]})
	}
	return tensors
}

// Text writes a sample: it continues prefix, which the named flag gave, or begins with a line's
// start where that is empty. When ctx's deadline passes it is as long as it has got.
func Text(
	ctx context.Context, m *model.Model, v *corpus.Vocabulary, t corpus.Tokenizer,
	flag, prefix string, tokens int, how model.Sampling,
) (string, error) {
	ids, err := v.Encode(t, prefix)
	if err != nil {
		return "", app.Usage(fmt.Errorf("%s: %w", flag, err))
	}
	given := len(ids)
	if given == 0 {
		ids = []int32{firstToken(v, t)}
	}
	g, err := m.NewGenerator()
	if err != nil {
		return "", err
	}
	defer g.Close()
	next, err := g.Generate(ctx, ids, tokens, how)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return "", err
	}
	return v.Decode(t.Unit, append(ids[:given:given], next...)), nil
}

// firstToken is what an empty prefix stands for: the end of a line, or a space, or the most
// frequent token.
func firstToken(v *corpus.Vocabulary, t corpus.Tokenizer) int32 {
	if t.Unit == corpus.Char {
		for _, token := range []string{"\n", " "} {
			if id := v.ID(token); id != 0 {
				return id
			}
		}
	}
	return int32(min(1, v.Len()-1))
}
