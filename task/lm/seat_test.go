package lm

import (
	"math"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/corpus"
	"rondo/model"
	"rondo/train"
)

// batches are a sampler's segments of a text.
type batches struct {
	*corpus.Reader
	*corpus.Sampler
}

// TestVariedSegments trains nothing on segments of random lengths. Their losses are those of the
// text read token by token, so each segment goes on from the state of the one before it.
func TestVariedSegments(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dev.Close)
	m, err := model.New(model.Config{Cell: compute.LSTM, Vocab: vocab, Embed: 4, Hidden: 6,
		Layers: 2, Seed: 3}, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	const lanes, count = 2, 12
	text := newText(900)
	sampler, err := corpus.NewSampler(corpus.SamplerConfig{Tokens: text.Len(), Lanes: lanes,
		BPTT: 24, Seed: 2, Sampling: corpus.Varied})
	if err != nil {
		t.Fatal(err)
	}
	task, err := New(m, Config{BPTT: 24,
		Batches: batches{corpus.NewReader(text, sampler), sampler}})
	if err != nil {
		t.Fatal(err)
	}
	seat, err := task.Open(lanes)
	if err != nil {
		t.Fatal(err)
	}
	defer seat.Close()
	spans := train.Spans(count, train.Lanes{Count: lanes})
	defer seat.Read(t.Context(), spans)()
	seat.ZeroState()
	loss, read := 0.0, int64(0)
	lengths := map[int]bool{}
	for span := range spans {
		if _, err := seat.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		sum, err := seat.Backward(train.Pass{Span: span, Scale: 1})
		if err != nil {
			t.Fatal(err)
		}
		loss += sum
		read += task.Tokens(span.Segment, train.Lanes{Count: 1})
		lengths[sampler.Length(span.Segment)] = true
	}
	want := 0.0
	for lane := range lanes {
		first := sampler.Offset(0, lane)
		part := text[first : first+read+1]
		p, _ := probabilities(t, m, part)
		for i, of := range p {
			want -= math.Log(of[part[i+1]])
		}
	}
	near(t, "all segments", loss, want)
	if len(lengths) < 3 {
		t.Errorf("segments of %d lengths", len(lengths))
	}
	states, replayed := make([]float32, lanes*task.StateSize()), replayStates(t, task, lanes, count)
	if err := seat.State(states); err != nil {
		t.Fatal(err)
	}
	for i, x := range states {
		if math.Abs(float64(x-replayed[i])) > 1e-5 {
			t.Fatalf("state %d is %v, and replayed %v", i, x, replayed[i])
		}
	}
}

// replayStates returns the lanes' states after this many segments.
func replayStates(t *testing.T, task *Task, lanes int, segments int64) []float32 {
	t.Helper()
	r, err := task.Replay(train.Lanes{Count: lanes})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for segment := range segments {
		if err := r.Advance(t.Context(), segment); err != nil {
			t.Fatal(err)
		}
	}
	states := make([]float32, lanes*task.StateSize())
	if err := r.State(states); err != nil {
		t.Fatal(err)
	}
	return states
}
