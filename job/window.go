package job

import (
	"context"
	"errors"

	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/count"
	"rondo/task/mlp"
	"rondo/telemetry"
)

// windowText is the Data of the task mlp.
type windowText struct {
	*Text
	countedExamples
}

// openWindows opens a text of which each token is predicted from those before it.
func openWindows(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	opened, err := openText(ctx, withoutSampler(spec))
	if err != nil {
		return nil, err
	}
	text := opened.(*Text)
	if n := text.training.Len(); n < spec.Order {
		return nil, errors.Join(text.Close(), app.Usagef("corpus %s has %d tokens to train on, "+
			"and --order is %d: give a longer text, or lower it", spec.Corpus, n, spec.Order))
	}
	reads := count.NewText(text.training, spec.Order-1, int(spec.Batch), int(spec.Bptt)).Apart()
	return windowText{text, countedExamples{spec, reads}}, nil
}

// windowConfig is the network of a job of the task mlp.
func windowConfig(spec *rondov1.JobSpec, vocabulary int) (model.WindowConfig, error) {
	initial, err := model.ParseInit(spec.Init)
	if err != nil {
		return model.WindowConfig{}, app.Usage(err)
	}
	c := model.WindowConfig{Vocab: vocabulary, Embed: int(spec.Embed), Hidden: int(spec.Hidden),
		Layers: int(spec.Layers), Reads: int(spec.Order - 1), Init: initial, Seed: spec.Seed}
	return c, app.Usage(c.Validate())
}

// windowNetwork is the network of the task mlp.
func windowNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := windowConfig(spec, data.Tokens)
	if err != nil {
		return Network{}, err
	}
	return Network{Tensors: c.Layout(), Tokens: c.Vocab,
		make: func(on compute.Device) (weights, error) { return model.NewWindow(c, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			work = c.PassSize(on, int(spec.Bptt)*lanes)
			if spec.SampleTokens > 0 {
				work = work.And(c.PassSize(on, 1))
			}
			return work, evaluation
		}}, nil
}

// NewTask implements Data.
func (d windowText) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := windowConfig(d.job, d.Vocabulary().Len())
	if err != nil {
		return nil, err
	}
	c.GradientTail = tail
	reads := mlp.Config{Training: d.reads, EvalData: d.EvalData(), Ledger: ledger,
		BPTT: int(d.job.Bptt)}
	if d.validation != nil {
		reads.Evaluation = count.NewText(d.validation, 1, int(d.job.Batch), int(d.job.Bptt))
	}
	w, err := d.writer()
	if err != nil {
		return nil, err
	}
	network, err := model.NewWindow(c, device)
	if err != nil {
		return nil, err
	}
	t := &Task{Task: mlp.New(network, reads), close: network.Close}
	if w != nil {
		t.Sample = func(ctx context.Context, step int64) (string, error) {
			g, err := mlp.NewGenerator(network)
			if err != nil {
				return "", err
			}
			return w.At(step).Write(ctx, g)
		}
	}
	return t, nil
}

// evaluateWindows measures a network of the task mlp on a text.
func evaluateWindows(
	ctx context.Context, t *Trained, source string, _ Search,
) (telemetry.Eval, error) {
	return t.scoreText(ctx, source, func(text corpus.Tokens) (float64, int64, error) {
		return mlp.Score(ctx, t.weights.(*model.Window), text)
	})
}
