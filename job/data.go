// Package job turns a JobSpec into its data, the task on them, a training configuration and a
// checkpoint folder. Workers and commands share it.
package job

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"rondo/checkpoint"
	"rondo/compute"
	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/ahead"
	"rondo/train"
)

// Data is a job's training data, with the task that learns from it. There is one type for each kind
// of data; OpenData chooses it by --task.
type Data interface {
	// Vocabulary has the tokens that the network reads.
	Vocabulary() *corpus.Vocabulary
	// Outputs are the network's outputs, such as labels; nil: the vocabulary.
	Outputs() []string
	// Fingerprint identifies all of the training data and their order.
	Fingerprint() string
	// SegmentsPerEpoch is the same for every epoch, at least 1.
	SegmentsPerEpoch() int64
	// Sizes returns how many tokens there are to train on and to evaluate on.
	Sizes() (training, evaluation int64)
	// EvalData identifies the evaluation data; 0: there are none. A float64 holds it exactly.
	EvalData() int64
	// Batches describes how lanes read the data, for the audit. Offset is the place of a lane's
	// segment in the data.
	Batches() corpus.SamplerConfig
	Offset(segment int64, lane int) int64
	// Extent is the size of the data.
	Extent() Extent
	// NewTask makes the task with a new network on the device. The gradients have room for tail
	// floats behind them. The ledger, unless nil, records what lanes read.
	NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error)
	Close() error
}

// Ledger records what lanes read: see audit.Log.
type Ledger = ahead.Ledger

// Task is a job's task on a device.
type Task struct {
	train.Task
	// Sample writes a text with the network; nil: none.
	Sample func(ctx context.Context, step int64) (string, error)
	close  func()
}

// Close frees the network.
func (t *Task) Close() { t.close() }

// OpenData opens the data of a job, for training and for evaluation.
func OpenData(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	d, err := openTask(ctx, spec)
	if err != nil {
		return nil, err
	}
	if segments := spec.Epochs * d.SegmentsPerEpoch(); spec.Epochs > 0 &&
		segments < spec.Accumulate {
		return nil, errors.Join(d.Close(), app.Usagef("--accumulate %d: --epochs %d have %d "+
			"segments of each lane, less than a step: lower it, or raise --epochs",
			spec.Accumulate, spec.Epochs, segments))
	}
	return d, nil
}

// openTask opens the data of a job's task.
func openTask(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	e, err := taskOf(spec)
	if err != nil {
		return nil, err
	}
	return e.open(ctx, spec)
}

// Extent is the size of a job's data, as its network and its memory depend on it.
type Extent struct {
	Tokens  int   `json:"vocabulary,omitempty"` // of the vocabulary
	Outputs int   `json:"outputs,omitempty"`    // of the network, unless they are the vocabulary
	Rows    int64 `json:"rows,omitempty"`       // examples, or rows of time series; 0: a text
	Longest int   `json:"longest,omitempty"`    // tokens of the longest source or text
	// LongestTarget is the same for the targets of pairs and of vectors.
	LongestTarget int `json:"longest_target,omitempty"`
	Grams         int `json:"ngrams,omitempty"` // different n-grams
}

// extentOf returns the extent in a manifest, as far as the network depends on it.
func extentOf(c *checkpoint.Checkpoint) Extent {
	return Extent{Tokens: len(c.Vocabulary), Outputs: len(c.Outputs),
		Grams: int(c.Metrics[metricGrams])}
}

// mostTokens bounds a job's examples by a measured length: Longest or LongestTarget.
func mostTokens(spec *rondov1.JobSpec, measured int) int {
	if measured == 0 || spec.EvalCorpus != "" { // not measured
		return int(spec.MaxLength)
	}
	return measured
}

// exampleBytes is the memory of an example, whose tokens are read from disk: its lengths and its
// place.
const exampleBytes = 12

// Assumed sizes of data that cannot be read.
const (
	labelsAssumed  = 256
	columnsAssumed = 4096 // of vectors
	gramsAssumed   = 1 << 20
)

// Assume returns an assumed extent of data that cannot be read. Only the number of tokens is known.
func Assume(spec *rondov1.JobSpec, tokens int) Extent {
	// at most all columns of a time series
	data := Extent{Tokens: tokens, Outputs: tokens, Grams: gramsAssumed}
	switch e, err := taskOf(spec); {
	case err != nil:
	case slices.Contains([]examples.Kind{examples.Labelled, examples.Tagged, examples.Trees},
		e.examples):
		data.Outputs = labelsAssumed
	case e.examples == examples.Described:
		data.Tokens = columnsAssumed
	}
	return data
}

// Measure reads a job's --corpus and returns its extent.
func Measure(ctx context.Context, spec *rondov1.JobSpec) (Extent, error) {
	all := proto.CloneOf(spec) // --corpus, however the job divides it
	all.EvalCorpus, all.ValidationFraction, all.Batch, all.Bptt = "", 0, 1, 1
	d, err := openTask(ctx, all)
	if err != nil {
		return Extent{}, err
	}
	return d.Extent(), d.Close()
}

// dataHash is a hash of a text as Data.EvalData returns it.
func dataHash(text string) int64 {
	sum := sha256.Sum256([]byte(text))
	return int64(binary.BigEndian.Uint64(sum[:])>>11) | 1
}

// Steps is the number of steps of the whole job: the lesser of --steps and the whole steps in
// --epochs.
func Steps(spec *rondov1.JobSpec, d Data) int64 {
	steps := spec.Epochs * d.SegmentsPerEpoch() / max(1, spec.Accumulate)
	if spec.Steps > 0 && (steps == 0 || spec.Steps < steps) {
		steps = spec.Steps
	}
	return steps
}

// Ending is the reason for the end of a job that completes its last step.
func Ending(spec *rondov1.JobSpec, d Data) string {
	if spec.Steps > 0 && Steps(spec, d) == spec.Steps {
		return fmt.Sprintf("--steps %d reached", spec.Steps)
	}
	return fmt.Sprintf("--epochs %d done", spec.Epochs)
}
