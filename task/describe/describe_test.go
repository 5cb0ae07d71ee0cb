package describe

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/example"
	"rondo/task/translate"
	"rondo/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	lanes   = 4
	columns = 3
	rows    = 5
)

// newTask makes a task of ten texts of five vectors, so that an epoch's last segment has two lanes
// without one. Each way of reading vectors has another way to end texts.
func newTask(t *testing.T, way string) *translate.Task {
	t.Helper()
	source := filepath.Join(t.TempDir(), "texts.tsv")
	text := strings.Repeat("0\ta b\n4\tc\n2\tb b a\n1\ta\n3\tc c\n", 2)
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := examples.Open(t.Context(), examples.Config{Source: source, MaxLength: 9,
		Kind: examples.Described, Rows: rows, CacheDir: t.TempDir(),
		Tokenizer: corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None},
		Reserved:  []string{translate.Begin, translate.End}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	batches, err := examples.NewBatches(set, examples.BatchesConfig{Lanes: lanes, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	evaluation, err := examples.NewEvaluation(set, lanes)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dev.Close)
	m, err := model.NewTranslator(model.TranslatorConfig{Cell: compute.LSTM, Vectors: columns,
		TargetVocab: set.TargetVocabulary().Len(), Embed: 4, Hidden: 6, Layers: 2, Dropout: 0.3,
		Context: model.Context(slices.Index(VectorUses(), way)), Seed: 3, End: translate.EndID,
		Ends: model.Ends(slices.Index(VectorUses(), way)), Lengths: 10,
		GradientTail: train.Tail}, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	vectors := make([]float32, rows*columns)
	for i := range vectors {
		vectors[i] = float32(math.Sin(float64(i)))
	}
	task, err := New(m, vectors, translate.Config{
		Training:   example.Data{Set: set, Batches: batches},
		Evaluation: &example.Data{Set: set, Batches: evaluation}})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// Loss, gradient and evaluation are sums over the lanes, however these are dealt to seats, and the
// targets are as many as Targets says: each text's tokens and its end.
func TestDealing(t *testing.T) {
	for _, way := range VectorUses() {
		t.Run(way, func(t *testing.T) {
			task := newTask(t, way)
			var want []float64
			for _, dealing := range [][]int{{4}, {1, 3}, {1, 1, 1, 1}} {
				sum, first := make([]float64, len(task.Params())+3), 0
				for _, count := range dealing {
					addEpoch(t, task, train.Lanes{First: first, Count: count}, sum)
					first += count
				}
				if want == nil {
					want = sum
				}
				for i := range want {
					if d := math.Abs(sum[i] - want[i]); !(d <= 1e-4*max(1, math.Abs(want[i]))) {
						t.Fatalf("%v: element %d is %v, want %v", dealing, i, sum[i], want[i])
					}
				}
				if n := sum[len(sum)-1]; n != 18+10 {
					t.Errorf("%v: %v targets", dealing, n)
				}
			}
		})
	}
}

// addEpoch adds what lanes compute in an epoch: the gradients, the loss, and the loss and the
// targets of an evaluation.
func addEpoch(t *testing.T, task *translate.Task, of train.Lanes, sum []float64) {
	t.Helper()
	s, err := task.Open(of.Count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.Read(t.Context(), train.Spans(task.SegmentsPerEpoch(), of))()
	result := sum[len(task.Params()):]
	for at := range train.Spans(task.SegmentsPerEpoch(), of) {
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		loss, err := s.Backward(train.Pass{Span: at, Scale: 0.5})
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range task.Gradients()[:len(task.Params())] {
			sum[i] += float64(g)
		}
		result[0] += loss
		if task.Tokens(at.Segment, of) != task.Targets(at.Segment, of) {
			t.Error("a vector is counted as a token")
		}
	}
	err = s.Evaluate(t.Context(), of, func(part train.Score) {
		result[1] += part.Loss
		result[2] += float64(part.Targets)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Rows describes each row, in order, whatever the number that is searched together.
func TestRows(t *testing.T) {
	for _, way := range VectorUses() {
		t.Run(way, func(t *testing.T) { checkRows(t, newTask(t, way)) })
	}
}

func checkRows(t *testing.T, task *translate.Task) {
	t.Helper()
	target := task.Training.Set.TargetVocabulary()
	var want []float64
	for _, together := range []int{5, 2, 1} {
		s, err := translate.NewSearcher(task.Translator, nil, target, translate.SearchConfig{
			Sentences: together, Beam: 2, Source: 1, Target: 6})
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		err = Rows(t.Context(), s, rows, together, func(row int, h translate.Hypothesis) error {
			if row != len(got) {
				t.Errorf("row %d after %d", row, len(got))
			}
			got = append(got, h.LogProbability)
			return nil
		})
		s.Close()
		if want == nil {
			want = got
		}
		if err != nil || len(got) != rows || !slices.EqualFunc(got, want, func(a, b float64) bool {
			return math.Abs(a-b) < 1e-5
		}) {
			t.Errorf("%d together: %v, want %v, %v", together, got, want, err)
		}
	}
}
