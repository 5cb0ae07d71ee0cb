package model

import (
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// TestWordDropout checks that a dropped word has no gradient, wherever and in whichever lane it is
// read, and that each step drops others.
func TestWordDropout(t *testing.T) {
	const T, B, V, p = 6, 4, 9, 0.5
	cfg := Config{Cell: compute.GRU, Vocab: V, Embed: 3, Hidden: 5, Layers: 1, Seed: 3,
		DropoutWords: p}
	m := newModel(t, cfg)
	s := newSegment(t, m, T, B)
	rng := rand.New(rand.NewPCG(1, 2))
	different := map[string]bool{}
	for step := range int64(6) {
		in := randomInput(rng, T, B, V)
		in.Step, in.Lanes = step, nil // the mask is of no lane
		run(t, s, in)
		table := download(m, m.view(embeddingWeight, m.grads[:len(m.params)]))
		mask := ""
		for word := range V {
			read := slices.Contains(in.Inputs, int32(word))
			kept := compute.DropoutKeep(DropoutKey(cfg.Seed, step, wordLayer, word), 0, p)
			zero := slices.Equal(table[word*3:][:3], make([]float32, 3))
			if zero != !(read && kept) {
				t.Errorf("step %d, word %d: kept %v, read %v, and its gradient is 0: %v", step,
					word, kept, read, zero)
			}
			mask += map[bool]string{true: "1", false: "0"}[kept]
		}
		different[mask] = true
	}
	if len(different) < 4 {
		t.Errorf("%d different masks in 6 steps", len(different))
	}
}

// TestWeightDrop checks that the gradients of the dropped weights, and only these, are zero, and
// that lanes which are computed apart have the same mask: their gradients add up to the whole's.
func TestWeightDrop(t *testing.T) {
	const T, B, V, H, p = 5, 4, 6, 7, 0.5
	cfg := Config{Cell: compute.LSTM, Vocab: V, Hidden: H, Layers: 2, Seed: 3, WeightDrop: p}
	m := newModel(t, cfg)
	whole, part := newSegment(t, m, T, B), newSegment(t, m, T, B/2)
	in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, V)
	in.Step = 11
	run(t, whole, in)
	want := download(m, m.Gradients())
	for k := range cfg.Layers {
		key := DropoutKey(cfg.Seed, in.Step, k, weightLane)
		for i, g := range find(m.views, layerName("weight_hh", k)).of(want) {
			if kept := compute.DropoutKeep(key, i, p); kept == (g == 0) {
				t.Fatalf("layer %d, weight %d: kept %v, gradient %v", k, i, kept, g)
			}
		}
	}
	sum := make([]float32, len(want))
	for first := range 2 {
		half := SegmentInput{Scale: in.Scale, Step: in.Step, Lanes: in.Lanes[first*2:][:2]}
		for step := range T {
			at := step*B + first*2
			half.Inputs = append(half.Inputs, in.Inputs[at:at+2]...)
			half.Targets = append(half.Targets, in.Targets[at:at+2]...)
		}
		part.ZeroState()
		run(t, part, half)
		for i, g := range download(m, m.Gradients()) {
			sum[i] += g
		}
	}
	if e := relative(sum, float64s(want)); e > 1e-5 {
		t.Errorf("the parts' gradients differ from the whole's by %.2g", e)
	}
}

func float64s(x []float32) (out []float64) {
	for _, v := range x {
		out = append(out, float64(v))
	}
	return out
}

// TestRegularisersTrainOnly evaluates a model, and a labeller through the graph that it trains
// with, as if there were no regularisers.
func TestRegularisersTrainOnly(t *testing.T) {
	const T, B = 5, 3
	cfg := regularised(compute.LSTM)
	cfg.TemporalL2 = 1
	in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, cfg.Vocab)
	var losses []float64
	for _, c := range []Config{cfg, WithoutRegularisers(cfg)} {
		s := newSegment(t, newModel(t, c), T, B)
		loss, _, err := s.Evaluate(in.Inputs, in.Targets)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
		if got := run(t, s, in); (got == loss) != (len(losses) == 2) {
			t.Errorf("a pass has loss %v, the evaluation %v", got, loss)
		}
	}
	if losses[0] != losses[1] {
		t.Errorf("losses %v", losses)
	}
}

// TestLabellerKeepsWeights predicts after a training pass in the same graph.
func TestLabellerKeepsWeights(t *testing.T) {
	const T, B = 4, 3
	c := LabellerConfig{Cell: compute.GRU, Vocab: 6, Embed: 4, Hidden: 5, Layers: 2, Labels: 3,
		Pool: PoolMax, Bidirectional: true, Seed: 5, WeightDrop: 0.5, DropoutWords: 0.5}
	in := Examples{Steps: T, Lengths: []int32{4, 2, 3}, Targets: []int32{0, 2, 1},
		Lanes: []int{0, 1, 2}, Scale: 1}
	for i := range T * B {
		in.Inputs = append(in.Inputs, int32(i*5%6))
	}
	predict := func(c LabellerConfig) (before, trained, after float64) {
		l, err := NewLabeller(c, newDevice(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		p, err := l.NewPass(T, B)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		for _, do := range []func() error{
			func() (err error) { before, err = p.Predict(in, nil); return err },
			func() (err error) { trained, err = p.Backward(in, Hooks{}); return err },
			func() (err error) { after, err = p.Predict(in, nil); return err },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		return before, trained, after
	}
	before, trained, after := predict(c)
	c.WeightDrop, c.DropoutWords = 0, 0
	plain, same, _ := predict(c)
	if before != plain || after != plain || trained == plain || same != plain {
		t.Errorf("losses %v, in training %v, then %v; without regularisers %v, %v", before, trained,
			after, plain, same)
	}
}

// TestRegulariserErrors names the flag.
func TestRegulariserErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--dropout-words 0.5 drops rows of the embedding": func(c *Config) {
			c.DropoutWords, c.Embed = 0.5, 0
		},
		"--weight-drop 0.5 drops recurrent weights, and --cell min-gru": func(c *Config) {
			c.WeightDrop, c.Cell = 0.5, compute.MinGRU
		},
		"--weight-drop 1: must be at least 0 and less than 1": func(c *Config) { c.WeightDrop = 1 },
		"--activation-l2 -1: must be at least 0": func(c *Config) {
			c.ActivationL2 = -1
		},
		"--temporal-l2 1 needs the whole segment's outputs": func(c *Config) {
			c.TemporalL2, c.Recompute = 1, 2
		},
	} {
		c := Config{Cell: compute.LSTM, Vocab: 6, Embed: 4, Hidden: 5, Layers: 2}
		change(&c)
		if err := c.Validate(); err == nil || len(err.Error()) < len(want) ||
			err.Error()[:len(want)] != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
