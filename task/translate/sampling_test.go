package translate

import (
	"math"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/model"
	"rondo/task/example"
	"rondo/train"
)

// TestSampling wants each input to be the right token or the decoder's prediction after the inputs
// before it, as it was drawn, however the lanes are dealt, with every attention. With some the
// prediction is the likeliest token, with others one of the distribution.
func TestSampling(t *testing.T) {
	const pairs, lanes = 28, 7
	d := newData(t, pairs, lanes)
	for kind, name := range model.AttentionNames() {
		m := newSampled(t, d, model.AttentionKind(kind))
		drawn := kind%2 == 1
		counts := map[float64][2]int{} // drawn inputs, and those that differ from the right ones
		for _, own := range []float64{0, 0.5, 1} {
			for _, dealt := range []train.Lanes{{Count: 7}, {Count: 3}, {First: 3, Count: 4}} {
				task, err := New(m, Config{Training: d, Sampling: Sampling{Own: own, Seed: 5,
					Drawn: drawn}})
				if err != nil {
					t.Fatal(err)
				}
				own, changed := checkSampling(t, task, dealt)
				c := counts[task.sampling.Own]
				counts[task.sampling.Own] = [2]int{c[0] + own, c[1] + changed}
			}
		}
		all := counts[1][0]
		if counts[0] != [2]int{} || math.Abs(float64(counts[0.5][0])/float64(all)-0.5) > 0.1 ||
			counts[1][1] < all/3 {
			t.Errorf("%s: inputs that were drawn and that changed, by probability: %v", name,
				counts)
		}
	}
}

// newSampled makes a translator for the pairs on a CPU, and closes it after the test.
func newSampled(t *testing.T, d example.Data, attention model.AttentionKind) *model.Translator {
	t.Helper()
	device, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(device.Close)
	m, err := model.NewTranslator(model.TranslatorConfig{Cell: compute.GRU,
		SourceVocab: d.Set.Vocabulary().Len(), TargetVocab: d.Set.TargetVocabulary().Len(),
		Embed: 4, Hidden: 5, Layers: 2, Attention: attention, Dropout: 0.3,
		Init: model.Init{Kind: model.Normal, Value: 1}, Seed: 7}, device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// checkSampling holds the inputs of some lanes against a decoder of one lane, and counts the drawn
// ones and those that changed.
func checkSampling(t *testing.T, task *Task, lanes train.Lanes) (drawn, changed int) {
	t.Helper()
	together, alone := openSeat(t, task, lanes.Count), openDecoder(t, task)
	reader := task.read(t.Context(), &task.Training, train.Spans(task.SegmentsPerEpoch(), lanes),
		nil, lanes.Count)
	defer reader.Close()
	logits := make([]float32, task.Config().TargetVocab)
	for segment := range task.SegmentsPerEpoch() {
		b, err := reader.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		in := b.in
		in.Step = segment
		for lane := range lanes.Count {
			in.Lanes = append(in.Lanes, lanes.First+lane)
		}
		if err := together.sample(segment, &in); err != nil {
			t.Fatal(err)
		}
		own := make([]bool, len(in.Inputs))
		task.sampling.draw(&in, task.sampling.Own, own)
		for lane := range lanes.Count {
			source := column(in.Source, lane, lanes.Count)
			if err := alone.Encode(source, in.SourceLengths[lane:][:1]); err != nil {
				t.Fatal(err)
			}
			for step := range in.TargetSteps {
				at := step*lanes.Count + lane
				want := b.in.Inputs[at]
				if own[at] {
					want = task.sampling.choose(task.marks, &in, lane, step-1, logits)
					drawn++
				}
				if want != b.in.Inputs[at] {
					changed++
				}
				if in.Inputs[at] != want {
					t.Fatalf("segment %d, lane %d, step %d reads %d, want %d; drawn: %t", segment,
						lanes.First+lane, step, in.Inputs[at], want, own[at])
				}
				if err := alone.Logits([]int32{want}, nil, logits); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return drawn, changed
}

func openDecoder(t *testing.T, task *Task) *model.Decoder {
	t.Helper()
	d, err := task.NewDecoder(task.source, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func openSeat(t *testing.T, task *Task, lanes int) *seat {
	t.Helper()
	s, err := task.Open(lanes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.(*seat)
}

// TestSampledPasses wants the passes of two steps, of two segments each, to read the decoder's own
// predictions, from the step on that the schedule says.
func TestSampledPasses(t *testing.T) {
	const pairs, lanes, accumulate, passes = 28, 7, 2, 4
	d := newData(t, pairs, lanes)
	m := newSampled(t, d, model.AttentionNone)
	losses := func(s Sampling) (losses []float64) {
		task, err := New(m, Config{Training: d, Sampling: s})
		if err != nil {
			t.Fatal(err)
		}
		seat, all := openSeat(t, task, lanes), train.Lanes{Count: lanes}
		defer seat.Read(t.Context(), train.Spans(passes, all))()
		for segment := range int64(passes) {
			if _, err := seat.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			loss, err := seat.Backward(train.Pass{Scale: 1, OnlyPasses: true, Span: train.Span{
				Step: segment/accumulate + 1, Part: int(segment % accumulate), Segment: segment,
				Lanes: all}})
			if err != nil {
				t.Fatal(err)
			}
			losses = append(losses, loss)
		}
		return losses
	}
	right, own := losses(Sampling{Seed: 5}), losses(Sampling{Own: 1, Seed: 5})
	for i := range passes {
		if right[i] == own[i] {
			t.Errorf("pass %d has the loss %v whatever it reads", i, own[i])
		}
	}
	grown := losses(Sampling{Own: 1, Steps: 1, Seed: 5})
	if want := slices.Concat(right[:accumulate], own[accumulate:]); !slices.Equal(grown, want) {
		t.Errorf("losses %v, want %v: right tokens in the first step alone", grown, want)
	}
}

// TestDrawn wants tokens as often as softmax(logits) says, but for the one that begins.
func TestDrawn(t *testing.T) {
	const draws = 1000
	m, logits := marks{begin: 1}, []float32{0, 9, float32(math.Log(3)), float32(math.Inf(-1))}
	counts := make([]int, len(logits))
	for i := range draws {
		counts[m.drawn(logits, float64(i)/draws)]++
	}
	if !slices.Equal(counts, []int{draws / 4, 0, 3 * draws / 4, 0}) {
		t.Errorf("%d draws: %v", draws, counts)
	}
}

// TestSamplingDraws wants draws that depend on the seed, the step, the lane and the position, and
// the probability to grow as scheduled.
func TestSamplingDraws(t *testing.T) {
	const steps, lanes = 60, 20
	in := model.Pairs{TargetSteps: steps, Inputs: make([]int32, steps*lanes),
		Targets: make([]int32, steps*lanes)}
	for lane := range lanes {
		in.Lanes = append(in.Lanes, lane)
	}
	s := Sampling{Own: 0.8, Steps: 100, Seed: 3}
	share := func(s Sampling, step int64) (own []bool, share float64) {
		in.Step, own = step, make([]bool, len(in.Inputs))
		s.draw(&in, s.own(step), own)
		n := 0
		for _, is := range own {
			if is {
				n++
			}
		}
		return own, float64(n) / ((steps - 1) * lanes)
	}
	for step, want := range map[int64]float64{0: 0, 25: 0.2, 50: 0.4, 100: 0.8, 500: 0.8} {
		if _, got := share(s, step); !(math.Abs(got-want) <= 0.05) {
			t.Errorf("step %d draws %v of the inputs, want %v", step, got, want)
		}
	}
	one, _ := share(s, 200)
	again, _ := share(s, 200)
	next, _ := share(s, 201)
	other, _ := share(Sampling{Own: 0.8, Seed: 4}, 200)
	if !slices.Equal(one, again) || slices.Equal(one, next) || slices.Equal(one, other) ||
		slices.Equal(one[lanes:2*lanes], one[2*lanes:3*lanes]) ||
		slices.Contains(one[:lanes], true) {
		t.Error("draws do not depend on seed, step and position alone, or the first is drawn")
	}
}
