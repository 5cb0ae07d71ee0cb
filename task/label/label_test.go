package label

import (
	"context"
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
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testG = 4 // lanes

// texts are 10 examples, so that an epoch's last segment has 2 lanes without one.
const texts = "x\ta b c\ny\tb\nz\tc c a b d\nx\ta\ny\tb b\nx\td a\nz\tc d c\nx\ta b a a\ny\tb d\n" +
	"z\tc\n"

const tags = "a x\nb y\n\nc z\n\nd x\na x\nb y\nc z\n\nb y\nb y\n\na x\nc z\nd x\n\nc z\na x\n\n" +
	"d x\n\na x\nb y\n\nc z\nc z\nb y\n\nd x\na x\n"

func openSet(t *testing.T, pool model.Pool) *examples.Set {
	t.Helper()
	c := examples.Config{Kind: examples.Labelled, MaxLength: 9, CacheDir: t.TempDir(),
		Tokenizer: corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None}}
	name, text := "texts.tsv", texts
	if pool == model.PoolNone {
		name, text, c.Kind = "tags.conll", tags, examples.Tagged
	}
	c.Source = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(c.Source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := examples.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() }) // a test may have closed it
	if set.Len() != 10 {
		t.Fatalf("%d examples", set.Len())
	}
	return set
}

func newLabeller(t *testing.T, set *examples.Set, pool model.Pool) *model.Labeller {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := model.NewLabeller(model.LabellerConfig{Cell: compute.GRU,
		Vocab: set.Vocabulary().Len(), Embed: 5, Hidden: 6, Layers: 1, Bidirectional: true,
		Dropout: 0.3, Labels: len(set.Labels()), Pool: pool, Seed: 3, GradientTail: train.Tail},
		dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		dev.Close()
	})
	return l
}

// pairs counts each pair of a predicted and a right label. Its metric is the number of targets.
type pairs struct{ labels int }

func (p pairs) Counters() int { return p.labels * p.labels }

func (p pairs) Count(counts []int64, predicted, right []int32) {
	for i := range right {
		counts[int(predicted[i])*p.labels+int(right[i])]++
	}
}

func (pairs) Metrics(counts []int64) []train.Metric {
	sum := 0.0
	for _, n := range counts {
		sum += float64(n)
	}
	return []train.Metric{{Name: "targets", Value: sum}}
}

// ledger keeps the spans that were read.
type ledger struct{ spans []train.Span }

func (l *ledger) Intend(step int64, part, first, count int, inputs []int32) error {
	l.spans = append(l.spans, train.Span{Step: step, Part: part,
		Lanes: train.Lanes{First: first, Count: count}})
	if len(inputs)%count != 0 {
		panic("inputs of no whole number of steps")
	}
	return nil
}

func newTask(t *testing.T, pool model.Pool, l ahead.Ledger) *Task {
	t.Helper()
	set := openSet(t, pool)
	batches, err := examples.NewBatches(set, examples.BatchesConfig{Lanes: testG, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	evaluation, err := examples.NewEvaluation(set, testG)
	if err != nil {
		t.Fatal(err)
	}
	return New(newLabeller(t, set, pool), Config{
		Training:   &Examples{example.Data{Set: set, Batches: batches}, pool},
		Evaluation: &Examples{example.Data{Set: set, Batches: evaluation}, pool}, EvalData: 7,
		Ledger: l, Counter: pairs{len(set.Labels())}})
}

var pools = map[string]model.Pool{"classify": model.PoolLast, "tag": model.PoolNone}

// dealings are ways to deal the lanes to seats.
var dealings = [][]train.Lanes{
	{{First: 0, Count: testG}},
	{{First: 0, Count: 1}, {First: 1, Count: 3}},
	{{First: 0, Count: 2}, {First: 2, Count: 2}},
	{{First: 0, Count: 1}, {First: 1, Count: 1}, {First: 2, Count: 1}, {First: 3, Count: 1}},
}

// Batches that are read ahead have the examples of their lanes, padded to the longest of all lanes,
// however lanes are dealt. Each epoch reads each example once; lanes without one have no target.
func TestBatches(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			task := newTask(t, pool, nil)
			for _, dealing := range dealings {
				seen := map[int64]int{}
				for _, lanes := range dealing {
					checkBatches(t, task.training.(*Examples), lanes, seen)
				}
				for example := range task.training.(*Examples).Set.Len() {
					if seen[example] != 2 {
						t.Errorf("%v: example %d was read %d times in 2 epochs", dealing, example,
							seen[example])
					}
				}
			}
		})
	}
}

func checkBatches(
	t *testing.T, d *Examples, lanes train.Lanes, seen map[int64]int,
) {
	t.Helper()
	segments := 2 * d.Batches.SegmentsPerEpoch()
	reader := read(t.Context(), d, train.Spans(segments, lanes), nil, lanes.Count)
	defer reader.Close()
	for segment := range segments {
		b, err := reader.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b.in.Steps != d.Batches.Steps(segment) || reader.At.Segment != segment {
			t.Errorf("segment %d: %d steps of segment %d", segment, b.in.Steps, reader.At.Segment)
		}
		targets := int64(0)
		for lane := range lanes.Count {
			column := func(x []int32) (out []int32) {
				for i := lane; i < len(x); i += lanes.Count {
					out = append(out, x[i])
				}
				return out
			}
			number := d.Batches.Example(segment, lanes.First+lane)
			wantTokens := make([]int32, b.in.Steps)
			wantTargets := slices.Repeat([]int32{-1}, len(b.in.Targets)/lanes.Count)
			length := 0
			if number >= 0 {
				seen[number]++
				length = d.Set.Length(number)
				n := d.Set.Targets(number)
				if err := d.Set.Read(number, wantTokens[:length], wantTargets[:n]); err != nil {
					t.Fatal(err)
				}
				targets += int64(n)
			}
			if int(b.in.Lengths[lane]) != length ||
				!slices.Equal(column(b.in.Inputs), wantTokens) ||
				!slices.Equal(column(b.in.Targets), wantTargets) {
				t.Errorf("segment %d, lane %d, example %d: %+v", segment, lane, number, b.in)
			}
		}
		if n := d.Batches.Targets(segment, lanes.First, lanes.Count); n != targets {
			t.Errorf("segment %d, %v: %d targets, and %d were read", segment, lanes, n, targets)
		}
	}
}

// Loss and gradient are sums over the lanes, however these are dealt to seats, and the ledger hears
// of each span.
func TestGradientDoesNotDependOnDealing(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			heard := &ledger{}
			task := newTask(t, pool, heard)
			var want []float64
			for _, dealing := range dealings {
				heard.spans = nil
				sum := make([]float64, len(task.Params())+1)
				for _, lanes := range dealing {
					addEpoch(t, task, lanes, sum)
				}
				if want == nil {
					want = sum
				}
				for i := range want {
					if d := math.Abs(sum[i] - want[i]); !(d <= 1e-4*max(1, math.Abs(want[i]))) {
						t.Fatalf("%v: element %d is %v, want %v", dealing, i, sum[i], want[i])
					}
				}
				segments := int(task.SegmentsPerEpoch())
				if n := len(heard.spans); n != segments*len(dealing) || heard.spans[n-1] !=
					(train.Span{Step: 3, Lanes: dealing[len(dealing)-1]}) {
					t.Errorf("%v: the ledger heard of %+v", dealing, heard.spans)
				}
			}
		})
	}
}

// addEpoch adds the gradients and the loss of an epoch of lanes to sum.
func addEpoch(t *testing.T, task *Task, lanes train.Lanes, sum []float64) {
	t.Helper()
	s, err := task.Open(lanes.Count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spans := func(yield func(train.Span) bool) {
		for at := range train.Spans(task.SegmentsPerEpoch(), lanes) {
			at.Step = at.Segment + 1
			if !yield(at) {
				return
			}
		}
	}
	defer s.Read(t.Context(), spans)()
	for at := range spans {
		rows, err := s.Next(t.Context())
		if err != nil || len(rows)%lanes.Count != 0 {
			t.Fatalf("rows %v, %v", rows, err)
		}
		loss, err := s.Backward(train.Pass{Span: at, Scale: 0.5})
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range task.Gradients()[:len(task.Params())] {
			sum[i] += float64(g)
		}
		sum[len(sum)-1] += loss
	}
}

// An evaluation counts each example once, however lanes are dealt, and as Score does.
func TestEvaluation(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			task := newTask(t, pool, nil)
			set, counter := task.evaluation.(*Examples).Set, task.counter
			counts := make([]int64, counter.Counters())
			want, err := Score(t.Context(), task.Labeller, set, func(predicted, right []int32) {
				counter.Count(counts, predicted, right)
			})
			if err != nil {
				t.Fatal(err)
			}
			targets := int64(0)
			for i := range set.Len() {
				targets += int64(set.Targets(i))
			}
			if want.Targets != targets || int64(counter.Metrics(counts)[0].Value) != targets {
				t.Errorf("%+v and the counts %v; there are %d targets", want, counts, targets)
			}
			for _, dealing := range dealings {
				got := train.Score{Counts: make([]int64, counter.Counters())}
				for _, lanes := range dealing {
					addScore(t, task, lanes, &got)
				}
				if got.Targets != targets || !slices.Equal(got.Counts, counts) ||
					!(math.Abs(got.Loss-want.Loss) < 1e-5*want.Loss) {
					t.Errorf("%v: %+v, want %+v and %v", dealing, got, want, counts)
				}
			}
		})
	}
}

func addScore(t *testing.T, task *Task, lanes train.Lanes, sum *train.Score) {
	t.Helper()
	s, err := task.Open(lanes.Count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Evaluate(t.Context(), lanes, func(part train.Score) {
		sum.Loss += part.Loss
		sum.Targets += part.Targets
		for i, n := range part.Counts {
			sum.Counts[i] += n
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A batch that cannot be read is an error that names the example; an ended context ends the wait.
func TestReadFails(t *testing.T) {
	task := newTask(t, model.PoolLast, nil)
	s, err := task.Open(testG)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lanes := train.Lanes{Count: testG}
	ended, end := context.WithCancel(t.Context())
	end()
	stop := s.Read(ended, train.Spans(1, lanes))
	if _, err := s.Next(ended); err == nil {
		t.Error("read with an ended context")
	}
	stop()
	if err := s.Evaluate(ended, lanes, func(train.Score) {}); err == nil {
		t.Error("evaluated with an ended context")
	}
	if err := task.training.(*Examples).Set.Close(); err != nil {
		t.Fatal(err)
	}
	defer s.Read(t.Context(), train.Spans(1, lanes))()
	if _, err := s.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "example ") {
		t.Errorf("%v, want the example that could not be read", err)
	}
}
