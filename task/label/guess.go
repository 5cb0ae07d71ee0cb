package label

import (
	"context"
	"fmt"
	"slices"

	"rondo/model"
)

// guess finds the most likely labels of batches.
type guess struct {
	config    model.LabellerConfig
	lanes     int
	logits    []float32
	predicted []int32 // [rows, lanes], of the last batch
	row       []int32
}

func newGuess(c model.LabellerConfig, steps, lanes int) *guess {
	if c.Pool != model.PoolNone {
		steps = 1
	}
	return &guess{config: c, lanes: lanes, logits: make([]float32, steps*lanes*c.Labels),
		predicted: make([]int32, steps*lanes), row: make([]int32, steps)}
}

// labels predicts the labels of a batch, and returns the summed loss of its targets.
func (g *guess) labels(pass *model.LabelPass, in model.Examples) (lossSum float64, err error) {
	rows := g.lanes
	if g.config.Pool == model.PoolNone {
		rows *= in.Steps
	}
	C := g.config.Labels
	if lossSum, err = pass.Predict(in, g.logits[:rows*C]); err != nil {
		return 0, err
	}
	for i := range rows {
		logits := g.logits[i*C : (i+1)*C]
		best := 0
		for label, x := range logits {
			if x > logits[best] {
				best = label
			}
		}
		g.predicted[i] = int32(best)
	}
	return lossSum, nil
}

// column copies a lane's labels from [rows, lanes]: one, or one for each token. The next call
// overwrites them.
func (g *guess) column(labels []int32, lane, length int) []int32 {
	if g.config.Pool != model.PoolNone {
		length = 1
	}
	column := make([]int32, length)
	for i := range column {
		column[i] = labels[i*g.lanes+lane]
	}
	return column
}

// Labels predicts the labels of texts, each of at least one token.
func Labels(ctx context.Context, l *model.Labeller, texts [][]int32) ([][]int32, error) {
	longest := 0
	for _, tokens := range texts {
		if len(tokens) == 0 {
			return nil, fmt.Errorf("a text without a token")
		}
		longest = max(longest, len(tokens))
	}
	lanes := min(len(texts), maxTogether)
	if lanes == 0 {
		return nil, nil
	}
	pass, err := l.NewPass(longest, lanes)
	if err != nil {
		return nil, err
	}
	defer pass.Close()
	g := newGuess(l.Config(), longest, lanes)
	var out [][]int32
	for part := range slices.Chunk(texts, lanes) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		in := pad(part, lanes)
		if _, err := g.labels(pass, in); err != nil {
			return nil, err
		}
		for lane := range part {
			out = append(out, g.column(g.predicted, lane, len(part[lane])))
		}
	}
	return out, nil
}

// maxTogether bounds the texts of a pass.
const maxTogether = 64

// pad makes a batch of texts, at most as many as lanes.
func pad(texts [][]int32, lanes int) model.Examples {
	in := model.Examples{Lengths: make([]int32, lanes)}
	for lane, tokens := range texts {
		in.Lengths[lane] = int32(len(tokens))
		in.Steps = max(in.Steps, len(tokens))
	}
	in.Inputs = make([]int32, in.Steps*lanes)
	for lane, tokens := range texts {
		for i, id := range tokens {
			in.Inputs[i*lanes+lane] = id
		}
	}
	return in
}
