//go:build cuda

package job

import (
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/model"
	"rondo/task/describe"
)

// TestTranslatorOnGPU holds translators with each kind of attention, and those of vectors, on the
// GPU against the CPU's: gradients that are staged, losses, and the log probabilities of hypotheses
// that change places.
func TestTranslatorOnGPU(t *testing.T) {
	if !onGPU(t) {
		return
	}
	plain := model.TranslatorConfig{Cell: compute.LSTM, SourceVocab: 7, TargetVocab: 9, Embed: 6,
		Hidden: 16, Layers: 2, Dropout: 0.3, DropoutInput: 0.2, LabelSmoothing: 0.1, Seed: 7}
	cases := map[string]model.TranslatorConfig{}
	for kind, name := range model.AttentionNames() {
		c := plain
		c.Bidirectional, c.Attention = true, model.AttentionKind(kind)
		switch c.Attention {
		case model.AttentionScaled:
			c.Feedback = model.FeedbackOutput
		case model.AttentionLuong:
			c.DeepInput, c.DeepTransition, c.DeepOutput = 2, 1, 1
		case model.AttentionBahdanau:
			c.Feedback, c.LayerNorm, c.Skip = model.FeedbackHidden, true, true
			c.DeepInput, c.DeepOutput, c.HiddenBackward = 1, 1, 8
		}
		cases[name] = c
	}
	for context, way := range describe.VectorUses() {
		c := plain
		c.Vectors, c.Context = 5, model.Context(context)
		c.Ends, c.End, c.Lengths = model.Ends(context), 2, 8
		cases["vectors as "+way] = c
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			batches := make([]model.Pairs, 3)
			for i := range batches {
				batches[i] = randomPairs(rng, c, 6-i, 5-i, 3)
			}
			compareGPU(t, func(on compute.Device) [][]float32 {
				return translatedOn(t, c, on, batches)
			})
		})
	}
}

// randomPairs draws a batch of pairs of up to S and T tokens in B lanes, one of them empty.
func randomPairs(rng *rand.Rand, c model.TranslatorConfig, S, T, B int) model.Pairs {
	in := model.Pairs{SourceSteps: S, TargetSteps: T, Scale: 0.5, Step: int64(T)}
	for range S * B {
		in.Source = append(in.Source, int32(rng.IntN(c.SourceVocab)))
	}
	for b := range B {
		in.SourceLengths = append(in.SourceLengths, int32(rng.IntN(S)+1))
		in.Lanes = append(in.Lanes, 3*b)
	}
	in.SourceLengths[B-1] = 0
	for i := range T * B {
		in.Inputs = append(in.Inputs, int32(rng.IntN(c.TargetVocab)))
		in.Targets = append(in.Targets, int32(rng.IntN(c.TargetVocab)))
		if i%B == B-1 {
			in.Targets[i] = -1
		}
	}
	return in
}

// translatedOn returns each batch's gradients and losses, and then the log probabilities of three
// steps.
func translatedOn(
	t *testing.T, c model.TranslatorConfig, dev compute.Device, batches []model.Pairs,
) (all [][]float32) {
	t.Helper()
	tr, err := model.NewTranslator(c, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if c.Vectors > 0 {
		rng, table := rand.New(rand.NewPCG(3, 4)), make([]float32, c.SourceVocab*c.Vectors)
		for i := range table {
			table[i] = float32(rng.NormFloat64())
		}
		if err := tr.SetVectors(table); err != nil {
			t.Fatal(err)
		}
	}
	first := batches[0]
	B := len(first.Lanes)
	p, err := tr.NewPass(first.SourceSteps, first.TargetSteps, B)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, in := range batches {
		results, loss := backward(t, dev, tr.Gradients(), p.Staged,
			func(h model.Hooks) (float64, error) { return p.Backward(in, h) })
		predicted, err := p.Loss(in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, append(results, float32(loss), float32(predicted)))
	}
	d, err := tr.NewDecoder(first.SourceSteps, B)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Encode(first.Source, first.SourceLengths); err != nil {
		t.Fatal(err)
	}
	for _, from := range [][]int32{nil, {1, 1, 0}, {2, 0, 1}} {
		next := make([]float32, B*c.TargetVocab)
		if err := d.Step(first.Inputs[:B], from, next); err != nil {
			t.Fatal(err)
		}
		for i, x := range next {
			if math.IsInf(float64(x), -1) { // a token that is impossible here
				next[i] = 0
			}
		}
		all = append(all, next)
	}
	return all
}
