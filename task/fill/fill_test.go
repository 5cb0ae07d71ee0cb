package fill

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/corpus"
	"rondo/model"
	"rondo/task/label"
	"rondo/train"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testG = 4
	testT = 7
)

func vocabulary(t *testing.T) *corpus.Vocabulary {
	t.Helper()
	v, err := corpus.NewVocabulary([]string{corpus.Unknown, Blank, "a", "b", "c", " "})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// tokens are n tokens of the vocabulary, without Unknown and Blank.
func tokens(n int) corpus.IDs {
	ids := make(corpus.IDs, n)
	for i := range ids {
		ids[i] = 2 + int32(corpus.Hash3(1, uint64(i), 2)%4)
	}
	return ids
}

// texts are a text to train on and the same one to evaluate on, which has a last segment of 5
// tokens and lanes without one.
func texts(t *testing.T, blanks Blanks) (training, evaluation *Text) {
	t.Helper()
	ids := tokens(9*testT + 6)
	sampler, err := corpus.NewSampler(corpus.SamplerConfig{Tokens: ids.Len(), Lanes: testG,
		BPTT: testT, Seed: 3, Sampling: corpus.Sequential})
	if err != nil {
		t.Fatal(err)
	}
	c := TextConfig{Tokens: ids, BPTT: testT, Lanes: testG, Sampler: sampler, Blanks: blanks}
	training = NewText(c)
	c.Sampler = nil
	return training, NewText(c)
}

var testBlanks = Blanks{Token: 1, Share: 0.3, Seed: 5}

// column is a lane's part of [T, lanes].
func column(x []int32, lane, lanes int) (out []int32) {
	for i := lane; i < len(x); i += lanes {
		out = append(out, x[i])
	}
	return out
}

// filled reads a segment of some lanes. Its targets are by steps, with blanks too.
func filled(t *testing.T, text *Text, segment int64, lanes train.Lanes) model.Examples {
	t.Helper()
	in := model.Examples{Inputs: make([]int32, testT*lanes.Count),
		Targets: make([]int32, testT*lanes.Count), Lengths: make([]int32, lanes.Count)}
	at := train.Span{Segment: segment, Lanes: lanes}
	read, err := text.Fill(t.Context(), at, &in)
	if err != nil {
		t.Fatal(err)
	}
	if text.cfg.Blanks.Token != 0 {
		byStep := slices.Repeat([]int32{corpus.Padding}, len(in.Inputs))
		for row, step := range in.Places {
			if at := int(step)*lanes.Count + row%lanes.Count; step >= 0 {
				byStep[at] = in.Targets[row]
			}
		}
		in.Targets = byStep
	}
	for i, id := range in.Inputs {
		if text.cfg.Blanks.Token != 0 && id == text.cfg.Blanks.Token {
			id = in.Targets[i]
		}
		if read[i] != id {
			t.Errorf("the ledger hears of %v", read)
		}
	}
	return in
}

// Each segment has as many blanks as Targets says, at least one. At a blank, the network reads
// Blank, and the target is the token; elsewhere it reads the token, and there is no target. Which
// tokens are blank differs from segment to segment, and the evaluation has each token once.
func TestBlanks(t *testing.T) {
	for _, share := range []float64{0.01, 0.3, 1} {
		blanks := testBlanks
		blanks.Share = share
		training, evaluation := texts(t, blanks)
		all := train.Lanes{Count: testG}
		masks, read := map[string]bool{}, corpus.IDs(nil)
		for _, text := range []*Text{training, evaluation} {
			for segment := range text.SegmentsPerEpoch() {
				in := filled(t, text, segment, all)
				n := int64(0)
				for lane := range testG {
					offset, length := text.at(segment, lane)
					if length == 0 {
						offset = 0
					}
					inputs, targets := column(in.Inputs, lane, testG), column(in.Targets, lane,
						testG)
					mask := ""
					for i := range inputs {
						if i < length && inputs[i] == blanks.Token {
							n++
							mask += "_"
							inputs[i] = targets[i]
						} else if mask += "."; targets[i] != corpus.Padding {
							t.Errorf("a target at %d, which is no blank: %v", i, targets)
						}
					}
					masks[mask] = true
					want := text.cfg.Tokens.(corpus.IDs)[offset:][:length]
					if int(in.Lengths[lane]) != length || !slices.Equal(inputs[:length], want) {
						t.Errorf("segment %d, lane %d: read %v, want %v", segment, lane, inputs,
							want)
					}
					if text == evaluation {
						read = append(read, inputs[:length]...)
					}
				}
				if got := text.Targets(segment, all); got != n || n == 0 {
					t.Errorf("segment %d: %d targets, and %d were read", segment, got, n)
				}
			}
		}
		if want := evaluation.cfg.Tokens.(corpus.IDs); !slices.Equal(read, want[:len(want)-1]) {
			t.Errorf("the evaluation read %v of %v", read, want)
		}
		if share < 1 && len(masks) < 5 {
			t.Errorf("share %v: only the masks %v", share, masks)
		}
	}
}

// Without blanks, the targets are the next tokens.
func TestNextTokens(t *testing.T) {
	training, _ := texts(t, Blanks{})
	in := filled(t, training, 0, train.Lanes{Count: testG})
	for lane := range testG {
		inputs, targets := column(in.Inputs, lane, testG), column(in.Targets, lane, testG)
		if !slices.Equal(inputs[1:], targets[:testT-1]) {
			t.Errorf("lane %d: read %v, targets %v", lane, inputs, targets)
		}
	}
	if n := training.Targets(0, train.Lanes{First: 1, Count: 2}); n != 2*testT {
		t.Errorf("%d targets", n)
	}
}

func newLabeller(t *testing.T, dropout float64) *model.Labeller {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	V := vocabulary(t).Len()
	l, err := model.NewLabeller(model.LabellerConfig{Cell: compute.GRU, Vocab: V, Embed: 5,
		Hidden: 6, Layers: 1, Bidirectional: true, Dropout: dropout, Labels: V,
		Pool: model.PoolPlaces, Places: testBlanks.Count(testT), Seed: 3,
		GradientTail: train.Tail}, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		dev.Close()
	})
	return l
}

// dealings are ways to deal the lanes to seats.
var dealings = [][]train.Lanes{
	{{First: 0, Count: testG}},
	{{First: 0, Count: 1}, {First: 1, Count: 3}},
	{{First: 0, Count: 1}, {First: 1, Count: 1}, {First: 2, Count: 1}, {First: 3, Count: 1}},
}

// Loss, gradient and evaluation are sums over the lanes, however these are dealt to seats. An
// evaluation does not even depend on how many lanes there are.
func TestDealing(t *testing.T) {
	training, evaluation := texts(t, testBlanks)
	task := label.New(newLabeller(t, 0.3), label.Config{Training: training,
		Evaluation: evaluation, EvalData: 7, Counter: Counter{}})
	if task.StateSize() != 0 || !task.Reset(1) || !task.Evaluates() {
		t.Error("lanes must carry no state, and be evaluated")
	}
	var want, counted []float64
	for _, dealing := range dealings {
		sum := make([]float64, len(task.Params())+1)
		score := make([]float64, 2+counters)
		for _, lanes := range dealing {
			addEpoch(t, task, lanes, sum)
			addScore(t, task, lanes, score)
		}
		if want == nil {
			want, counted = sum, score
		}
		near(t, sum, want)
		near(t, score, counted)
	}
	other := evaluation.cfg
	other.Lanes = 3
	score := make([]float64, 2+counters)
	got, err := label.ScoreData(t.Context(), task.Labeller, NewText(other), other.Lanes,
		func(predicted, right []int32) {
			counts := make([]int64, counters)
			Counter{}.Count(counts, predicted, right)
			for i, n := range counts {
				score[2+i] += float64(n)
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	score[0], score[1] = got.Loss, float64(got.Targets)
	near(t, score, counted)
	if m := (Counter{}).Metrics([]int64{4, 1}); !reflect.DeepEqual(m,
		[]train.Metric{{Name: "accuracy", Value: 0.25}}) {
		t.Errorf("metrics %v", m)
	}
}

func near(t *testing.T, got, want []float64) {
	t.Helper()
	for i := range want {
		if d := math.Abs(got[i] - want[i]); !(d <= 1e-4*max(1, math.Abs(want[i]))) {
			t.Fatalf("element %d of %d is %v, want %v", i, len(want), got[i], want[i])
		}
	}
}

// addEpoch adds the gradients and the loss of an epoch of lanes to sum.
func addEpoch(t *testing.T, task *label.Task, lanes train.Lanes, sum []float64) {
	t.Helper()
	s, err := task.Open(lanes.Count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.Read(t.Context(), train.Spans(task.SegmentsPerEpoch(), lanes))()
	for at := range train.Spans(task.SegmentsPerEpoch(), lanes) {
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
		sum[len(sum)-1] += loss
	}
}

func addScore(t *testing.T, task *label.Task, lanes train.Lanes, sum []float64) {
	t.Helper()
	s, err := task.Open(lanes.Count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Evaluate(t.Context(), lanes, func(part train.Score) {
		sum[0] += part.Loss
		sum[1] += float64(part.Targets)
		for i, n := range part.Counts {
			sum[2+i] += float64(n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// broken are tokens that cannot be read.
type broken struct{ corpus.IDs }

func (broken) ReadTokens([]int32, int64) error { return errors.New("torn") }

// A segment that cannot be read is an error that names it.
func TestReadFails(t *testing.T) {
	text := NewText(TextConfig{Tokens: broken{tokens(20)}, BPTT: testT, Lanes: 1})
	_, err := text.Fill(context.Background(), train.Span{Segment: 1, Lanes: train.Lanes{Count: 1}},
		&model.Examples{Inputs: make([]int32, testT), Targets: make([]int32, testT),
			Lengths: make([]int32, 1)})
	if err == nil || !strings.Contains(err.Error(), "segment 1, lane 0: torn") {
		t.Error(err)
	}
}
