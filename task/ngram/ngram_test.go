package ngram

import (
	"context"
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

// traced is a case of testdata/trace.json.
type traced struct {
	Unit        string  `json:"unit"`
	Train, Test int     `json:",omitempty"`
	Order       int     `json:"order"`
	Vocabulary  int     `json:"vocabulary"`
	Smoothing   string  `json:"smoothing"`
	Perplexity  float64 `json:"perplexity"`
}

// text is the tokens of a case. Those that are not counted are 0.
func (c traced) text(t *testing.T) corpus.IDs {
	t.Helper()
	book, err := os.ReadFile("../../corpus/opticks.txt")
	if err != nil {
		t.Fatal(err)
	}
	letters := regexp.MustCompile("[^a-z]+").ReplaceAllString(strings.ToLower(string(book)), " ")
	tokens := strings.Split(strings.TrimSpace(letters), "")
	if c.Unit == "word" {
		tokens = strings.Fields(letters)
	}
	known, ids := map[string]int32{}, corpus.IDs{}
	for i, token := range tokens[:c.Train+c.Test] {
		if known[token] == 0 && i < c.Train {
			known[token] = int32(len(known) + 1)
		}
		ids = append(ids, known[token])
	}
	if len(known)+1 != c.Vocabulary {
		t.Fatalf("%s: %d tokens, and nltk has %d", c.Unit, len(known)+1, c.Vocabulary)
	}
	return ids
}

// counted makes a model of all of a text.
func counted(t *testing.T, text corpus.IDs, c Config) *Model {
	t.Helper()
	task, m := newTask(t, text, c, 1, 1000)
	for segment := range task.SegmentsPerEpoch() {
		tasktest.Step(t, task, segment, 0.3, 1)
	}
	return m
}

// newTask makes a task on a CPU.
func newTask(
	t *testing.T, text corpus.IDs, c Config, lanes, length int,
) (*count.Task, *Model) {
	t.Helper()
	index, err := NewIndex(t.Context(), text, c.Order)
	if err != nil {
		t.Fatal(err)
	}
	c.Grams = index.Len()
	m, err := NewModel(c, index, tasktest.Device(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	task, err := count.New(m, count.Config{Tail: train.Tail,
		Training:   count.NewText(text, int64(c.Order-1), lanes, length),
		Evaluation: count.NewText(text, 1, lanes, length)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		task.Close()
		m.Close()
	})
	return task, m
}

// smoothing parses a way that must be valid.
func smoothing(t *testing.T, text string) Smoothing {
	t.Helper()
	s, err := ParseSmoothing(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTrace: the perplexities are nltk's.
func TestTrace(t *testing.T) {
	data, err := os.ReadFile("testdata/trace.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []traced
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) != 18 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	for _, c := range cases {
		text := c.text(t)
		e, err := counted(t, text[:c.Train], Config{Order: c.Order, Vocabulary: c.Vocabulary,
			Smoothing: smoothing(t, c.Smoothing)}).Estimator()
		if err != nil {
			t.Fatal(err)
		}
		loss := e.loss(count.Window{Tokens: text[c.Train:], Context: c.Order - 1})
		perplexity := math.Exp(loss / float64(c.Test-c.Order+1))
		if math.Abs(perplexity-c.Perplexity) > 1e-9*c.Perplexity {
			t.Errorf("%+v: perplexity %v", c, perplexity)
		}
	}
}

// TestSums: the probabilities of all tokens add up to one after any history, and Distribution and
// Probability agree.
func TestSums(t *testing.T) {
	const V = 6
	rng := rand.New(rand.NewPCG(1, 2))
	text := make(corpus.IDs, 60)
	for i := range text {
		text[i] = int32(rng.IntN(V - 1)) // V-1 does not occur
	}
	for _, way := range []string{laplace, jelinekMercer, kneserNey, "laplace:0.1", "kneser-ney:1"} {
		for order := 1; order <= MaxOrder; order++ {
			e, err := counted(t, text, Config{Order: order, Vocabulary: V,
				Smoothing: smoothing(t, way)}).Estimator()
			if err != nil {
				t.Fatal(err)
			}
			p := make([]float64, V)
			for range 50 {
				history := make([]int32, rng.IntN(MaxOrder+1))
				for i := range history {
					history[i] = int32(rng.IntN(V))
				}
				e.Distribution(history, p)
				sum := 0.0
				for token, x := range p {
					sum += x
					if y := e.Probability(history, int32(token)); !(x > 0) ||
						math.Abs(x-y) > 1e-12 {
						t.Fatalf("%s, order %d: %d after %v: %v and %v", way, order, token,
							history, x, y)
					}
				}
				if math.Abs(sum-1) > 1e-12 {
					t.Fatalf("%s, order %d: the sum after %v is %v", way, order, history, sum)
				}
			}
		}
	}
}

// TestDealing: counts and losses do not depend on how lanes are dealt to seats, and a model has
// each n-gram as often as the text.
func TestDealing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	text := make(corpus.IDs, 1003)
	for i := range text {
		text[i] = int32(rng.IntN(9))
	}
	c := Config{Order: 3, Vocabulary: 9, Smoothing: smoothing(t, kneserNey)}
	one, m := newTask(t, text, c, 5, 7)
	three, _ := newTask(t, text, c, 5, 7)
	targets := int64(0)
	for segment := range one.SegmentsPerEpoch() {
		a := tasktest.Step(t, one, segment, 0.3, 5)
		b := tasktest.Step(t, three, segment, 0.3, 1, 2, 2)
		if math.Abs(a-b) > 1e-9 || segment == 0 && math.Abs(a-35*math.Log(9)) > 1e-9 {
			t.Fatalf("segment %d: losses %v and %v", segment, a, b)
		}
		targets += one.Targets(segment, train.Lanes{Count: 2}) +
			one.Targets(segment, train.Lanes{First: 2, Count: 3})
	}
	if !slices.Equal(one.Params(), three.Params()) {
		t.Error("three seats have counted otherwise than one")
	}
	if targets != 1001 {
		t.Errorf("%d targets", targets)
	}
	slow := map[[3]int32]float32{}
	for i := range len(text) - 2 {
		slow[[3]int32(text[i:])]++
	}
	for i := range m.index.Len() {
		if gram := [3]int32(m.index.grams[3*i:]); m.Params()[i] != slow[gram] {
			t.Errorf("%v: %v, and the text has it %v times", gram, m.Params()[i], slow[gram])
		}
	}
	if len(slow) != m.index.Len() {
		t.Errorf("%d n-grams, and the text has %d", m.index.Len(), len(slow))
	}
	one.Initialise()
	if e, err := m.current(); err != nil || e.counted != 0 {
		t.Errorf("%+v, %v after Initialise", e, err)
	}
}

// TestEvaluation: it has each target but the first once, in its context, as Score has.
func TestEvaluation(t *testing.T) {
	text := corpus.IDs{1, 2, 1, 2, 3, 1, 2, 1, 1, 3, 2, 1, 2, 1, 2, 3, 3}
	c := Config{Order: 3, Vocabulary: 4, Smoothing: smoothing(t, laplace)}
	task, m := newTask(t, text, c, 3, 4)
	tasktest.Step(t, task, 0, 0.3, 3)
	sum := tasktest.Evaluate(t, task, 1, 2)
	loss, targets, err := count.Score(t.Context(), m, text)
	if err != nil || math.Abs(loss-sum.Loss) > 1e-12 || targets != 16 || sum.Targets != 16 {
		t.Errorf("%v of %d targets, an evaluation has %v of %d: %v", loss, targets, sum.Loss,
			sum.Targets, err)
	}
}

// TestGenerate: a text that repeats goes on.
func TestGenerate(t *testing.T) {
	text := corpus.IDs{}
	for range 20 {
		text = append(text, 1, 2, 3)
	}
	g, err := counted(t, text, Config{Order: 3, Vocabulary: 4,
		Smoothing: smoothing(t, kneserNey)}).NewGenerator()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	next, err := g.Generate(t.Context(), []int32{1}, 7, model.Sampling{Greedy: true})
	if want := []int32{2, 3, 1, 2, 3, 1, 2}; err != nil || !slices.Equal(next, want) {
		t.Errorf("%v, %v; want %v", next, err, want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Generate(ended, []int32{1}, 7, model.Sampling{Greedy: true}); err == nil {
		t.Error("a cancelled generation goes on")
	}
}

// TestErrors: wrong flags and texts have an error of one line.
func TestErrors(t *testing.T) {
	for _, text := range []string{"", "good-turing", "laplace:", "laplace:0", "kneser-ney:1.1",
		"jelinek-mercer:1", "kneser-ney:NaN"} {
		if _, err := ParseSmoothing(text); err == nil || !strings.Contains(err.Error(),
			"--smoothing") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for order, want := range map[int]string{0: "--order 0", MaxOrder + 1: "--order 6",
		3: "a longer --corpus"} {
		_, err := NewIndex(t.Context(), corpus.IDs{1, 2}, order)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("order %d: %v", order, err)
		}
	}
	_, m := newTask(t, corpus.IDs{1, 2, 1}, Config{Order: 2, Vocabulary: 3,
		Smoothing: smoothing(t, laplace)}, 1, 9)
	for at, wrong := range map[int]float32{0: 0.5, m.Layout()[1].Offset: 3} {
		m.Params()[at] += wrong
		if _, err := m.Estimator(); err == nil {
			t.Errorf("parameter %d is %v, and no error", at, m.Params()[at])
		}
		m.Params()[at] -= wrong
	}
}
