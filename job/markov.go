package job

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"rondo/compute"
	"rondo/corpus"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/count"
	"rondo/task/hmm"
	"rondo/task/label"
	"rondo/task/lines"
	"rondo/telemetry"
)

// markovText is the Data of the task hmm.
type markovText struct {
	*Text
	countedExamples
}

// openMarkov opens a text that is cut into sequences.
func openMarkov(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	opened, err := openText(ctx, withoutSampler(spec))
	if err != nil {
		return nil, err
	}
	text := opened.(*Text)
	reads := count.NewText(text.training, 0, int(spec.Batch), int(spec.Bptt))
	return markovText{text, countedExamples{spec, reads}}, nil
}

// markovConfig is the model of a job of the task hmm.
func markovConfig(spec *rondov1.JobSpec, vocabulary int) hmm.Config {
	return hmm.Config{States: int(spec.States), Vocabulary: vocabulary, Pseudo: spec.PseudoCount,
		Seed: spec.Seed}
}

// chainBytes is the host memory of a parameter: the last counts, probabilities and expected counts.
const chainBytes = 4 + 4 + 8 + 8

// markovNetwork is what a job of the task hmm trains.
func markovNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c := markovConfig(spec, data.Tokens)
	tensors := hmm.Layout(c)
	parameters := c.States * (1 + c.States + c.Vocabulary)
	return Network{Tensors: tensors, Tokens: c.Vocabulary,
		// the states behind a sequence, and the model
		data: 8*spec.Bptt*(spec.States+1) + chainBytes*int64(parameters),
		make: func(on compute.Device) (weights, error) { return hmm.New(c, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			tokens := int(spec.Bptt) * lanes // two batches, one of them in use
			return on.TensorSize(parameters).And(on.TensorSize(2 * tokens)), evaluation
		}}, nil
}

// NewTask implements Data.
func (d markovText) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c := markovConfig(d.job, d.Vocabulary().Len())
	c.Tokens, c.Sequences = d.training.Len(), d.reads.Examples()
	reads := count.Config{Training: d.reads, EvalData: d.EvalData(), Ledger: ledger, Tail: tail}
	if d.validation != nil {
		reads.Evaluation = count.NewText(d.validation, 0, int(d.job.Batch), int(d.job.Bptt))
	}
	m, err := hmm.New(c, device)
	if err != nil {
		return nil, err
	}
	return d.newCounting(m, reads)
}

// evaluateMarkov measures a hidden Markov model on a text.
func evaluateMarkov(
	ctx context.Context, t *Trained, source string, _ Search,
) (telemetry.Eval, error) {
	return t.scoreText(ctx, source, func(text corpus.Tokens) (float64, int64, error) {
		return t.weights.(*hmm.Model).LogLoss(ctx, text)
	})
}

// mostDecoded bounds a line whose states are asked for, in tokens.
const mostDecoded = 1 << 14

// states finds the likeliest hidden states of lines of text.
func (t *Trained) states(
	ctx context.Context, m *hmm.Model, in io.Reader, each func(label.Line) error,
) error {
	encode := func(line string) ([]int32, error) {
		ids, err := t.encode(line)
		if err == nil && len(ids) > mostDecoded {
			err = fmt.Errorf("it has %d tokens, and the most is %d: split it", len(ids),
				mostDecoded)
		}
		return ids, err
	}
	reader := lines.Reader{Encode: encode, Most: mostDecoded, Together: 1}
	return reader.Read(ctx, in, func(texts []string, tokens [][]int32) error {
		for i, text := range texts {
			path, err := m.States(tokens[i])
			if err != nil {
				return err
			}
			line := label.Line{Text: text}
			for k, state := range path {
				line.Tokens = append(line.Tokens, t.Vocabulary.Token(tokens[i][k]))
				line.Labels = append(line.Labels, strconv.Itoa(int(state)))
			}
			if err := each(line); err != nil {
				return err
			}
		}
		return nil
	})
}
