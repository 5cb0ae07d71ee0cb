package label

import (
	"context"
	"math"

	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/example"
	"rondo/train"
)

// guess finds the most likely labels of batches.
type guess struct {
	config    model.LabellerConfig
	reserved  int // the first labels, which are not predicted
	lanes     int
	logits    []float32
	predicted []int32 // [rows, lanes], of the last batch
}

func newGuess(c model.LabellerConfig, steps, lanes int) *guess {
	rows := c.Rows(steps) * lanes
	return &guess{config: c, lanes: lanes, logits: make([]float32, rows*c.Labels),
		predicted: make([]int32, rows)}
}

// labels predicts the labels of a batch, and returns the summed loss of its targets.
func (g *guess) labels(pass *model.LabelPass, in model.Examples) (lossSum float64, err error) {
	rows, C := g.config.Rows(in.Steps)*g.lanes, g.config.Labels
	if lossSum, err = pass.Predict(in, g.logits[:rows*C]); err != nil {
		return 0, err
	}
	for i := range rows {
		logits := g.logits[i*C : (i+1)*C]
		best := min(g.reserved, C-1)
		for label := best; label < C; label++ {
			if logits[label] > logits[best] {
				best = label
			}
		}
		g.predicted[i] = int32(best)
	}
	return lossSum, nil
}

// probabilities returns those of a lane's predicted labels: softmax(logits).
func (g *guess) probabilities(lane, length int) []float32 {
	C := g.config.Labels
	predicted := g.column(g.predicted, lane, length)
	out := make([]float32, len(predicted))
	for i, best := range predicted {
		logits := g.logits[(i*g.lanes+lane)*C:][:C]
		sum := 0.0
		for _, x := range logits {
			sum += math.Exp(float64(x - logits[best]))
		}
		out[i] = float32(1 / sum)
	}
	return out
}

// column copies a lane's labels from [rows, lanes]: one, or one for each token. The next call
// overwrites them.
func (g *guess) column(labels []int32, lane, length int) []int32 {
	column := make([]int32, g.config.Rows(length))
	for i := range column {
		column[i] = labels[i*g.lanes+lane]
	}
	return column
}

// score scores what these lanes read in an epoch. It calls each with an example's predicted and
// right labels, and add with the score of a segment, without counts.
func score(
	ctx context.Context, d Data, pass *model.LabelPass, c model.LabellerConfig,
	lanes train.Lanes, each func(predicted, right []int32), add func(train.Score),
) error {
	spans := train.Spans(d.SegmentsPerEpoch(), lanes)
	reader := read(ctx, d, spans, nil, lanes.Count)
	defer reader.Close()
	g := newGuess(c, d.Longest(), lanes.Count)
	for at := range spans {
		b, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		loss, err := g.labels(pass, b.in)
		if err != nil {
			return err
		}
		for lane, length := range b.in.Lengths {
			if length > 0 {
				each(g.column(g.predicted, lane, int(length)),
					g.column(b.in.Targets, lane, int(length)))
			}
		}
		add(train.Score{Loss: loss, Targets: d.Targets(at.Segment, lanes)})
	}
	return nil
}

// Score scores all examples of a set, forward only. It calls each with an example's predicted and
// right labels.
func Score(
	ctx context.Context, l *model.Labeller, set *examples.Set,
	each func(predicted, right []int32),
) (all train.Score, err error) {
	lanes := int(min(set.Len(), MaxTogether))
	batches, err := examples.NewEvaluation(set, lanes)
	if err != nil {
		return all, err
	}
	return ScoreData(ctx, l, &Examples{example.Data{Set: set, Batches: batches}, l.Config().Pool},
		lanes, each)
}

// ScoreData likewise scores an epoch of data that are dealt to so many lanes.
func ScoreData(
	ctx context.Context, l *model.Labeller, d Data, lanes int,
	each func(predicted, right []int32),
) (all train.Score, err error) {
	pass, err := l.NewPass(d.Longest(), lanes)
	if err != nil {
		return all, err
	}
	defer pass.Close()
	err = score(ctx, d, pass, l.Config(), train.Lanes{Count: lanes}, each,
		func(part train.Score) {
			all.Loss += part.Loss
			all.Targets += part.Targets
		})
	return all, err
}

// Prediction is the labels of a text, one or one for each token, with their probabilities.
type Prediction struct {
	Labels        []int32
	Probabilities []float32
}

// Predictor predicts the labels of texts.
type Predictor struct {
	// Reserved is the number of first labels that are not predicted.
	Reserved int
	// Blank keeps lines without a token: see lines.Reader. They have no labels.
	Blank bool

	labeller *model.Labeller
	most     int              // tokens of a text
	pass     *model.LabelPass // nil: none yet
	steps    int              // of pass
}

// NewPredictor makes a predictor for texts of at most so many tokens. Close frees it.
func NewPredictor(l *model.Labeller, most int) *Predictor {
	return &Predictor{labeller: l, most: most}
}

// grow makes a pass of at least so many steps.
func (p *Predictor) grow(steps int) (err error) {
	if steps <= p.steps {
		return nil
	}
	steps = max(steps, min(2*p.steps, p.most)) // so that there are few
	p.Close()
	if p.pass, err = p.labeller.NewPass(steps, MaxTogether); err == nil {
		p.steps = steps
	}
	return err
}

// Predict predicts the labels of at most MaxTogether texts. Only a network of one label for each
// token takes a text without tokens.
func (p *Predictor) Predict(texts [][]int32) ([]Prediction, error) {
	in := model.Examples{Lengths: make([]int32, MaxTogether)}
	for lane, tokens := range texts {
		in.Lengths[lane] = int32(len(tokens))
		in.Steps = max(in.Steps, len(tokens))
	}
	if in.Steps == 0 {
		return make([]Prediction, len(texts)), nil
	}
	in.Inputs = make([]int32, in.Steps*MaxTogether)
	for lane, tokens := range texts {
		for i, id := range tokens {
			in.Inputs[i*MaxTogether+lane] = id
		}
	}
	if err := p.grow(in.Steps); err != nil {
		return nil, err
	}
	g := newGuess(p.labeller.Config(), in.Steps, MaxTogether)
	g.reserved = p.Reserved
	if _, err := g.labels(p.pass, in); err != nil {
		return nil, err
	}
	all := make([]Prediction, len(texts))
	for lane, tokens := range texts {
		all[lane] = Prediction{g.column(g.predicted, lane, len(tokens)),
			g.probabilities(lane, len(tokens))}
	}
	return all, nil
}

// Close frees the predictor.
func (p *Predictor) Close() {
	if p.pass != nil {
		p.pass.Close()
	}
	p.pass, p.steps = nil, 0
}

// MaxTogether is how many texts are predicted or scored at once.
const MaxTogether = 16
