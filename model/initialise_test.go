package model

import (
	"math"
	"math/cmplx"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"

	"rondo/compute"
)

func TestParseInit(t *testing.T) {
	for text, want := range map[string]Init{
		"uniform": {Kind: Uniform}, "xavier": {Kind: Xavier}, "orthogonal": {Kind: Orthogonal},
		"normal:0.01": {Kind: Normal, Value: 0.01}, "normal:0": {Kind: Normal},
		"identity": {Kind: Identity}, "spectral:1.2": {Kind: Spectral, Value: 1.2},
	} {
		got, err := ParseInit(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "normal", "Uniform", "glorot", "spectral", "identity:2"} {
		_, err := ParseInit(text)
		if err == nil || !strings.Contains(err.Error(),
			"uniform, xavier, orthogonal, identity, normal:STD") {
			t.Errorf("%q: %v does not list the values", text, err)
		}
	}
	for _, text := range []string{"normal:", "normal:x", "normal:-1", "normal:Inf", "normal:NaN"} {
		if _, err := ParseInit(text); err == nil || !strings.Contains(err.Error(), "--init") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzParseInit checks that a parsed value is valid, and that String writes it back.
func FuzzParseInit(f *testing.F) {
	for _, text := range []string{"uniform", "normal:0.01", "normal:1e400", "normal:-0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		in, err := ParseInit(text)
		if err != nil {
			return
		}
		if again, err := ParseInit(in.String()); err != nil || again != in {
			t.Errorf("%q is %+v, written %q and read again %+v (%v)", text, in, in, again, err)
		}
		if err := in.validate(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// moments returns the mean, standard deviation and largest magnitude.
func moments(x []float32) (mean, std, largest float64) {
	for _, v := range x {
		mean += float64(v) / float64(len(x))
		largest = max(largest, math.Abs(float64(v)))
	}
	for _, v := range x {
		std += (float64(v) - mean) * (float64(v) - mean) / float64(len(x))
	}
	return mean, math.Sqrt(std), largest
}

// TestInitialDistributions checks each tensor's distribution for each kind. A uniform distribution
// with bound b has standard deviation b/sqrt(3).
func TestInitialDistributions(t *testing.T) {
	const V, E, H = 300, 100, 64
	base := Config{Cell: compute.LSTM, Vocab: V, Embed: E, Hidden: H, Layers: 2, Seed: 3}
	tied, holes := base, base
	tied.TieWeights = true
	holes.Cell = compute.LSTMPeephole
	peephole := "rnn.weight_peephole_l1"
	uniform := func(bound float64) [2]float64 { return [2]float64{bound / math.Sqrt(3), bound} }
	normal := func(std float64) [2]float64 { return [2]float64{std, 6 * std} }
	xavier := func(in, out float64) [2]float64 { return uniform(math.Sqrt(6 / (in + out))) }
	root := func(n float64) [2]float64 { return uniform(1 / math.Sqrt(n)) }
	zero := [2]float64{}
	for _, c := range []struct {
		config Config
		init   string
		want   map[string][2]float64 // standard deviation, and bound of the magnitude
	}{
		{base, "uniform", map[string][2]float64{"output.weight": root(H), "output.bias": root(H),
			"rnn.weight_ih_l0": root(H), "rnn.weight_hh_l1": root(H), "rnn.bias_ih_l0": root(H),
			"embedding.weight": normal(1)}},
		{holes, "uniform", map[string][2]float64{peephole: root(H)}},
		{holes, "normal:0.01", map[string][2]float64{peephole: normal(0.01)}},
		{holes, "xavier", map[string][2]float64{peephole: zero}},
		{tied, "uniform", map[string][2]float64{"output.bias": root(E),
			"projection.weight": root(H), "embedding.weight": root(E)}},
		{base, "normal:0.01", map[string][2]float64{"output.weight": normal(0.01),
			"output.bias": zero, "rnn.weight_ih_l0": normal(0.01), "rnn.bias_hh_l1": zero,
			"embedding.weight": normal(0.01)}},
		{tied, "xavier", map[string][2]float64{"projection.weight": xavier(H, E),
			"rnn.weight_ih_l0": xavier(E, H), "rnn.weight_ih_l1": xavier(H, H),
			"rnn.weight_hh_l0": xavier(H, H), "rnn.bias_ih_l1": zero, "output.bias": zero,
			"embedding.weight": xavier(V, E)}},
		{base, "orthogonal", map[string][2]float64{"rnn.weight_ih_l0": xavier(E, H),
			"output.weight": xavier(H, V), "rnn.bias_hh_l0": zero,
			"rnn.weight_hh_l0": {1 / math.Sqrt(H), 1}}},
	} {
		in, err := ParseInit(c.init)
		if err != nil {
			t.Fatal(err)
		}
		c.config.Init = in
		views := Layout(c.config)
		flat := initial(c.config, views)
		checkPadding(t, c.init, views, flat)
		for name, want := range c.want {
			x := find(views, name).of(flat)
			mean, std, largest := moments(x)
			slack := 5 / math.Sqrt(float64(len(x)))
			if math.Abs(mean) > slack*want[0] || math.Abs(std-want[0]) > slack*want[0] ||
				largest > want[1]*(1+1e-6) {
				t.Errorf("%s %s: mean %.3g, standard deviation %.4g (want %.4g), largest %.3g"+
					" (want at most %.3g)", c.init, name, mean, std, want[0], largest, want[1])
			}
		}
	}
}

// TestIdentityAndSpectral checks the recurrent matrices of each gate: the identity, and one whose
// eigenvalues, found by another algorithm, have the radius.
func TestIdentityAndSpectral(t *testing.T) {
	const H, radius = 48, 1.2
	c := Config{Cell: compute.GRU, Vocab: 9, Hidden: H, Layers: 2, Seed: 4,
		Init: Init{Kind: Identity}}
	views := Layout(c)
	recurrent := find(views, "rnn.weight_hh_l1")
	identity := initial(c, views)
	for i, x := range recurrent.of(identity) {
		if want := i%(H*H)%(H+1) == 0; (x == 1) != want || !want && x != 0 {
			t.Fatalf("element %d of weight_hh is %v", i, x)
		}
	}
	if _, std, _ := moments(find(views, "rnn.weight_ih_l1").of(identity)); !(std > 0.0009 &&
		std < 0.0011) {
		t.Errorf("weight_ih has standard deviation %v, want 0.001", std)
	}
	c.Init = Init{Kind: Spectral, Value: radius}
	for block := range slices.Chunk(recurrent.of(initial(c, views)), H*H) {
		a := mat.NewDense(H, H, nil)
		for i, x := range block {
			a.Set(i/H, i%H, float64(x))
		}
		var eigen mat.Eigen
		if !eigen.Factorize(a, mat.EigenNone) {
			t.Fatal("no eigenvalues")
		}
		largest := 0.0
		for _, value := range eigen.Values(nil) {
			largest = max(largest, cmplx.Abs(value))
		}
		if math.Abs(largest-radius) > 0.01*radius {
			t.Errorf("spectral radius %v, want %v", largest, radius)
		}
	}
}

// TestLeak checks that the leaks that are learned begin at the configured one.
func TestLeak(t *testing.T) {
	c := Config{Cell: compute.LeakyLearned, Vocab: 9, Hidden: 8, Layers: 1, Leak: 0.1}
	views := Layout(c)
	for _, c.Init = range []Init{{Kind: Uniform}, {Kind: Normal, Value: 0.1}, {Kind: Xavier}} {
		for _, p := range find(views, "rnn.weight_leak_l0").of(initial(c, views)) {
			if math.Abs(sigmoid(float64(p))-0.1) > 1e-6 {
				t.Errorf("%v: a leak of %v, want 0.1", c.Init, sigmoid(float64(p)))
			}
		}
	}
	c.Leak = 1
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--leak 1") {
		t.Errorf("a learned leak of 1: %v", err)
	}
}

// TestOrthogonal checks that every gate's recurrent matrix times its transpose is the identity. It
// also checks that the signs of its entries are balanced, which QR alone does not give.
func TestOrthogonal(t *testing.T) {
	const H = 48
	c := Config{Cell: compute.GRU, Vocab: 9, Hidden: H, Layers: 2, Seed: 4,
		Init: Init{Kind: Orthogonal}}
	views := Layout(c)
	x := find(views, "rnn.weight_hh_l1").of(initial(c, views))
	for gate := range 3 {
		q := x[gate*H*H:][:H*H]
		trace := 0.0
		for i := range H {
			trace += float64(q[i*H+i])
			for j := range H {
				dot := 0.0
				for k := range H {
					dot += float64(q[i*H+k]) * float64(q[j*H+k])
				}
				want := 0.0
				if i == j {
					want = 1
				}
				if math.Abs(dot-want) > 1e-5 {
					t.Fatalf("gate %d: row %d times row %d is %v", gate, i, j, dot)
				}
			}
		}
		// The trace of a uniform orthogonal matrix has variance 1 (Diaconis and Shahshahani 1994).
		if math.Abs(trace) > 5 {
			t.Errorf("gate %d: trace %v", gate, trace)
		}
	}
}

// TestInitialIsByName checks that a tensor's values depend only on the seed and its name. Golden
// values pin the random streams on every machine.
func TestInitialIsByName(t *testing.T) {
	c := Config{Cell: compute.GRU, Vocab: 9, Hidden: 8, Layers: 1, Seed: 1}
	deep := c
	deep.Layers, deep.Dropout = 3, 0.5
	weights := func(c Config, name string) []float32 {
		return find(Layout(c), name).of(initial(c, Layout(c)))
	}
	for _, name := range []string{"output.weight", "rnn.weight_ih_l0", "rnn.bias_hh_l0"} {
		if !slices.Equal(weights(c, name), weights(deep, name)) {
			t.Errorf("%s depends on the number of layers", name)
		}
	}
	if slices.Equal(weights(deep, "rnn.weight_hh_l1"), weights(deep, "rnn.weight_hh_l2")) {
		t.Error("two tensors have the same values")
	}
	other := c
	other.Seed = 2
	if slices.Equal(weights(c, "output.weight"), weights(other, "output.weight")) {
		t.Error("two seeds have the same values")
	}
	got := weights(c, "output.bias")[:3]
	if want := []float32{0.19327407, -0.28715423, -0.014826977}; !slices.Equal(got, want) {
		t.Errorf("output.bias begins %v, want %v", got, want)
	}
}

// TestForgetBias checks that the forget bias is added to the forget gate of bias_ih only.
func TestForgetBias(t *testing.T) {
	c := Config{Cell: compute.LSTM, Vocab: 9, Hidden: 8, Layers: 2, Seed: 1}
	views := Layout(c)
	without := initial(c, views)
	c.ForgetBias = 1.5
	with := initial(c, views)
	forget := map[int]bool{}
	for _, name := range []string{"rnn.bias_ih_l0", "rnn.bias_ih_l1"} {
		for i := range c.Hidden {
			forget[find(views, name).Offset+c.Hidden+i] = true
		}
	}
	for i := range with {
		want := without[i]
		if forget[i] {
			want += 1.5
		}
		if with[i] != want {
			t.Fatalf("parameter %d is %v, want %v", i, with[i], want)
		}
	}
}
