package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// The names of a manifest's metrics.
const (
	metricLoss             = "loss"       // of the last step
	metricEpochLoss        = "epoch_loss" // mean of the epoch so far
	metricEpochPerplexity  = "epoch_perplexity"
	metricTrainTokens      = "train_tokens" // of the text
	metricValidationTokens = "validation_tokens"
	metricTotalSteps       = "total_steps" // of the whole job
	metricSeconds          = "seconds"     // of training, from the job's submission on
)

// Metrics are the figures that a manifest has of a step, beside the training's progress.
func (d *Data) Metrics(
	spec *rondov1.JobSpec, progress *train.Progress, elapsed time.Duration, timed bool,
) checkpoint.Metrics {
	metrics := checkpoint.Metrics{metricLoss: progress.Loss,
		metricTrainTokens: float64(d.Train.Len()), metricTotalSteps: float64(d.Steps(spec))}
	if d.Validation != nil {
		metrics[metricValidationTokens] = float64(d.Validation.Len())
	}
	if loss := progress.EpochLoss(); !math.IsNaN(loss) {
		metrics[metricEpochLoss], metrics[metricEpochPerplexity] = loss, math.Exp(loss)
	}
	if v := progress.Validation; v.Step == progress.Step && v.Step > 0 {
		metrics[checkpoint.ValidationLoss] = v.Loss
		if v.Text != 0 {
			metrics[checkpoint.ValidationText] = float64(v.Text)
		}
	}
	if timed {
		metrics[metricSeconds] = elapsed.Seconds()
	}
	return metrics
}

// Summary says what a checkpoint holds. A nil pointer is a figure that its manifest lacks.
type Summary struct {
	Checkpoint string    `json:"checkpoint"`
	Job        string    `json:"job"`
	Created    time.Time `json:"created"`

	Task       string  `json:"task"`
	Cell       string  `json:"cell"`
	Layers     int64   `json:"layers"`
	Hidden     int64   `json:"hidden"`
	Embed      int64   `json:"embed"` // 0: one-hot input
	Dropout    float64 `json:"dropout"`
	Parameters int     `json:"parameters"`

	Corpus           string   `json:"corpus"`
	Tokenizer        string   `json:"tokenizer"`
	Vocabulary       int      `json:"vocabulary"`
	TrainTokens      *float64 `json:"train_tokens"`
	ValidationTokens *float64 `json:"validation_tokens"`

	Steps      int64    `json:"steps"`
	TotalSteps *float64 `json:"total_steps"`
	Batch      int64    `json:"batch"`
	BPTT       int64    `json:"bptt"`
	Optimizer  string   `json:"optimizer"`
	Rate       float64  `json:"lr"`
	TokensSeen int64    `json:"tokens_seen"`
	Epochs     *float64 `json:"epochs"` // passes over the text
	Seconds    *float64 `json:"seconds"`

	Loss      *float64 `json:"loss"` // of the last step, in nats per token
	EpochLoss *float64 `json:"epoch_loss"`
	// Evaluates says that the job has text to evaluate on, Evaluated what is known of evaluations
	// until this step. ValidationLoss was measured at it. Best is the folder's best checkpoint.
	Evaluates      bool      `json:"evaluates"`
	Evaluated      Evaluated `json:"evaluated"`
	ValidationLoss *float64  `json:"validation_loss"`
	Best           *Best     `json:"best"`

	Repeat   []string `json:"repeat"`   // trains the same again
	GoOn     []string `json:"go_on"`    // trains further
	Generate []string `json:"generate"` // writes text
}

// Evaluated is what a manifest says of evaluations.
type Evaluated string

// The values of Evaluated.
const (
	EvaluatedUnknown Evaluated = "not recorded" // by an older version
	EvaluatedNever   Evaluated = "not yet"
	EvaluatedBefore  Evaluated = "before this step"
	EvaluatedHere    Evaluated = "at this step"
)

// evaluated says what is known of a checkpoint's evaluations; v may be nil.
func evaluated(v *train.Validation, loss *float64) Evaluated {
	switch {
	case loss != nil:
		return EvaluatedHere
	case v == nil:
		return EvaluatedUnknown
	case v.Step == 0:
		return EvaluatedNever
	}
	return EvaluatedBefore
}

// Best is the checkpoint with the lowest validation loss, in nats per token.
type Best struct {
	Step int64   `json:"step"`
	Loss float64 `json:"loss"`
}

// Done reports whether the job has done all its steps.
func (s *Summary) Done() bool { return s.TotalSteps != nil && float64(s.Steps) >= *s.TotalSteps }

// Show summarizes the checkpoint at a location: its own folder, or a folder of checkpoints, whose
// newest it takes and whose best it names.
func Show(ctx context.Context, location string) (*Summary, error) {
	store, c, err := checkpoint.Resolve(ctx, location,
		checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	s, err := Summarize(c, location)
	if err != nil || ownFolder(c.Path, location) {
		return s, err
	}
	best, _, err := store.Best(ctx)
	if errors.Is(err, checkpoint.ErrNone) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.Best = &Best{Step: best.Step, Loss: best.Metrics[checkpoint.ValidationLoss]}
	return s, nil
}

// ownFolder says whether a location is that of one checkpoint, and not of a folder of them.
func ownFolder(path, location string) bool {
	return filepath.Clean(location) == filepath.Clean(path)
}

// Summarize reads a checkpoint's manifest. Location is where the checkpoint was found: its own
// folder, or a folder of checkpoints whose newest it is.
func Summarize(c *checkpoint.Checkpoint, location string) (*Summary, error) {
	spec, config, err := languageModel(c)
	if err != nil {
		return nil, err
	}
	metric := func(name string) *float64 {
		if value, ok := c.Metrics[name]; ok {
			return &value
		}
		return nil
	}
	s := &Summary{Checkpoint: c.Path, Job: c.Job, Created: c.Created,
		Task: spec.Task, Cell: spec.Cell, Layers: spec.Layers, Hidden: spec.Hidden,
		Embed: spec.Embed, Dropout: spec.Dropout, Parameters: model.Count(model.Layout(config)),
		Corpus: spec.Corpus, Tokenizer: spec.Tokenizer, Vocabulary: len(c.Vocabulary),
		TrainTokens:      metric(metricTrainTokens),
		ValidationTokens: metric(metricValidationTokens),
		Steps:            c.Step, TotalSteps: metric(metricTotalSteps), Batch: spec.Batch,
		BPTT: spec.Bptt, Optimizer: spec.Optimizer, Rate: spec.Lr,
		TokensSeen: c.Step * spec.Batch * spec.Bptt * max(1, spec.Accumulate),
		Seconds:    metric(metricSeconds), Loss: metric(metricLoss),
		EpochLoss: metric(metricEpochLoss),
		Evaluates: spec.EvalCorpus != "" || spec.ValidationFraction > 0,
	}
	if s.TrainTokens != nil && *s.TrainTokens > 0 {
		passes := float64(s.TokensSeen) / *s.TrainTokens
		s.Epochs = &passes
	}
	v, err := validation(c)
	if err != nil {
		return nil, err
	}
	s.ValidationLoss = metric(checkpoint.ValidationLoss)
	s.Evaluated = evaluated(v, s.ValidationLoss)
	s.commands(spec, location, v != nil && v.EndsEarly(spec.EarlyStop))
	return s, nil
}

// validation reads from the training's progress what the job remembers of its evaluations; nil:
// the manifest is of a version that did not write it.
func validation(c *checkpoint.Checkpoint) (*train.Validation, error) {
	var progress struct {
		Validation *train.Validation `json:"validation"`
	}
	if len(c.Training) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(c.Training, &progress); err != nil {
		return nil, fmt.Errorf("manifest.json in %s: the training's progress: %w", c.Path, err)
	}
	return progress.Validation, nil
}

// CheckEarlyStop refuses to go on from a checkpoint at which --early-stop ends the job before its
// last step. A job that is evaluated on another text than before goes on.
func (d *Data) CheckEarlyStop(spec *rondov1.JobSpec, c *checkpoint.Checkpoint) error {
	v, err := validation(c)
	if err != nil || v == nil || c.Step >= d.Steps(spec) {
		return err
	}
	if on := v.On(d.EvalText(spec)); on.EndsEarly(spec.EarlyStop) {
		return app.Usagef("the job of the checkpoint %s was ended by --early-stop %d: give "+
			"--early-stop 0 or more than %d to go on", c.Path, spec.EarlyStop, on.Waiting)
	}
	return nil
}

// commands fills in the command lines. Faults and logs that a run was ordered are left out.
// Early says that --early-stop has ended the job.
func (s *Summary) commands(of *rondov1.JobSpec, location string, early bool) {
	spec := proto.CloneOf(of)
	plain := jobspec.Default()
	spec.Resume, spec.Inject, spec.AuditDir, spec.Trace = plain.Resume, "", "", ""
	spec.CheckpointDir = ""
	s.Repeat = append([]string{"rondo", "train"}, jobspec.Arguments(spec)...)
	s.Generate = []string{"rondo", "generate", "--checkpoint", location}
	spec.CheckpointDir = location
	if ownFolder(s.Checkpoint, location) {
		spec.CheckpointDir = filepath.Dir(location)
		if strings.Contains(location, "://") {
			spec.CheckpointDir = location[:strings.LastIndex(location, "/")]
		}
		spec.Resume = strconv.FormatInt(s.Steps, 10)
	}
	if s.Done() { // there is nothing left to do: twice as much is as good an example as any
		spec.Steps, spec.Epochs = 2*spec.Steps, 2*spec.Epochs
	}
	if early {
		spec.EarlyStop = 0
	}
	s.GoOn = append([]string{"rondo", "train"}, jobspec.Arguments(spec)...)
	if early { // though it is the default
		s.GoOn = append(s.GoOn, "--early-stop", "0")
	}
}
