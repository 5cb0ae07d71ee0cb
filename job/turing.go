package job

import (
	"context"
	"fmt"

	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/memory"
	"rondo/task/turing"
	"rondo/telemetry"
)

// generated is the Data of the task turing: sequences that are generated.
type generated struct {
	spec       *rondov1.JobSpec
	training   *turing.Sequences
	evaluation *turing.Sequences // nil: no evaluation
	evaluated  string            // --corpus or --eval-corpus
	vocabulary *corpus.Vocabulary
}

func openGenerated(_ context.Context, spec *rondov1.JobSpec) (Data, error) {
	d := generated{spec: spec, evaluated: spec.Corpus}
	problem, err := turing.ParseProblem(spec.Corpus, spec.Seed, turing.Training)
	if err != nil {
		return nil, app.Usage(err)
	}
	d.training = turing.NewTraining(problem, int(spec.Batch))
	d.vocabulary, err = corpus.NewVocabulary(append([]string{corpus.Unknown},
		problem.InputNames()...))
	if err != nil {
		return nil, err
	}
	if spec.EvalCorpus != "" {
		d.evaluated = spec.EvalCorpus
	}
	if spec.EvalCorpus != "" || spec.ValidationFraction > 0 {
		d.evaluation, err = openSequences(d.evaluated, spec, d.Extent(), int(spec.Batch))
	}
	return d, err
}

// openSequences opens a problem to evaluate a network on.
func openSequences(
	name string, spec *rondov1.JobSpec, of Extent, lanes int,
) (*turing.Sequences, error) {
	problem, err := turing.ParseProblem(name, spec.Seed, turing.Evaluation)
	if err != nil {
		return nil, app.Usage(err)
	}
	in, out := len(problem.InputNames()), len(problem.OutputNames())
	if in != of.Tokens-1 || out != of.Outputs {
		return nil, app.Usagef("corpus %s has %d inputs and %d outputs, and the network %d and "+
			"%d: give the problem that it learns, of any lengths", name, in, out, of.Tokens-1,
			of.Outputs)
	}
	return turing.NewEvaluation(problem, lanes), nil
}

// Vocabulary implements Data: the unknown token, which is not used, and the names of the inputs.
func (d generated) Vocabulary() *corpus.Vocabulary { return d.vocabulary }

// Outputs implements Data.
func (d generated) Outputs() []string { return d.training.Problem.OutputNames() }

// Fingerprint implements Data.
func (d generated) Fingerprint() string { return fmt.Sprintf("%v %d", d.spec.Corpus, d.spec.Seed) }

// SegmentsPerEpoch implements Data.
func (d generated) SegmentsPerEpoch() int64 { return d.training.SegmentsPerEpoch() }

// Sizes implements Data: the steps of an epoch and of an evaluation.
func (d generated) Sizes() (training, evaluation int64) {
	if d.evaluation != nil {
		evaluation = d.evaluation.Steps()
	}
	return d.training.Steps(), evaluation
}

// EvalData implements Data.
func (d generated) EvalData() int64 {
	if d.evaluation == nil {
		return 0
	}
	return dataHash(fmt.Sprintf("%s %d", d.evaluated, d.spec.Seed))
}

// Batches implements Data.
func (d generated) Batches() corpus.SamplerConfig {
	return corpus.SamplerConfig{Tokens: d.SegmentsPerEpoch() * d.spec.Batch,
		Lanes: int(d.spec.Batch), Seed: d.spec.Seed, Sampling: corpus.Examples}
}

// Offset implements Data: the number of the lane's sequence in its epoch.
func (d generated) Offset(segment int64, lane int) int64 {
	return segment%d.SegmentsPerEpoch()*d.spec.Batch + int64(lane)
}

// Extent implements Data.
func (d generated) Extent() Extent {
	longest := d.training.Problem.LongestSteps()
	if d.evaluation != nil {
		longest = max(longest, d.evaluation.Problem.LongestSteps())
	}
	return Extent{Tokens: d.vocabulary.Len(), Outputs: len(d.Outputs()), Longest: longest}
}

// Close implements Data.
func (generated) Close() error { return nil }

// turingConfig is the network of a job of the task turing.
func turingConfig(spec *rondov1.JobSpec, data Extent) (c turing.Config, err error) {
	c = turing.Config{Inputs: data.Tokens - 1, Outputs: data.Outputs, Hidden: int(spec.Hidden),
		FeedForward: spec.Controller == "feed-forward", Rows: int(spec.MemoryRows),
		Width: int(spec.MemoryWidth), Heads: int(spec.Heads), Shift: int(spec.Shift),
		Seed: spec.Seed}
	if c.Inputs < 1 || c.Outputs < 1 {
		return c, app.Usagef("--vocab %d, --outputs %d: a network has at least one input (--vocab "+
			"2) and one output", data.Tokens, data.Outputs)
	}
	return c, nil
}

// turingNetwork is what a job of the task turing trains.
func turingNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := turingConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	n := memoryNetwork[turing.Example](c, c.Workspace(data.Longest))
	n.Tokens = data.Tokens
	return n, nil
}

// NewTask implements Data.
func (d generated) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := turingConfig(d.spec, d.Extent())
	if err != nil {
		return nil, err
	}
	reads := memory.Config[turing.Example]{Training: d.training, EvalData: d.EvalData(),
		Ledger: ledger, Tail: tail}
	if d.evaluation != nil {
		reads.Evaluation = d.evaluation
	}
	return newMemoryTask(c, device, reads)
}

// evaluateTuring measures a network of the task turing on a problem.
func evaluateTuring(
	ctx context.Context, t *Trained, source string, _ Search,
) (e telemetry.Eval, err error) {
	of := Extent{Tokens: t.Vocabulary.Len(), Outputs: len(t.Outputs)}
	from, err := openSequences(source, t.Spec, of, scoredTogether)
	if err != nil {
		return e, err
	}
	return scoreMemory(ctx, t, from, scoredTogether)
}
