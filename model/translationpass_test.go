package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/compute/devicetest"
)

// TestTranslationPassRepeats runs batches of all lengths, in both orders and with losses between
// them. Equal batches have the same bits whatever ran before.
func TestTranslationPassRepeats(t *testing.T) {
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		const source, target, B = 9, 5, 3
		tr := newTranslator(t, c)
		p := newTranslationPass(t, tr, source, target, B)
		rng := rand.New(rand.NewPCG(1, 2))
		var batches []Pairs
		var results [][]float32
		for steps := 1; steps <= source; steps++ {
			in := randomPairs(rng, c, steps, 1+steps*7%target, B)
			loss, gradients := translate(t, p, in)
			batches = append(batches, in)
			results = append(results, append(gradients, float32(loss)))
		}
		fresh := newTranslationPass(t, tr, source, target, B)
		for i, in := range slices.Backward(batches) {
			for _, p := range []*TranslationPass{p, fresh} {
				loss, gradients := translate(t, p, in)
				if !slices.Equal(append(gradients, float32(loss)), results[i]) {
					t.Errorf("%d and %d steps: the result has changed", in.SourceSteps,
						in.TargetSteps)
				}
				if _, err := p.Loss(in); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestTranslationPassSeesPairsOnly pads pairs to more steps, puts them into other lanes, and adds
// lanes without pairs. Loss, gradients and dropout masks stay the same, but for rounding.
func TestTranslationPassSeesPairsOnly(t *testing.T) {
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		const S, T, B = 6, 5, 3
		tr := newTranslator(t, c)
		in := randomPairs(rand.New(rand.NewPCG(3, 4)), c, S, T, B)
		loss, gradients := translate(t, newTranslationPass(t, tr, S, T, B), in)
		same := func(what string, more int, in Pairs) {
			t.Helper()
			p := newTranslationPass(t, tr, S+more, T+more, len(in.Lanes))
			got, g := translate(t, p, in)
			if e := relative(g, gradients); e > 1e-5 || math.Abs(got-loss) > 1e-5*loss {
				t.Errorf("%s: loss %v, not %v; gradients differ by %.2g", what, got, loss, e)
			}
		}
		same("a longer graph", 30, in)
		same("more padding", 20, rearrangedPairs(in, 20, 0, 1, 2))
		same("other lanes", 0, rearrangedPairs(in, 0, 2, 0, 1))
		same("empty lanes", 0, rearrangedPairs(in, 0, -1, 0, 1, -1, 2))
		nothing := rearrangedPairs(in, 0, -1, -1)
		if got, g := translate(t, newTranslationPass(t, tr, S, T, 2), nothing); got != 0 ||
			slices.ContainsFunc(g, func(x float32) bool { return x != 0 }) {
			t.Errorf("no pair at all: loss %v, or a gradient that is not zero", got)
		}
	})
}

// TestTranslatorDerivative: see checkPassDerivative. With these pairs no kink of rnn-relu lies
// between the difference's two points.
func TestTranslatorDerivative(t *testing.T) {
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		tr := newTranslator(t, c)
		p := newTranslationPass(t, tr, 6, 5, 4)
		in := randomPairs(rand.New(rand.NewPCG(5, 7)), c, 6, 5, 4)
		in.Scale = 1
		checkPassDerivative(t, tr, func(h Hooks) (float64, error) { return p.Backward(in, h) })
	})
}

// TestTranslatorFinishes: see checkPassFinishes.
func TestTranslatorFinishes(t *testing.T) {
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		tr := newTranslator(t, c)
		p := newTranslationPass(t, tr, 5, 4, 3)
		in := randomPairs(rand.New(rand.NewPCG(7, 8)), c, 5, 4, 3)
		checkPassFinishes(t, tr, func(h Hooks) (float64, error) { return p.Backward(in, h) })
	})
}

// TestTranslationPassHooks: see checkPassHooks.
func TestTranslationPassHooks(t *testing.T) {
	c := translators()["gru/concat/luong/bidirectional"]
	tr, err := NewTranslator(c, devicetest.NewStager(newDevice(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	p := newTranslationPass(t, tr, 5, 4, 3)
	in := randomPairs(rand.New(rand.NewPCG(9, 10)), c, 5, 4, 3)
	checkPassHooks(t, tr, func(h Hooks) (float64, error) { return p.Backward(in, h) }, p.Staged)
}

// TestTranslatorReverses trains translators to reverse strings. A decoder then reverses each one,
// token by token.
func TestTranslatorReverses(t *testing.T) {
	const B, most, V, begin, end = 24, 5, 8, 0, 1
	for name, c := range map[string]TranslatorConfig{
		"concat":   {Context: ContextConcat},
		"state":    {Context: ContextState, Bidirectional: true},
		"bahdanau": {Context: ContextState, Attention: AttentionBahdanau, Bidirectional: true},
		"luong":    {Context: ContextState, Attention: AttentionLuong},
	} {
		t.Run(name, func(t *testing.T) {
			c.Cell, c.SourceVocab, c.TargetVocab, c.Embed, c.Hidden = compute.GRU, V, V, 12, 32
			c.Layers, c.Seed = 1, 5
			tr := newTranslator(t, c)
			p := newTranslationPass(t, tr, most, most+1, B)
			in := reversals(rand.New(rand.NewPCG(11, 12)), B, most, V)
			slots := [2][]float32{tr.dev.Alloc(len(tr.Params())), tr.dev.Alloc(len(tr.Params()))}
			for step := range 150 {
				translate(t, p, in)
				tr.dev.Update(compute.Update{Optimizer: compute.Adam, Step: int64(step + 1),
					LR: 0.02, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}, tr.Params(),
					tr.Gradients(), slots[0], slots[1])
			}
			d := newDecoder(t, tr, most, B)
			if err := d.Encode(in.Source, in.SourceLengths); err != nil {
				t.Fatal(err)
			}
			next, tokens := make([]float32, B*V), make([]int32, B)
			for step := range in.TargetSteps {
				if err := d.Step(tokens, nil, next); err != nil {
					t.Fatal(err)
				}
				for b := range B {
					p := next[b*V:][:V]
					tokens[b] = int32(slices.Index(p, slices.Max(p)))
					if want := in.Targets[step*B+b]; want >= 0 && tokens[b] != want {
						t.Errorf("token %d of string %d is %d, want %d", step, b, tokens[b], want)
					}
				}
			}
		})
	}
}

// reversals draws strings of tokens from 2 on; token 0 begins each target and 1 ends it.
func reversals(rng *rand.Rand, B, most, V int) Pairs {
	in := Pairs{SourceSteps: most, TargetSteps: most + 1, Source: make([]int32, most*B),
		Inputs: make([]int32, (most+1)*B), Targets: slices.Repeat([]int32{-1}, (most+1)*B),
		Scale: 1 / float32(B)}
	for b := range B {
		length := 1 + rng.IntN(most)
		in.SourceLengths = append(in.SourceLengths, int32(length))
		for t := range length {
			token := int32(2 + rng.IntN(V-2))
			in.Source[t*B+b] = token
			in.Targets[(length-1-t)*B+b] = token
			in.Inputs[(length-t)*B+b] = token
		}
		in.Targets[length*B+b] = 1
	}
	return in
}

// TestTranslationPassErrors expects an error of one line for input that does not fit.
func TestTranslationPassErrors(t *testing.T) {
	c := translators()["gru/concat/luong/bidirectional"]
	tr := newTranslator(t, c)
	if _, err := tr.NewPass(1, 0, 1); err == nil {
		t.Error("a pass of no steps")
	}
	p := newTranslationPass(t, tr, 4, 3, 2)
	for want, change := range map[string]func(*Pairs){
		"up to 4 steps of 2 lanes was given 10 inputs": func(in *Pairs) {
			in.SourceSteps, in.Source = 5, make([]int32, 10)
		},
		"lane 0 has an example of 4 tokens in 3 steps": func(in *Pairs) {
			in.SourceLengths[0] = 4
		},
		"step 0 of lane 1 is token 7; the vocabulary": func(in *Pairs) { in.Source[1] = 7 },
		"3 target steps of 2 lanes was given 5 inputs": func(in *Pairs) {
			in.Inputs = in.Inputs[1:]
		},
		"target 1 of lane 0 is token 9; the vocabulary": func(in *Pairs) { in.Targets[2] = 9 },
		"input 2 of lane 1 is token -1; the vocabulary": func(in *Pairs) { in.Inputs[5] = -1 },
		"2 lanes was given the numbers of 1": func(in *Pairs) {
			in.Lanes = in.Lanes[:1]
		},
	} {
		in := randomPairs(rand.New(rand.NewPCG(1, 2)), c, 3, 3, 2)
		in.SourceLengths, in.Targets[5] = []int32{2, 3}, 1
		change(&in)
		if _, err := p.Backward(in, Hooks{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// useTranslator makes a translator, a pass and a decoder, runs every size, and returns all results.
func useTranslator(c TranslatorConfig, dev compute.Device, source, target, B int) (
	results []float32, err error) {
	tr, err := NewTranslator(c, dev)
	if err != nil {
		return nil, err
	}
	defer tr.Close()
	if c.Vectors > 0 {
		if err := tr.SetVectors(make([]float32, c.SourceVocab*c.Vectors)); err != nil {
			return nil, err
		}
	}
	p, err := tr.NewPass(source, target, B)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	rng := rand.New(rand.NewPCG(13, 14))
	sizes := pairSizes(source, target)
	for i := range sizes[0] {
		in := randomPairs(rng, c, sizes[0][i], sizes[1][i], B)
		loss, err := p.Backward(in, Hooks{})
		if err != nil {
			return nil, err
		}
		results = append(append(results, float32(loss)), download(tr, tr.Gradients())...)
		if loss, err = p.Loss(in); err != nil {
			return nil, err
		}
		results = append(results, float32(loss))
	}
	d, err := tr.NewDecoder(source, B)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	in := randomPairs(rng, c, source, 1, B)
	next := make([]float32, B*c.TargetVocab)
	if err := d.Encode(in.Source, in.SourceLengths); err != nil {
		return nil, err
	}
	for range 2 {
		if err := d.Step(in.Inputs, slices.Repeat([]int32{1}, B), next); err != nil {
			return nil, err
		}
		results = append(results, next...)
	}
	return results, nil
}

// TestTranslationSize holds PassSize and DecoderSize against what a device counts, of tensors that
// fill whole cache lines.
func TestTranslationSize(t *testing.T) {
	const source, target, B = 12, 7, 8
	on := cpu.Config{Threads: 1}
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		c.Hidden, c.Embed, c.SourceVocab, c.TargetVocab = 16, 32, 50, 48
		c.Vectors, c.HiddenBackward = 16*c.Vectors, 16*min(2, c.HiddenBackward)
		dev := newDevice(t).(*cpu.Device)
		if _, err := useTranslator(c, dev, source, target, B); err != nil {
			t.Fatal(err)
		}
		parameters := on.TensorSize(Span(c.Layout()))
		want := parameters.And(parameters).And(c.PassSize(on, source, target, B)).
			And(c.DecoderSize(on, source, B))
		if c.Vectors > 0 {
			want = want.And(on.TensorSize(c.SourceVocab * c.Vectors))
		}
		if _, got := dev.Bytes(); got != want.Total() {
			t.Errorf("sizes add up to %d bytes, the device held %d", want.Total(), got)
		}
	})
}

// TestTranslatorLacksMemory: see checkLack.
func TestTranslatorLacksMemory(t *testing.T) {
	for _, kind := range []string{"concat/luong/bidirectional", "concat/bahdanau/bidirectional",
		"vectors/input"} {
		t.Run(kind, func(t *testing.T) {
			c := translators()["gru/"+kind]
			checkLack(t, 250, func(d compute.Device) ([]float32, error) {
				return useTranslator(c, d, 5, 4, 2)
			})
		})
	}
}
