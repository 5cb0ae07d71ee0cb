package job

import (
	"context"
	"errors"
	"io"

	"rondo/compute"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/fill"
	"rondo/task/label"
	"rondo/telemetry"
)

// maskedText is the Data of the task fill, and of a language model that reads in both directions.
type maskedText struct{ *Text }

func openHidden(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	d, err := openText(ctx, spec)
	if err != nil {
		return nil, err
	}
	return maskedText{d.(*Text)}, nil
}

// hiddenNetwork is the network of the task fill. Its labels are the vocabulary.
func hiddenNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	data.Outputs = data.Tokens
	return networkOfLabels(spec, data, int(spec.Bptt))
}

// hiddenText is a text as the lanes of such a job read it.
func hiddenText(spec *rondov1.JobSpec, c fill.TextConfig, blank int32) *fill.Text {
	c.BPTT = int(spec.Bptt)
	if spec.Task == task.Fill {
		c.Blanks = hiddenBlanks(spec, blank)
	}
	return fill.NewText(c)
}

// hiddenBlanks chooses the blanks of such a job's segments.
func hiddenBlanks(spec *rondov1.JobSpec, blank int32) fill.Blanks {
	return fill.Blanks{Token: blank, Share: spec.Blanks, Seed: spec.Seed}
}

// NewTask implements Data.
func (d maskedText) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	data, blank, lanes := d.Extent(), d.Vocabulary().ID(fill.Blank), int(d.spec.Batch)
	data.Outputs = data.Tokens
	c, err := labellerConfig(d.spec, data)
	if err != nil {
		return nil, err
	}
	c.GradientTail = tail
	l, err := model.NewLabeller(c, device)
	if err != nil {
		return nil, err
	}
	reads := label.Config{EvalData: d.EvalData(), Ledger: ledger, Counter: fill.Counter{},
		Training: hiddenText(d.spec, fill.TextConfig{Tokens: d.training, Lanes: lanes,
			Sampler: d.sampler}, blank)}
	if d.validation != nil {
		reads.Evaluation = hiddenText(d.spec, fill.TextConfig{Tokens: d.validation,
			Lanes: lanes}, blank)
	}
	t := &Task{Task: label.New(l, reads), close: l.Close}
	w, err := d.writer()
	if err != nil {
		l.Close()
		return nil, err
	}
	if d.spec.Task == task.LM && w != nil {
		t.Sample = func(ctx context.Context, step int64) (string, error) {
			g, err := l.NewGenerator(int(d.spec.Bptt))
			if err != nil {
				return "", err
			}
			return w.At(step).Write(ctx, g)
		}
	}
	return t, nil
}

// evaluateHidden measures a network of the task fill on a text.
func evaluateHidden(
	ctx context.Context, t *Trained, source string, _ Search,
) (e telemetry.Eval, err error) {
	text, err := t.openText(ctx, source)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, text.Close()) }()
	data := hiddenText(t.Spec, fill.TextConfig{Tokens: text.Tokens(), Lanes: label.MaxTogether},
		t.Vocabulary.ID(fill.Blank))
	counts := make([]int64, fill.Counter{}.Counters())
	score, err := label.ScoreData(ctx, t.weights.(*model.Labeller), data, label.MaxTogether,
		func(predicted, right []int32) { fill.Counter{}.Count(counts, predicted, right) })
	if err != nil {
		return e, err
	}
	return t.scored(score.Loss, score.Targets, fill.Counter{}.Metrics(counts)...), nil
}

// Fill fills the blanks in the lines of standard input, where the mark stands for each.
func (t *Trained) Fill(
	ctx context.Context, in io.Reader, mark string, each func(fill.Line) error,
) error {
	if mark == "" {
		return app.Usagef("--mark is empty: give the text that stands for a blank")
	}
	p := fill.NewPredictor(t.weights.(*model.Labeller), t.Vocabulary)
	defer p.Close()
	f := fill.Filler{Predictor: p, Vocabulary: t.Vocabulary, Tokenizer: Tokenizer(t.Spec),
		Mark: mark}
	return t.input(f.Lines(ctx, in, each))
}
