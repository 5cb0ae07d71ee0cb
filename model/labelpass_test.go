package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/compute/devicetest"
)

func forLabellers(t *testing.T, check func(t *testing.T, c LabellerConfig)) {
	for name, c := range some(labellers()) {
		t.Run(name, func(t *testing.T) { check(t, c) })
	}
}

// TestLabelPassRepeats runs batches of all lengths, in both orders and with predictions between
// them. Equal batches have the same bits whatever ran before.
func TestLabelPassRepeats(t *testing.T) {
	forLabellers(t, func(t *testing.T, c LabellerConfig) {
		const most, B = 9, 3
		l := newLabeller(t, c)
		p := newPass(t, l, most, B)
		rng := rand.New(rand.NewPCG(1, 2))
		var batches []Examples
		var results [][]float32
		for steps := 1; steps <= most; steps++ {
			in := randomExamples(rng, c, steps, B)
			loss, gradients := backward(t, p, in)
			batches = append(batches, in)
			results = append(results, append(gradients, float32(loss)))
		}
		fresh := newPass(t, l, most, B)
		for i, in := range slices.Backward(batches) {
			for _, p := range []*LabelPass{p, fresh} {
				loss, gradients := backward(t, p, in)
				if !slices.Equal(append(gradients, float32(loss)), results[i]) {
					t.Errorf("%d steps: the result has changed", in.Steps)
				}
				if _, err := p.Predict(in, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// padded returns the same examples padded to more steps.
func padded(in Examples, steps int, pool Pool) Examples {
	n := (steps - in.Steps) * len(in.Lengths)
	in.Inputs = slices.Concat(in.Inputs, slices.Repeat([]int32{-7}, n)) // no token is read there
	if pool == PoolNone {
		in.Targets = slices.Concat(in.Targets, make([]int32, n))
	}
	in.Steps = steps
	return in
}

// rearranged returns the examples of these lanes; -1 is a lane without an example.
func rearranged(in Examples, pool Pool, lanes ...int) Examples {
	B := len(in.Lengths)
	out := in
	out.Inputs, out.Targets, out.Lengths, out.Lanes, out.Places = nil, nil, nil, nil, nil
	for _, b := range lanes {
		length, lane := int32(0), 99
		if b >= 0 {
			length, lane = in.Lengths[b], in.Lanes[b]
		}
		out.Lengths, out.Lanes = append(out.Lengths, length), append(out.Lanes, lane)
	}
	for row := range in.Steps {
		for _, b := range lanes {
			out.Inputs = append(out.Inputs, in.Inputs[row*B+max(b, 0)])
		}
	}
	for row := range len(in.Targets) / B {
		for _, b := range lanes {
			out.Targets = append(out.Targets, in.Targets[row*B+max(b, 0)])
			if pool == PoolPlaces && b < 0 {
				out.Places = append(out.Places, -1)
			} else if pool == PoolPlaces {
				out.Places = append(out.Places, in.Places[row*B+b])
			}
		}
	}
	return out
}

// TestLabelPassSeesExamplesOnly pads examples to more steps, puts them into other lanes, and adds
// lanes without examples. Loss, gradients and dropout masks stay the same, but for rounding.
func TestLabelPassSeesExamplesOnly(t *testing.T) {
	forLabellers(t, func(t *testing.T, c LabellerConfig) {
		const T, B = 6, 3
		l := newLabeller(t, c)
		in := randomExamples(rand.New(rand.NewPCG(3, 4)), c, T, B)
		loss, gradients := backward(t, newPass(t, l, T, B), in)
		same := func(what string, most int, in Examples) {
			t.Helper()
			got, g := backward(t, newPass(t, l, most, len(in.Lengths)), in)
			if e := relative(g, gradients); e > 1e-5 || math.Abs(got-loss) > 1e-5*loss {
				t.Errorf("%s: loss %v, not %v; gradients differ by %.2g", what, got, loss, e)
			}
		}
		same("a longer graph", 40, in)
		same("more padding", 25, padded(in, 25, c.Pool))
		same("other lanes", T, rearranged(in, c.Pool, 2, 0, 1))
		same("empty lanes", T, rearranged(in, c.Pool, -1, 0, 1, -1, 2))
		nothing := rearranged(in, c.Pool, -1, -1)
		if got, g := backward(t, newPass(t, l, T, 2), nothing); got != 0 ||
			slices.ContainsFunc(g, func(x float32) bool { return x != 0 }) {
			t.Errorf("no example at all: loss %v, or a gradient that is not zero", got)
		}
	})
}

// TestLabellerDerivative: see checkPassDerivative.
func TestLabellerDerivative(t *testing.T) {
	forLabellers(t, func(t *testing.T, c LabellerConfig) {
		l := newLabeller(t, c)
		p := newPass(t, l, 6, 4)
		in := randomExamples(rand.New(rand.NewPCG(5, 6)), c, 6, 4)
		in.Scale = 1
		checkPassDerivative(t, l, func(h Hooks) (float64, error) { return p.Backward(in, h) })
	})
}

// TestLabellerFinishes: see checkPassFinishes.
func TestLabellerFinishes(t *testing.T) {
	forLabellers(t, func(t *testing.T, c LabellerConfig) {
		l := newLabeller(t, c)
		p := newPass(t, l, 5, 3)
		in := randomExamples(rand.New(rand.NewPCG(7, 8)), c, 5, 3)
		checkPassFinishes(t, l, func(h Hooks) (float64, error) { return p.Backward(in, h) })
	})
}

// TestLabelPassHooks: see checkPassHooks.
func TestLabelPassHooks(t *testing.T) {
	c := labellers()["gru/mean/bidirectional"]
	l, err := NewLabeller(c, devicetest.NewStager(newDevice(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newPass(t, l, 5, 3)
	in := randomExamples(rand.New(rand.NewPCG(9, 10)), c, 5, 3)
	checkPassHooks(t, l, func(h Hooks) (float64, error) { return p.Backward(in, h) }, p.Staged)
}

// TestLabellerLearns trains labellers until they label every example of a small set: whether token
// 1 comes before token 2, or for each token whether a token 3 comes later.
func TestLabellerLearns(t *testing.T) {
	const B, most, V = 24, 12, 6
	for _, pool := range []Pool{PoolNone, PoolLast, PoolMean, PoolMax} {
		c := LabellerConfig{Cell: compute.LSTM, Vocab: V, Embed: 8, Hidden: 16, Layers: 1,
			Bidirectional: true, Labels: 2, Pool: pool, Seed: 5}
		l := newLabeller(t, c)
		p := newPass(t, l, most, B)
		in := sorting(rand.New(rand.NewPCG(11, 12)), pool, B, most, V)
		slots := [2][]float32{l.dev.Alloc(len(l.Params())), l.dev.Alloc(len(l.Params()))}
		for step := range 80 {
			in.Step = int64(step)
			backward(t, p, in)
			l.dev.Update(compute.Update{Optimizer: compute.Adam, Step: in.Step + 1, LR: 0.02,
				Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}, l.Params(), l.Gradients(), slots[0],
				slots[1])
		}
		logits := make([]float32, len(in.Targets)*c.Labels)
		loss, err := p.Predict(in, logits)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range in.Targets {
			if got := logits[2*i+1] > logits[2*i]; want >= 0 && got != (want == 1) {
				t.Errorf("%v: target %d is %d, but the logits are %v; loss %v", pool, i, want,
					logits[2*i:][:2], loss)
			}
		}
	}
}

// sorting draws the examples of TestLabellerLearns.
func sorting(rng *rand.Rand, pool Pool, B, T, V int) Examples {
	in := Examples{Steps: T, Inputs: make([]int32, T*B), Scale: 1 / float32(B)}
	if pool == PoolNone {
		in.Targets = slices.Repeat([]int32{-1}, T*B)
	}
	for b := range B {
		length := 2 + rng.IntN(T-1)
		first := rng.IntN(length - 1)
		second := first + 1 + rng.IntN(length-1-first)
		label := rng.IntN(2)
		for t := range length {
			in.Inputs[t*B+b] = int32(3 + rng.IntN(V-3))
		}
		in.Inputs[first*B+b], in.Inputs[second*B+b] = int32(2-label), int32(1+label)
		in.Lengths = append(in.Lengths, int32(length))
		if pool != PoolNone {
			in.Targets = append(in.Targets, int32(label))
			continue
		}
		later := int32(0)
		for t := length - 1; t >= 0; t-- {
			in.Targets[t*B+b] = later
			if in.Inputs[t*B+b] == 3 {
				later = 1
			}
		}
	}
	return in
}

// TestLabelPassErrors expects an error of one line for input that does not fit.
func TestLabelPassErrors(t *testing.T) {
	c := labellers()["gru/max/bidirectional"]
	l := newLabeller(t, c)
	if _, err := l.NewPass(0, 1); err == nil {
		t.Error("a pass of no steps")
	}
	p := newPass(t, l, 4, 2)
	for want, change := range map[string]func(*Examples){
		"up to 4 steps of 2 lanes was given 10 inputs and 2 lengths for 5 steps": func(
			in *Examples) {
			*in = padded(*in, 5, c.Pool)
		},
		"6 inputs and 0 lengths for 3 steps":          func(in *Examples) { in.Lengths = nil },
		"lane 1 has an example of 4 tokens in 3":      func(in *Examples) { in.Lengths[1] = 4 },
		"lane 0 has an example of -1 tokens":          func(in *Examples) { in.Lengths[0] = -1 },
		"step 2 of lane 1 is token 9; the vocabulary": func(in *Examples) { in.Inputs[5] = 9 },
		"target 1 is label 4; there are 4":            func(in *Examples) { in.Targets[1] = 4 },
		"target 0 is label -2":                        func(in *Examples) { in.Targets[0] = -2 },
		"2 targets was given 0":                       func(in *Examples) { in.Targets = nil },
		"2 lanes was given the numbers of 0":          func(in *Examples) { in.Lanes = nil },
	} {
		in := randomExamples(rand.New(rand.NewPCG(1, 2)), c, 3, 2)
		in.Lengths = []int32{2, 3}
		change(&in)
		if _, err := p.Backward(in, Hooks{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	in := randomExamples(rand.New(rand.NewPCG(1, 2)), c, 3, 2)
	if _, err := p.Predict(in, make([]float32, 3)); err == nil {
		t.Error("3 logits of 2 rows")
	}
	in.Targets = nil
	if loss, err := p.Predict(in, nil); err != nil || loss != 0 {
		t.Errorf("without targets the loss is %v: %v", loss, err)
	}
}

// TestLabellerConfig expects an error that names the flag.
func TestLabellerConfig(t *testing.T) {
	for want, change := range map[string]func(*LabellerConfig){
		"--hidden 0":          func(c *LabellerConfig) { c.Hidden = 0 },
		"data have 0 labels":  func(c *LabellerConfig) { c.Labels = 0 },
		"--pool: 5 is not":    func(c *LabellerConfig) { c.Pool = 5 },
		"labels at 2 places":  func(c *LabellerConfig) { c.Places = 2 },
		"--deep-input 65":     func(c *LabellerConfig) { c.DeepInput = 65 },
		"--dropout-input 0.2": func(c *LabellerConfig) { c.Embed = 0 },
	} {
		c := labellers()["gru/max/bidirectional"]
		change(&c)
		if _, err := NewLabeller(c, newDevice(t)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := ParsePool("least"); err == nil || err.Error() !=
		`--pool "least": give none, last, mean, max, places` {
		t.Error(err)
	}
}

// A batch runs in a graph of at most one and a half times its steps, down to a sixteenth of the
// longest.
func TestPassSizes(t *testing.T) {
	for most := 1; most < 700; most++ {
		sizes := passSizes(most)
		if len(sizes) > maxPassSizes || sizes[0] != most {
			t.Fatalf("%d steps: sizes %v", most, sizes)
		}
		for i := 1; i < len(sizes); i++ {
			if sizes[i] >= sizes[i-1] || 3*sizes[i] < 2*sizes[i-1] {
				t.Errorf("%d steps: sizes %v", most, sizes)
			}
		}
		if last := sizes[len(sizes)-1]; last > max(2, most/16+3) {
			t.Errorf("%d steps: the smallest of %v is large", most, sizes)
		}
	}
}

// useLabeller makes a labeller and a pass, runs every size of it, and returns all results.
func useLabeller(c LabellerConfig, dev compute.Device, most, B int) (results []float32, err error) {
	l, err := NewLabeller(c, dev)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	p, err := l.NewPass(most, B)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	rng := rand.New(rand.NewPCG(13, 14))
	for _, steps := range passSizes(most) {
		in := randomExamples(rng, c, steps, B)
		loss, err := p.Backward(in, Hooks{})
		if err != nil {
			return nil, err
		}
		results = append(append(results, float32(loss)), download(l, l.Gradients())...)
		logits := make([]float32, c.outputRows(steps, B)*c.Labels)
		if loss, err = p.Predict(in, logits); err != nil {
			return nil, err
		}
		results = append(append(results, float32(loss)), logits...)
	}
	return results, nil
}

// TestPassSize holds PassSize against what a device counts, of tensors that fill whole cache lines.
func TestPassSize(t *testing.T) {
	const most, B = 12, 4
	on := cpu.Config{Threads: 1}
	forLabellers(t, func(t *testing.T, c LabellerConfig) {
		c.Hidden, c.Labels, c.Vocab = 16, 16, 50
		if c.HiddenBackward > 0 {
			c.HiddenBackward = 32
		}
		if c.Embed > 0 {
			c.Embed = 32
		}
		dev := newDevice(t).(*cpu.Device)
		if _, err := useLabeller(c, dev, most, B); err != nil {
			t.Fatal(err)
		}
		parameters := on.TensorSize(Span(c.Layout()))
		want := parameters.And(parameters).And(c.PassSize(on, most, B)).Total()
		if _, got := dev.Bytes(); got != want {
			t.Errorf("sizes add up to %d bytes, the device held %d", want, got)
		}
	})
}

// TestLabellerLacksMemory: see checkLack.
func TestLabellerLacksMemory(t *testing.T) {
	c := labellers()["lstm/last/bidirectional"]
	checkLack(t, 200, func(d compute.Device) ([]float32, error) { return useLabeller(c, d, 5, 2) })
}

// BenchmarkLabelPass times a pass in batches of fewer and fewer steps.
func BenchmarkLabelPass(b *testing.B) {
	const most, B = 256, 32
	c := LabellerConfig{Cell: compute.LSTM, Vocab: 5000, Embed: 100, Hidden: 128, Layers: 2,
		Bidirectional: true, Labels: 2, Pool: PoolLast}
	l := newLabeller(b, c)
	p := newPass(b, l, most, B)
	for steps := most; steps >= most/16; steps /= 2 {
		in := randomExamples(rand.New(rand.NewPCG(1, 2)), c, steps, B)
		b.Run(fmt.Sprintf("T%d", steps), func(b *testing.B) {
			for b.Loop() {
				backward(b, p, in)
			}
			b.ReportMetric(float64(steps*B*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
