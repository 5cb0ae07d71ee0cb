package reservoir

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"

	"rondo/corpus"
	"rondo/corpus/series"
	"rondo/task/count"
	"rondo/task/regress"
	"rondo/task/tasktest"
	"rondo/train"
)

// small is a reservoir of two inputs, of which the second is predicted.
func small() Config {
	return Config{Units: 30, Inputs: 2, Outputs: 1, SpectralRadius: 0.9, Leak: 0.6, InputScale: 0.4,
		Ridge: 1e-6, Washout: 20, Seed: 5}
}

// waves are 300 rows of two sines.
func waves() *Series {
	s := &Series{Units: regress.NewUnits(series.Scale{Mean: []float64{0, 0}, Std: []float64{1, 3}},
		[]int{1})}
	for t := range 300 {
		u := math.Sin(0.3 * float64(t))
		s.Inputs = append(s.Inputs, float32(u), float32(u*math.Sin(0.11*float64(t))))
		s.Targets = append(s.Targets, s.Inputs[2*t+1])
	}
	return s
}

// rows are the numbers of a series' rows.
func rows(s *Series) (ids corpus.IDs) {
	for i := range s.Targets {
		ids = append(ids, int32(i))
	}
	return ids
}

// newModel makes a model on a CPU.
func newModel(t *testing.T, c Config, s *Series) *Model {
	t.Helper()
	m, err := New(c, s, tasktest.Device(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// add adds the sums of examples of a length, which so many seats share, to the parameters.
func add(t *testing.T, m *Model, length, seats int) {
	t.Helper()
	const lanes = 3
	task, err := count.New(m, count.Config{Tail: train.Tail,
		Training: count.NewText(rows(m.series), int64(m.config.Washout), lanes, length)})
	if err != nil {
		t.Fatal(err)
	}
	defer task.Close()
	for segment := range task.SegmentsPerEpoch() {
		tasktest.Step(t, task, segment, 1, slices.Repeat([]int{lanes / seats}, seats)...)
	}
}

// TestSums: the sums are those of a direct computation, and the same bits however the lanes are
// dealt. The readout minimises the squared error.
func TestSums(t *testing.T) {
	s, c := waves(), small()
	one, three := newModel(t, c, s), newModel(t, c, s)
	add(t, one, 93, 1)
	add(t, three, 93, 3)
	if !slices.Equal(one.Params(), three.Params()) {
		t.Error("three seats have summed otherwise than one")
	}
	P := c.width()
	a, b, n := mat.NewDense(P, P, nil), mat.NewDense(P, 1, nil), draw(c)
	for i, w := range n.weights { // as the parameters have them
		n.weights[i] = float64(float32(w))
	}
	for i, w := range n.input {
		n.input[i] = float64(float32(w))
	}
	for first := c.Washout; first < 300; first += 93 {
		x := make([]float64, c.Units)
		for row := first - c.Washout; row < min(first+92, 299); row++ {
			u := s.Inputs[2*row : 2*row+2]
			n.step(x, u)
			if row+1 < first {
				continue
			}
			z := mat.NewVecDense(P, append([]float64{1, float64(u[0]), float64(u[1])}, x...))
			var outer mat.Dense
			outer.Outer(1, z, z)
			a.Add(a, &outer)
			for i := range P {
				b.Set(i, 0, b.At(i, 0)+z.AtVec(i)*float64(s.Targets[row+1]))
			}
		}
	}
	at := 0
	near := func(want float64) {
		if got := value(one.Params()[at*digits:][:digits]); math.Abs(got-want) > 1e-10 {
			t.Fatalf("sum %d is %v, want %v", at, got, want)
		}
		at++
	}
	for i := range P {
		for j := i; j < P; j++ {
			near(a.At(i, j))
		}
	}
	for i := range P {
		near(b.At(i, 0))
	}
	for i := range P {
		a.Set(i, i, a.At(i, i)+c.Ridge)
	}
	if err := one.load(); err != nil {
		t.Fatal(err)
	}
	var product mat.Dense
	product.Mul(a, one.readout)
	if !mat.EqualApprox(&product, b, 1e-7) {
		t.Error("the readout does not solve its equations")
	}
}

// TestRadius: the largest eigenvalue of a reservoir, in absolute value, is the spectral radius.
func TestRadius(t *testing.T) {
	for seed := range uint64(5) {
		c := small()
		c.Units, c.Seed, c.SpectralRadius = 60, seed, 1.3
		n := draw(c)
		dense := mat.NewDense(c.Units, c.Units, nil)
		for i, column := range n.columns {
			dense.Set(i/degree, int(column), n.weights[i])
		}
		var e mat.Eigen
		if !e.Factorize(dense, mat.EigenNone) {
			t.Fatal("no eigenvalues")
		}
		largest := 0.0
		for _, v := range e.Values(nil) {
			largest = max(largest, math.Hypot(real(v), imag(v)))
		}
		if math.Abs(largest-1.3) > 2e-3 {
			t.Errorf("seed %d: the spectral radius is %v", seed, largest)
		}
	}
}

// TestDigits: sums of digits are exact, and a sum that is too large for them is an error.
func TestDigits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	to, want := make([]float32, digits), int64(0)
	for range MaxExamples {
		sum := math.Ldexp(2*rng.Float64()-1, 17)
		want += int64(math.Round(math.Ldexp(sum, fraction)))
		if err := cut([]float64{-sum}, to); err != nil {
			t.Fatal(err)
		}
	}
	if got := value(to); got != math.Ldexp(float64(want), -fraction) {
		t.Errorf("%v, want %v", got, math.Ldexp(float64(want), -fraction))
	}
	for _, x := range to {
		if math.Abs(float64(x)) >= count.Limit {
			t.Errorf("a digit has grown to %v", x)
		}
	}
	for _, sum := range []float64{largest, math.NaN(), math.Inf(-1)} {
		if err := cut([]float64{sum}, to); err == nil || !strings.Contains(err.Error(), "--bptt") {
			t.Errorf("%v: %v", sum, err)
		}
	}
}

// TestForecast: a network that has learned both sines goes on with them by itself. Its forecasts
// are those of reading its own predictions.
func TestForecast(t *testing.T) {
	s, c := waves(), small()
	scale := series.Scale{Mean: []float64{0, 0}, Std: []float64{1, 1}}
	s.Units = regress.NewUnits(scale, []int{0, 1})
	s.Targets, c.Outputs, c.Units, c.Ridge = s.Inputs, 2, 100, 1e-9
	ids := rows(waves())
	m := newModel(t, c, s)
	sums := make([]float32, len(m.Params()))
	if err := m.Add(count.Window{Tokens: ids[:250], Context: c.Washout}, sums); err != nil {
		t.Fatal(err)
	}
	for i, g := range sums {
		m.Params()[i] -= g
	}
	score, err := m.Score(count.Window{Tokens: ids[200:], Context: 50})
	if err != nil || score.Targets != 50 || !(score.Loss < 50*1e-4) {
		t.Errorf("%+v, %v", score, err)
	}
	if mse := m.Metrics(score)[0].Value; math.Abs(mse-score.Loss/50) > 1e-5 {
		t.Errorf("mse %v, loss %v", mse, score.Loss/50)
	}
	f, err := m.NewForecaster(4, []int{0, 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, y := make([]float64, c.Units), make([]float32, 2)
	var got []float32
	for row := range 250 {
		u := s.Inputs[2*row : 2*row+2]
		if got, err = f.Read(u); err != nil {
			t.Fatal(err)
		}
		if row == 249 { // lane 1 read its own prediction of this row
			u = slices.Clone(y)
		}
		m.network.step(x, u)
		m.predict(u, x, y)
	}
	truth := s.Inputs[2*250:]
	if !slices.Equal(got[2:4], y) || math.Abs(float64(y[0]-truth[0])) > 0.05 {
		t.Errorf("two steps ahead %v, want %v; the truth is %v", got[2:4], y, truth[:2])
	}
}
