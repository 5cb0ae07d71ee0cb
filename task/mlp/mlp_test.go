package mlp

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/tasktest"
	"rondo/train"
)

// small is a network of a text of 9 tokens.
func small() model.WindowConfig {
	return model.WindowConfig{Vocab: 9, Embed: 4, Hidden: 6, Layers: 2, Reads: 3, Seed: 1,
		GradientTail: train.Tail}
}

// newTask makes a task on a CPU that reads a text in parts of so many targets.
func newTask(t *testing.T, c model.WindowConfig, text corpus.IDs, lanes, length int) *Task {
	t.Helper()
	w, err := model.NewWindow(c, tasktest.Device(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return New(w, Config{BPTT: length,
		Training:   count.NewText(text, int64(c.Reads), lanes, length).Apart(),
		Evaluation: count.NewText(text, 1, lanes, length)})
}

// noise is a text of n random tokens.
func noise(n int) (text corpus.IDs) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range n {
		text = append(text, int32(rng.IntN(9)))
	}
	return text
}

// TestDealing: losses and gradients do not depend on how lanes are dealt to seats, and an epoch has
// each target once. The first lane reads the text's beginning, and the second a part of its own.
func TestDealing(t *testing.T) {
	const lanes = 4
	text := noise(500)
	task := newTask(t, small(), text, lanes, 7)
	targets := int64(0)
	for segment := range task.SegmentsPerEpoch() {
		a, one := tasktest.Pass(t, task, segment, 0.01, lanes)
		b, two := tasktest.Pass(t, task, segment, 0.01, 2, 2)
		if math.Abs(a-b) > 1e-4 {
			t.Errorf("segment %d: losses %v and %v", segment, a, b)
		}
		for i, g := range one {
			if math.Abs(float64(g-two[i])) > 1e-6 {
				t.Fatalf("segment %d: gradient %d is %v and %v", segment, i, g, two[i])
			}
		}
		n := task.Targets(segment, train.Lanes{Count: lanes})
		if n < 1 {
			t.Errorf("segment %d has no target", segment)
		}
		targets += n
	}
	if targets != 497 {
		t.Errorf("%d targets", targets)
	}
	if n := task.cfg.Training.Example(0, 1); n != task.SegmentsPerEpoch() {
		t.Errorf("lane 1 begins at example %d of %d in each lane", n, task.SegmentsPerEpoch())
	}
}

// TestWindows: a prediction reads the tokens before it, in order; before the text is token 0.
func TestWindows(t *testing.T) {
	var b batch
	b.load(3, 2, count.Window{Tokens: []int32{5, 6, 7}, Context: 1})
	if !slices.Equal(b.in.Tokens, []int32{0, 5, 5, 6, 0, 0}) || b.targets != 2 ||
		!slices.Equal(b.in.Targets, []int32{6, 7, -1}) {
		t.Errorf("%+v", b)
	}
}

// TestEvaluation: it has each target but the first once, as Score has.
func TestEvaluation(t *testing.T) {
	text := noise(100)
	task := newTask(t, small(), text, 3, 8)
	sum := tasktest.Evaluate(t, task, 1, 2)
	loss, targets, err := Score(t.Context(), task.Window, text)
	if err != nil || math.Abs(loss-sum.Loss) > 1e-3 || targets != 99 || sum.Targets != 99 {
		t.Errorf("%v of %d targets, an evaluation has %v of %d: %v", loss, targets, sum.Loss,
			sum.Targets, err)
	}
}

// TestLearning: a text in which the token before the last decides the next is learned with two
// tokens and not with one, and the network writes it.
func TestLearning(t *testing.T) {
	text := corpus.IDs{1, 2}
	for i := range 400 {
		text = append(text, text[i]%4+1)
	}
	losses := map[int]float64{}
	for _, reads := range []int{1, 2} {
		c := small()
		c.Reads, c.Hidden = reads, 16
		task := newTask(t, c, text, 4, 10)
		for epoch := range int64(40) {
			for segment := range task.SegmentsPerEpoch() {
				tasktest.Step(t, task, epoch*task.SegmentsPerEpoch()+segment, 0.01, 4)
			}
		}
		loss, targets, err := Score(t.Context(), task.Window, text)
		if err != nil {
			t.Fatal(err)
		}
		losses[reads] = loss / float64(targets)
		if reads == 1 {
			continue
		}
		g, err := NewGenerator(task.Window)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		next, err := g.Generate(t.Context(), []int32{1, 2}, 6, model.Sampling{Greedy: true})
		if err != nil || !slices.Equal(next, []int32{2, 3, 3, 4, 4, 1}) {
			t.Errorf("%v, %v", next, err)
		}
	}
	if losses[2] > 0.1 || losses[1] < 0.3 {
		t.Errorf("losses by the number of tokens: %v", losses)
	}
}
