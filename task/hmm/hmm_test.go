package hmm

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/tasktest"
	"rondo/train"
)

// newTask makes a task on a CPU that reads a text in sequences of a length.
func newTask(t *testing.T, c Config, text corpus.IDs, lanes, length int) (*count.Task, *Model) {
	t.Helper()
	reads := count.NewText(text, 0, lanes, length)
	c.Tokens, c.Sequences = text.Len(), reads.Examples()
	m, err := New(c, tasktest.Device(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	task, err := count.New(m, count.Config{Training: reads, Evaluation: reads, Tail: train.Tail})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		task.Close()
		m.Close()
	})
	return task, m
}

// TestTrace: losses of each iteration, and the likeliest path, are hmmlearn's.
func TestTrace(t *testing.T) {
	data, err := os.ReadFile("testdata/trace.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		States, Vocabulary, Tokens, Length int
		Pseudo                             float64
		Counts                             []float32
		Losses                             []float64
		Loss                               float64
		Path                               []int32
		PathLoss                           float64 `json:"path_loss"`
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) != 3 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	text := opticks(t)
	for _, c := range cases {
		lanes := (c.Tokens + c.Length - 1) / c.Length
		task, m := newTask(t, Config{States: c.States, Vocabulary: c.Vocabulary, Pseudo: c.Pseudo},
			text[:c.Tokens], lanes, c.Length)
		at := 0
		for _, v := range m.Layout() {
			at += copy(m.Params()[v.Offset:][:v.Len], c.Counts[at:])
		}
		for i, want := range c.Losses {
			tasktest.Near(t, "iteration", tasktest.Step(t, task, int64(i), 1, lanes), want, 1e-6)
		}
		test := text[c.Tokens : c.Tokens+c.Length]
		score, err := m.Score(count.Window{Tokens: test})
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Near(t, "loss", score.Loss, c.Loss, 1e-6)
		chain, err := m.load()
		if err != nil {
			t.Fatal(err)
		}
		_, log := chain.likeliest(test)
		tasktest.Near(t, "loss of the path", -log, c.PathLoss, 1e-6)
		tasktest.Near(t, "hmmlearn's path", joint(chain, test, c.Path), log, 1e-9)
	}
}

// joint is the logarithm of the probability of a text and a path of states.
func joint(c *chain, tokens, path []int32) (sum float64) {
	for t, state := range path {
		p := c.initial.Data[state]
		if t > 0 {
			p = c.transitions.Data[int(path[t-1])*c.states+int(state)]
		}
		sum += math.Log(p * c.emitting[tokens[t]][state])
	}
	return sum
}

// opticks is the text of testdata/trace.py.
func opticks(t *testing.T) (ids corpus.IDs) {
	t.Helper()
	book, err := os.ReadFile("../../corpus/opticks.txt")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile("[^a-z]+").ReplaceAllString(strings.ToLower(string(book)), " ")
	known := map[rune]int32{}
	for _, c := range strings.TrimSpace(text) {
		if known[c] == 0 {
			known[c] = int32(len(known) + 1)
		}
		ids = append(ids, known[c])
	}
	return ids
}

// TestAllPaths: the probability of a text, the expected counts and the likeliest path are those of
// all paths, one by one.
func TestAllPaths(t *testing.T) {
	const K, V, T = 3, 4, 6
	_, m := newTask(t, Config{States: K, Vocabulary: V, Pseudo: 0.5, Seed: 7},
		corpus.IDs{1, 2}, 1, 9)
	c, err := m.load()
	if err != nil {
		t.Fatal(err)
	}
	tokens, rng := make([]int32, T), rand.New(rand.NewPCG(1, 2))
	for range 20 {
		for i := range tokens {
			tokens[i] = int32(rng.IntN(V))
		}
		sum, best, bestPath := 0.0, 0.0, []int32(nil)
		want := expected{make([]float64, K), matrix(K, K), make([]float64, K*V)}
		for number := range int(math.Pow(K, T)) {
			path := make([]int32, T)
			for t := range path {
				path[t] = int32(number % K)
				number /= K
			}
			p := math.Exp(joint(c, tokens, path))
			if sum += p; p > best {
				best, bestPath = p, path
			}
			want.starts[path[0]] += p
			for t, state := range path {
				if want.emissions[int(state)*V+int(tokens[t])] += p; t > 0 {
					want.transitions.Data[path[t-1]*K+state] += p
				}
			}
		}
		score, err := m.Score(count.Window{Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		tasktest.Near(t, "loss", score.Loss, -math.Log(sum), 1e-12)
		got := c.expect(tokens)
		for _, pair := range [][2][]float64{{got.starts, want.starts},
			{got.transitions.Data, want.transitions.Data}, {got.emissions, want.emissions}} {
			for i, n := range pair[0] {
				tasktest.Near(t, "expected count", n, pair[1][i]/sum, 1e-12)
			}
		}
		path, log := c.likeliest(tokens)
		if tasktest.Near(t, "path", log, math.Log(best), 1e-12); !slices.Equal(path, bestPath) {
			t.Errorf("%v is not the likeliest path %v of %v", path, bestPath, tokens)
		}
	}
}

// TestDealing: losses and counts do not depend on how lanes are dealt to seats, but for rounding.
// The loss falls in each iteration, and the counts are those of all tokens.
func TestDealing(t *testing.T) {
	const lanes = 6
	text := opticks(t)[:3000]
	c := Config{States: 4, Vocabulary: 28, Pseudo: 0.01, Seed: 3}
	one, m := newTask(t, c, text, lanes, 10000)
	three, _ := newTask(t, c, text, lanes, 10000)
	if n := one.SegmentsPerEpoch(); n != 1 {
		t.Fatalf("%d segments", n)
	}
	last := math.Inf(1)
	for i := range int64(15) {
		a, b := tasktest.Step(t, one, i, 1, lanes), tasktest.Step(t, three, i, 0.3, 2, 2, 2)
		if tasktest.Near(t, "three seats", b, a, 1e-5); !(a < last) {
			t.Errorf("iteration %d: %v after %v", i, a, last)
		}
		last = a
	}
	for i, want := range []float64{lanes, 3000 - lanes, 3000} {
		sum := 0.0
		for _, x := range m.Params()[m.Layout()[i].Offset:][:m.Layout()[i].Len] {
			sum += float64(x)
		}
		tasktest.Near(t, "sum of "+m.Layout()[i].Name, sum, want, 1e-5)
	}
}

// TestStepwise: if a step reads a part of the text, it replaces that part of the counts, and the
// loss falls from epoch to epoch.
func TestStepwise(t *testing.T) {
	text := opticks(t)[:8000]
	task, m := newTask(t, Config{States: 4, Vocabulary: 28, Pseudo: 0.01, Seed: 3}, text, 2, 1000)
	emissions, losses := m.Layout()[2], []float64{}
	for segment := range 4 * task.SegmentsPerEpoch() {
		if segment%task.SegmentsPerEpoch() == 0 {
			losses = append(losses, 0)
		}
		losses[len(losses)-1] += tasktest.Step(t, task, segment, 1, 2)
	}
	if len(losses) != 4 || !slices.IsSortedFunc(losses, func(a, b float64) int {
		return int(b - a)
	}) {
		t.Errorf("losses %v", losses)
	}
	sum := 0.0
	for _, x := range m.Params()[emissions.Offset:][:emissions.Len] {
		sum += float64(x)
	}
	tasktest.Near(t, "sum of emissions", sum, 8000, 0.1)
}

// TestStepwiseStarts: a pass of 16 steps leaves (1-1/16)^16, or 36%, of the initial counts of every
// tensor. So each state has at least 64% of its expected share of the starts, and the starts of an
// iteration of Baum-Welch are better by at most -log(0.64) a sequence.
func TestStepwiseStarts(t *testing.T) {
	const sequences, length = 32, 250
	text := opticks(t)[:sequences*length]
	for seed := range uint64(5) {
		task, m := newTask(t, Config{States: 8, Vocabulary: 28, Pseudo: 0.01, Seed: seed}, text, 2,
			length)
		for segment := range task.SegmentsPerEpoch() {
			tasktest.Step(t, task, segment, 1, 2)
		}
		sum := 0.0
		for _, x := range m.Params()[:m.Layout()[0].Len] {
			sum += float64(x)
		}
		if !(sum > 0.7*sequences && sum < 1.5*sequences) {
			t.Errorf("seed %d: starts add up to %v", seed, sum)
		}
		c, err := m.load()
		if err != nil {
			t.Fatal(err)
		}
		loss := func(gather func(tokens []int32)) (sum float64) {
			for i := range sequences {
				tokens := text[i*length:][:length]
				score, err := m.Score(count.Window{Tokens: tokens})
				if err != nil {
					t.Fatal(err)
				}
				sum += score.Loss
				gather(tokens)
			}
			return sum / sequences
		}
		starts := make([]float64, c.states)
		before := loss(func(tokens []int32) {
			for i, n := range c.expect(tokens).starts {
				starts[i] += n / sequences
			}
		})
		c.initial = vector(starts)
		after := loss(func([]int32) {})
		t.Logf("seed %d: %v a sequence, and %v with starts of their own", seed, before, after)
		if gain := before - after; !(gain >= 0 && gain <= -math.Log(0.64)) {
			t.Errorf("seed %d: its own starts are better by %v a sequence", seed, gain)
		}
	}
}

// TestLongText: a text of 200,000 tokens, far below the least float64 in its probability, has the
// loss of its parts read one after the other, and expected counts of every token.
func TestLongText(t *testing.T) {
	text := opticks(t)[:200000]
	_, m := newTask(t, Config{States: 3, Vocabulary: 28, Pseudo: 1e-6, Seed: 1}, text, 1, 1<<20)
	whole, err := m.Score(count.Window{Tokens: text})
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.load()
	if err != nil {
		t.Fatal(err)
	}
	first := -math.Log(c.newFilter().read(text[0]))
	rest, targets, err := m.LogLoss(t.Context(), text)
	if tasktest.Near(t, "loss", rest+first, whole.Loss, 1e-12); err != nil || targets != 199999 {
		t.Errorf("%d targets, %v", targets, err)
	}
	sum := 0.0
	for _, n := range c.expect(text).emissions {
		sum += n
	}
	tasktest.Near(t, "tokens", sum, 200000, 1e-9)
}

// TestGenerate: a text that repeats goes on, as far as its states can tell.
func TestGenerate(t *testing.T) {
	text := corpus.IDs{}
	for range 100 {
		text = append(text, 1, 2, 3)
	}
	task, m := newTask(t, Config{States: 3, Vocabulary: 4, Pseudo: 0.001, Seed: 2}, text, 1, 300)
	for i := range int64(60) {
		tasktest.Step(t, task, i, 1, 1)
	}
	g, err := m.NewGenerator()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	next, err := g.Generate(t.Context(), []int32{1}, 7, model.Sampling{Greedy: true})
	if want := []int32{2, 3, 1, 2, 3, 1, 2}; err != nil || !slices.Equal(next, want) {
		t.Errorf("%v, %v; want %v", next, err, want)
	}
	path, err := m.States([]int32{1, 2, 3, 1})
	if err != nil || path[0] == path[1] || path[0] == path[2] || path[1] == path[2] ||
		path[0] != path[3] {
		t.Errorf("path %v, %v", path, err)
	}
}

// TestErrors: a model that cannot be is refused, and so are parameters that are no counts.
func TestErrors(t *testing.T) {
	dev := tasktest.Device(t, 1)
	for _, c := range []Config{{Vocabulary: 2, Pseudo: 1}, {States: 2, Vocabulary: 2},
		{States: 2, Vocabulary: 2, Pseudo: math.NaN()}} {
		if _, err := New(c, dev); err == nil {
			t.Errorf("%+v is no error", c)
		}
	}
	m, err := New(Config{States: 2, Vocabulary: 2, Pseudo: 1}, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Params()[1] = float32(math.NaN())
	if _, err := m.States([]int32{1}); err == nil {
		t.Error("a count that is NaN is no error")
	}
}
