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
	"rondo/task"
	"rondo/train"
	"rondo/train/optim"
)

// The names of a manifest's metrics.
const (
	metricLoss             = "loss"       // of the last step
	metricEpochLoss        = "epoch_loss" // mean of the epoch so far
	metricEpochPerplexity  = "epoch_perplexity"
	metricTrainTokens      = "train_tokens" // of the text
	metricValidationTokens = "validation_tokens"
	metricEpochSegments    = "epoch_segments"
	metricTotalSteps       = "total_steps" // of the whole job
	metricSeconds          = "seconds"     // of training, from the job's submission on
	metricGrams            = "ngrams"      // different ones
)

// Metrics are a step's figures in the manifest, beside the training's progress.
func Metrics(
	spec *rondov1.JobSpec, d Data, progress *train.Progress, elapsed time.Duration, timed bool,
) checkpoint.Metrics {
	training, evaluation := d.Sizes()
	metrics := checkpoint.Metrics{metricLoss: progress.Loss,
		metricTrainTokens: float64(training), metricTotalSteps: float64(Steps(spec, d)),
		metricEpochSegments: float64(d.SegmentsPerEpoch())}
	if evaluation > 0 {
		metrics[metricValidationTokens] = float64(evaluation)
	}
	if loss := progress.EpochLoss(); !math.IsNaN(loss) {
		metrics[metricEpochLoss] = loss
		if !task.SquaredError(spec.Task) {
			metrics[metricEpochPerplexity] = math.Exp(loss)
		}
	}
	if v := progress.Validation; v.Step == progress.Step && v.Step > 0 {
		metrics[checkpoint.ValidationLoss] = v.Loss
		if v.Text != 0 {
			metrics[checkpoint.ValidationText] = float64(v.Text)
		}
	}
	if s, ok := d.(interface{ scaleMetrics(checkpoint.Metrics) }); ok {
		s.scaleMetrics(metrics)
	}
	if n := d.Extent().Grams; n > 0 {
		metrics[metricGrams] = float64(n)
	}
	if timed {
		metrics[metricSeconds] = elapsed.Seconds()
	}
	return metrics
}

// Summary describes a checkpoint. A nil pointer is a figure that its manifest lacks.
type Summary struct {
	Checkpoint string    `json:"checkpoint"`
	Job        string    `json:"job"`
	Created    time.Time `json:"created"`

	Task   string `json:"task"`
	Cell   string `json:"cell"`
	Layers int64  `json:"layers"`
	Hidden int64  `json:"hidden"`
	Embed  int64  `json:"embed"` // 0: one-hot input
	// Bidirectional: each layer has Hidden units forward, and HiddenBackward, or with 0 as many,
	// backward.
	Bidirectional  bool    `json:"bidirectional,omitempty"`
	HiddenBackward int64   `json:"hidden_backward,omitempty"`
	Dropout        float64 `json:"dropout"`
	Parameters     int     `json:"parameters"`
	// Sums describes the summed data of a task that does not train by gradients. Cell, Layers,
	// Embed, Dropout, Optimizer and Rate do not count then.
	Sums string `json:"sums,omitempty"`
	// Memory describes a network with an explicit memory, or of trees. Cell, Layers, Embed and
	// Dropout do not count then.
	Memory string `json:"memory,omitempty"`

	Corpus           string   `json:"corpus"`
	Tokenizer        string   `json:"tokenizer"`
	Vocabulary       int      `json:"vocabulary"`
	Outputs          int      `json:"outputs,omitempty"` // labels, or tokens of the target
	TrainTokens      *float64 `json:"train_tokens"`
	ValidationTokens *float64 `json:"validation_tokens"`

	Steps      int64    `json:"steps"`
	TotalSteps *float64 `json:"total_steps"`
	Batch      int64    `json:"batch"`
	BPTT       int64    `json:"bptt,omitempty"` // of the language model
	Optimizer  string   `json:"optimizer"`
	Rate       float64  `json:"lr"`
	TokensSeen int64    `json:"tokens_seen"`
	Epochs     *float64 `json:"epochs"` // passes over the text
	Seconds    *float64 `json:"seconds"`

	Loss      *float64 `json:"loss"` // of the last step, in nats per token
	EpochLoss *float64 `json:"epoch_loss"`
	// Evaluates: the job has text to evaluate on. Evaluated is the state of its evaluations up to
	// this step. ValidationLoss is this step's. Best is the folder's best checkpoint.
	Evaluates      bool      `json:"evaluates"`
	Evaluated      Evaluated `json:"evaluated"`
	ValidationLoss *float64  `json:"validation_loss"`
	Best           *Best     `json:"best"`

	Repeat []string `json:"repeat"` // repeats the training
	GoOn   []string `json:"go_on"`  // continues it
	Use    []string `json:"use"`    // uses the network, such as rondo generate
}

// Evaluated is a manifest's knowledge of evaluations.
type Evaluated string

// The values of Evaluated.
const (
	EvaluatedUnknown Evaluated = "not recorded" // by an older version
	EvaluatedNever   Evaluated = "not yet"
	EvaluatedBefore  Evaluated = "before this step"
	EvaluatedHere    Evaluated = "at this step"
)

// evaluated judges by the progress v, which may be nil, and the step's own validation loss.
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

// Show summarizes the checkpoint at a location: its own folder, or a folder of checkpoints. Of a
// folder it takes the newest, and names the best.
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

// ownFolder reports whether a location is a checkpoint's own folder, not a folder of checkpoints.
func ownFolder(path, location string) bool {
	return filepath.Clean(location) == filepath.Clean(path)
}

// Summarize reads a checkpoint's manifest. location is the checkpoint's own folder, or a folder
// whose newest checkpoint it is.
func Summarize(c *checkpoint.Checkpoint, location string) (*Summary, error) {
	spec, err := Spec(c)
	if err != nil {
		return nil, err
	}
	of, err := taskOf(spec)
	if err != nil {
		return nil, app.Usagef("checkpoint %s was trained with --task %s, which this version does "+
			"not know: use the version that made it, or a later one", c.Path, spec.Task)
	}
	network, err := NetworkOf(spec, extentOf(c))
	if err != nil {
		return nil, fmt.Errorf("manifest.json in %s: %w", c.Path, err)
	}
	metric := func(name string) *float64 {
		if value, ok := c.Metrics[name]; ok {
			return &value
		}
		return nil
	}
	s := &Summary{Checkpoint: c.Path, Job: c.Job, Created: c.Created,
		Task: spec.Task, Cell: spec.Cell, Layers: spec.Layers, Hidden: spec.Hidden,
		Embed: spec.Embed, Bidirectional: spec.Bidirectional,
		HiddenBackward: spec.HiddenBackward, Dropout: spec.Dropout,
		Parameters: model.Count(network.Tensors),
		Corpus:     spec.Corpus, Tokenizer: spec.Tokenizer, Vocabulary: len(c.Vocabulary),
		Outputs:          len(c.Outputs),
		TrainTokens:      metric(metricTrainTokens),
		ValidationTokens: metric(metricValidationTokens),
		Steps:            c.Step, TotalSteps: metric(metricTotalSteps), Batch: spec.Batch,
		Optimizer: spec.Optimizer, Rate: spec.Lr,
		Seconds: metric(metricSeconds), Loss: metric(metricLoss),
		EpochLoss: metric(metricEpochLoss),
		Evaluates: spec.EvalCorpus != "" || spec.ValidationFraction > 0,
	}
	switch spec.Task {
	case task.NGram:
		s.Sums = fmt.Sprintf("counts of %d tokens, %s", spec.Order, spec.Smoothing)
	case task.MLP:
		s.Cell, s.Dropout = fmt.Sprintf("perceptron on %d tokens", spec.Order-1), 0
	case task.HMM:
		s.Sums = fmt.Sprintf("hidden Markov model of %d states", spec.States)
	case task.Reservoir:
		s.Sums = fmt.Sprintf("reservoir of %d units, spectral radius %g, leak %g", spec.Hidden,
			spec.SpectralRadius, spec.Leak)
	case task.Tree:
		s.Memory = fmt.Sprintf("%s over trees, %d wide, embedding of %d", spec.TreeCell,
			spec.Hidden, spec.Embed)
	case task.Answer:
		s.Memory = fmt.Sprintf("memory network, %d wide, %d hops over %d sentences, %s",
			spec.Hidden, spec.Hops, spec.MemoryRows, spec.Tying)
	case task.Turing:
		s.Memory = fmt.Sprintf("neural Turing machine, memory %d x %d, %s controller of %d units",
			spec.MemoryRows, spec.MemoryWidth, spec.Controller, spec.Hidden)
	}
	s.count(spec, metric(metricEpochSegments))
	v, err := validation(c)
	if err != nil {
		return nil, err
	}
	s.ValidationLoss = metric(checkpoint.ValidationLoss)
	s.Evaluated = evaluated(v, s.ValidationLoss)
	s.commands(spec, of.command, location, v != nil && v.EndsEarly(spec.EarlyStop))
	return s, nil
}

// count fills in the amount of data that the job has read. epoch is the number of segments of an
// epoch; nil: an older version did not record it.
func (s *Summary) count(spec *rondov1.JobSpec, epoch *float64) {
	segments := s.Steps * max(1, spec.Accumulate)
	if task.Segments(spec.Task) && !counts(spec) {
		s.BPTT = spec.Bptt
	}
	if s.BPTT > 0 && !spec.BpttRandom {
		s.TokensSeen = segments * spec.Batch * spec.Bptt
		if s.TrainTokens != nil && *s.TrainTokens > 0 {
			passes := float64(s.TokensSeen) / *s.TrainTokens
			s.Epochs = &passes
		}
	} else if epoch != nil && *epoch > 0 && s.TrainTokens != nil {
		passes := float64(segments) / *epoch
		s.Epochs, s.TokensSeen = &passes, int64(passes**s.TrainTokens)
	}
}

// validation reads the evaluations' part of the training's progress; nil: an older version wrote
// the manifest, without it.
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

// CheckEarlyStop refuses to continue from a checkpoint at which --early-stop ended the job, unless
// its steps are done. A job that is evaluated on another text than before may continue.
func CheckEarlyStop(spec *rondov1.JobSpec, d Data, c *checkpoint.Checkpoint) error {
	v, err := validation(c)
	if err != nil || v == nil || c.Step >= Steps(spec, d) {
		return err
	}
	if on := v.On(d.EvalData()); on.EndsEarly(spec.EarlyStop) {
		return app.Usagef("the job of the checkpoint %s was ended by --early-stop %d: give "+
			"--early-stop 0 or more than %d to go on", c.Path, spec.EarlyStop, on.Waiting)
	}
	return nil
}

// OtherRates returns a warning if a job goes on from a checkpoint of a job of another length, and
// the learning rates depend on that: then the steps are not those of one run. "": no warning.
func OtherRates(spec *rondov1.JobSpec, d Data, c *checkpoint.Checkpoint) string {
	kind, steps := optim.ScheduleKind(spec.LrSchedule), Steps(spec, d)
	before, known := c.Metrics[metricTotalSteps]
	if kind != optim.Cosine && kind != optim.Linear || !known || before == float64(steps) {
		return ""
	}
	return fmt.Sprintf("--lr-schedule %s falls over all steps of the job, which were %.0f at the "+
		"checkpoint of step %d and are %d now: one run of %d steps would have had other rates "+
		"before it", kind, before, c.Step, steps, steps)
}

// commands fills in the command lines, without the run's --inject, logs and traces. early:
// --early-stop has ended the job.
func (s *Summary) commands(of *rondov1.JobSpec, command, location string, early bool) {
	spec := proto.CloneOf(of)
	plain := jobspec.Default()
	spec.Resume, spec.Inject, spec.AuditDir, spec.Trace = plain.Resume, "", "", ""
	spec.CheckpointDir = ""
	s.Repeat = append([]string{"rondo", "train"}, jobspec.Arguments(spec)...)
	s.Use = []string{"rondo", command, "--checkpoint", location}
	spec.CheckpointDir = location
	if ownFolder(s.Checkpoint, location) {
		spec.CheckpointDir = filepath.Dir(location)
		if strings.Contains(location, "://") {
			spec.CheckpointDir = location[:strings.LastIndex(location, "/")]
		}
		spec.Resume = strconv.FormatInt(s.Steps, 10)
	}
	if s.Done() && !task.Once(of.Task) { // nothing is left to do: suggest twice as much
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
