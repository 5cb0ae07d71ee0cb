package model

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// recordingCase is a model on two devices, one of which records.
type recordingCase struct {
	t              *testing.T
	recorder       *devicetest.Recorder
	plain, records *Segment
}

func newRecordingCase(t *testing.T, cfg Config, T, B int) recordingCase {
	recorder := devicetest.NewRecorder(newDevice(t))
	return recordingCase{t, recorder, newSegment(t, newModel(t, cfg), T, B),
		newSegment(t, newModelOn(t, cfg, recorder), T, B)}
}

// step runs both models, compares losses, gradients and states, and updates both.
func (c recordingCase) step(in SegmentInput) {
	c.t.Helper()
	var want []float32
	for _, s := range []*Segment{c.plain, c.records} {
		m, got := s.model, outcome(c.t, s, in)
		if want == nil {
			want = got
		}
		devicetest.SameBits(c.t, "loss, gradients and states", got, want)
		m.dev.Update(compute.Update{LR: 0.5}, m.Params(), m.Gradients(), nil, nil)
	}
}

// outcome returns a run's loss, gradients and state.
func outcome(t *testing.T, s *Segment, in SegmentInput) []float32 {
	t.Helper()
	m, state := s.model, make([]float32, s.B*s.model.config.StateSize())
	got := append([]float32{float32(run(t, s, in))}, download(m, m.Gradients())...)
	if err := s.State(state); err != nil {
		t.Fatal(err)
	}
	return append(got, state...)
}

// TestRecordingsAreRuns compares a recording device with another, bit for bit, over steps with
// different tokens and masks, in one chunk and in several.
func TestRecordingsAreRuns(t *testing.T) {
	const T, B = 5, 3
	for name, cfg := range some(shapes()) {
		for k, recordings := range map[int]int{0: 2, 2: 8} { // 2: chunks of 2, 2 and 1
			t.Run(name, func(t *testing.T) {
				cfg.Recompute = k
				c := newRecordingCase(t, cfg, T, B)
				rng := rand.New(rand.NewPCG(5, 6))
				for step := range 9 {
					in := randomInput(rng, T, B, cfg.Vocab)
					in.Step, in.OnlySegments = int64(step), step%3 > 0
					in.Lanes = rng.Perm(20)[:B]
					if step == 6 {
						c.plain.ZeroState()
						c.records.ZeroState()
					}
					c.step(in)
				}
				if got := c.recorder.Recorded; got != recordings {
					t.Errorf("recompute %d: %d recordings, want %d", k, got, recordings)
				}
				// The first of 9 runs is not recorded.
				if n, want := c.recorder.Replayed, 8*(2*len(c.records.states)-3); n != want {
					t.Errorf("recompute %d: %d replays, want %d", k, n, want)
				}
				c.records.Close()
				if c.recorder.Open != 0 {
					t.Errorf("%d recordings are open", c.recorder.Open)
				}
			})
		}
	}
}

// TestRecordedEvaluation compares evaluators of a recording device and another, bit for bit: with
// other text each time, zeroed states, trained weights, and runs that only advance the state in
// between.
func TestRecordedEvaluation(t *testing.T) {
	const T, B = 5, 3
	for name, cfg := range some(shapes()) {
		for k, recordings := range map[int]int{0: 2, 2: 4} { // 2: chunks of two steps, and of one
			cfg.Recompute = k
			c := newRecordingCase(t, cfg, T, B)
			plain, records := newEvaluator(t, c.plain.model, T, B), newEvaluator(t,
				c.records.model, T, B)
			rng := rand.New(rand.NewPCG(5, 6))
			for i := range 12 {
				in := randomInput(rng, T, B, cfg.Vocab)
				var want []float32
				for _, e := range []*Evaluator{plain, records} {
					got := evaluateOnce(t, e, in, i/4 == 1) // four only advance
					if want == nil {
						want = got
					}
					devicetest.SameBits(t, name, got, want)
					if i == 10 {
						e.ZeroState()
					}
				}
				if i == 2 {
					weights := c.plain.model.Params()
					c.plain.model.dev.Scale(weights, 0.5)
					c.recorder.Scale(c.records.model.Params(), 0.5)
				}
			}
			if got := c.recorder.Recorded; got != recordings {
				t.Errorf("%s, recompute %d: %d recordings, want %d", name, k, got, recordings)
			}
			if records.Close(); c.recorder.Open != 0 {
				t.Errorf("%d recordings are open", c.recorder.Open)
			}
		}
	}
}

// evaluateOnce returns the loss of a text, unless it only advances, and the state after it.
func evaluateOnce(t *testing.T, e *Evaluator, in SegmentInput, carry bool) []float32 {
	t.Helper()
	loss, err := 0.0, error(nil)
	if carry {
		err = e.Advance(in.Inputs)
	} else {
		loss, _, err = e.Evaluate(in.Inputs, in.Targets)
	}
	if err != nil {
		t.Fatal(err)
	}
	state := make([]float32, e.B*e.model.config.StateSize())
	if err := e.State(state); err != nil {
		t.Fatal(err)
	}
	return append(state, float32(loss))
}

func newEvaluator(t *testing.T, m *Model, T, B int) *Evaluator {
	t.Helper()
	e, err := m.NewEvaluator(T, B)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestRecordedGeneration expects the same text as without recording, after several prefixes.
func TestRecordedGeneration(t *testing.T) {
	for name, cfg := range some(shapes()) {
		c := newRecordingCase(t, cfg, 2, 1)
		var all [2][]int32
		for i, s := range []*Segment{c.plain, c.records} {
			g, err := s.model.NewGenerator(1)
			if err != nil {
				t.Fatal(err)
			}
			for _, prefix := range [][]int32{{1}, {2, 0, 1, 3}, {3, 2, 1}} {
				text, err := g.Generate(t.Context(), prefix, 9, Sampling{Temperature: 1, Seed: 7})
				if err != nil {
					t.Fatal(err)
				}
				all[i] = append(all[i], text...)
			}
			g.Close()
		}
		if !slices.Equal(all[0], all[1]) {
			t.Errorf("%s: %v, recorded %v", name, all[0], all[1])
		}
		// Each text predicts nine tokens. Before these there is one run for each prefix token but
		// the last. The first run of each kind is not recorded, the second is.
		r := c.recorder
		if r.Replayed != 8+(2+9)+(2+9) || r.Recorded != 2 || r.Open != 0 {
			t.Errorf("%s: %d replays of %d recordings, of which %d are open", name, r.Replayed,
				r.Recorded, r.Open)
		}
	}
}

// TestRecordingsAreOfOneScale changes the scale: the recordings are dropped and made again.
func TestRecordingsAreOfOneScale(t *testing.T) {
	const T, B = 4, 2
	cfg := shapes()["gru/2/tied"]
	c := newRecordingCase(t, cfg, T, B)
	rng := rand.New(rand.NewPCG(5, 6))
	for i, scale := range []float32{1, 1, 1, 1, 0.5, 1, 0.5, 0.5, 0.5, 0.5} {
		in := randomInput(rng, T, B, cfg.Vocab)
		in.Scale = scale
		c.step(in)
		want := []int{0, 1, 2, 2, 0, 0, 0, 1, 2, 2}[i]
		if c.recorder.Open != want {
			t.Errorf("after step %d: %d recordings, want %d", i, c.recorder.Open, want)
		}
	}
}

// TestRecordingFails checks that runs go on if the device fails to record, and that it is not asked
// again.
func TestRecordingFails(t *testing.T) {
	const T, B = 5, 2
	cfg, broken := shapes()["lstm/2/embed"], errors.New("it cannot record")
	cfg.Recompute = 2
	for after, all := range map[int]int{0: 0, 3: 5} { // recordings; a run has 5 parts
		c := newRecordingCase(t, cfg, T, B)
		rng := rand.New(rand.NewPCG(5, 6))
		for range 6 {
			if c.recorder.Recorded >= after {
				c.recorder.Fail = broken
			} else if err := c.records.model.Unrecorded(); err != nil {
				t.Errorf("before it failed: %v", err)
			}
			c.step(randomInput(rng, T, B, cfg.Vocab))
		}
		if got := c.records.model.Unrecorded(); !errors.Is(got, broken) {
			t.Errorf("it was not recorded because of %v", got)
		}
		if c.recorder.Recorded != all || c.recorder.Open != 0 {
			t.Errorf("%d recordings, of which %d are open", c.recorder.Recorded, c.recorder.Open)
		}
		c.recorder.Fail = nil
		c.step(randomInput(rng, T, B, cfg.Vocab))
		if c.recorder.Recorded != all {
			t.Error("the device was asked again")
		}
	}
}

// TestForwardsAreNotRecorded checks that Unrecorded reports an evaluation or a text that the device
// could not record, and that the results do not change.
func TestForwardsAreNotRecorded(t *testing.T) {
	const T, B = 5, 2
	broken := errors.New("it cannot record")
	cfg := shapes()["lstm/2/embed"]
	for what, run := range map[string]func(*Model) []float32{
		"evaluation": func(m *Model) (got []float32) {
			e, rng := newEvaluator(t, m, T, B), rand.New(rand.NewPCG(5, 6))
			for range 3 {
				got = append(got, evaluateOnce(t, e, randomInput(rng, T, B, cfg.Vocab), false)...)
			}
			return got
		},
		"text": func(m *Model) (got []float32) {
			g, err := m.NewGenerator(1)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			text, err := g.Generate(t.Context(), []int32{1, 2, 3}, 9, Sampling{Greedy: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range text {
				got = append(got, float32(id))
			}
			return got
		},
	} {
		c := newRecordingCase(t, cfg, T, B)
		m := c.records.model
		if c.recorder.Fail = broken; m.Unrecorded() != nil {
			t.Errorf("%s: before it failed: %v", what, m.Unrecorded())
		}
		devicetest.SameBits(t, what, run(m), run(c.plain.model))
		if got := m.Unrecorded(); !errors.Is(got, broken) {
			t.Errorf("%s: it was not recorded because of %v", what, got)
		}
	}
}

// TestDeviceRefusesToRecord lets a device refuse to record in the middle of a step, in the graph or
// in the forward pass.
func TestDeviceRefusesToRecord(t *testing.T) {
	const T, B = 5, 2
	for _, k := range []int{0, 2} {
		cfg := shapes()["gru/2/embed"]
		cfg.Recompute = k
		c := newRecordingCase(t, cfg, T, B)
		c.recorder.Refuse = errors.New("it cannot record this")
		rng := rand.New(rand.NewPCG(5, 6))
		for range 3 {
			c.step(randomInput(rng, T, B, cfg.Vocab))
		}
		if c.recorder.Recorded != 0 {
			t.Errorf("recompute %d: %d recordings", k, c.recorder.Recorded)
		}
	}
}

// TestHookIsNotRecorded checks that BeforeBackward is called in each run that has it, between
// replayed runs.
func TestHookIsNotRecorded(t *testing.T) {
	const T, B = 4, 2
	cfg := shapes()["lstm/2/dropout"]
	c := newRecordingCase(t, cfg, T, B)
	rng, calls := rand.New(rand.NewPCG(5, 6)), 0
	for step := range 8 {
		in := randomInput(rng, T, B, cfg.Vocab)
		if step%2 == 1 {
			in.BeforeBackward = func() error { calls++; return nil }
		}
		c.step(in)
	}
	if calls != 8 || c.recorder.Replayed != 3 { // both segments call it
		t.Errorf("%d calls, %d replays", calls, c.recorder.Replayed)
	}
}

// TestStaging checks that gradients are copied to the host as backward finishes them, from the
// output layer's on; with chunks, when all are summed.
func TestStaging(t *testing.T) {
	const T, B = 5, 3
	for name, all := range map[string]int{"lstm/3/one-hot": 4, "gru/2/embed": 4, "gru/2/tied": 4,
		"lstm/3/tied-projected": 6} {
		for _, k := range []int{0, 2} {
			cfg := shapes()[name]
			cfg.Recompute = k
			dev := devicetest.NewRecorder(newDevice(t))
			m := newModelOn(t, cfg, dev)
			s, plain := newSegment(t, m, T, B), newSegment(t, newModel(t, cfg), T, B)
			host, rng := dev.AllocHost(len(m.Gradients())), rand.New(rand.NewPCG(5, 6))
			for step := range 6 {
				in := randomInput(rng, T, B, cfg.Vocab)
				run(t, plain, in)
				want, first, parts := download(plain.model, plain.model.Gradients()), 0, all
				if k > 0 {
					parts = 1
				}
				if in.Stage = host; step == 1 {
					in.Stage, want, parts = nil, nil, 0
				}
				run(t, s, in)
				if got := s.Staged(); len(got) != parts {
					t.Fatalf("%s, recompute %d: %d parts, want %d", name, k, len(got), parts)
				}
				for _, part := range s.Staged() {
					part.Wait()
					devicetest.SameBits(t, name, host[first:part.End], want[first:part.End])
					first = part.End
				}
				if first != len(want) {
					t.Errorf("%s, recompute %d: %d of %d were staged", name, k, first, len(want))
				}
			}
			if dev.Recorded == 0 {
				t.Error("nothing was recorded")
			}
		}
	}
}

// TestBehind doubles the gradients in Behind if the loss is below a limit, also with chunks and
// recordings. The staged gradients are the doubled ones.
func TestBehind(t *testing.T) {
	const T, B = 5, 3
	for _, k := range []int{0, 2} {
		c := newRecordingCase(t, Config{Cell: compute.GRU, Vocab: 7, Hidden: 5, Layers: 2, Seed: 3,
			Recompute: k}, T, B)
		m, by := c.records.model, compute.Clip{Share: 2}
		clipper := m.dev.NewClipper()
		defer clipper.Close()
		calls, rng := 0, rand.New(rand.NewPCG(5, 6))
		stage := c.recorder.AllocHost(len(m.Params()))
		defer c.recorder.FreeHost(stage)
		for step := range 6 {
			in := randomInput(rng, T, B, 7)
			sum := run(t, c.plain, in)
			want := download(c.plain.model, c.plain.model.Gradients())
			by.LossLimit = sum * (1 - 1e-9)
			if step%2 == 0 {
				by.LossLimit = sum * (1 + 1e-9)
				for i := range want {
					want[i] *= 2
				}
			}
			in.Stage = stage
			in.Behind = func(loss *compute.Loss) {
				calls++
				clipper.Clip(m.Gradients(), &by, loss)
			}
			if got := run(t, c.records, in); got != sum {
				t.Errorf("recompute %d: the loss is %v, not %v", k, got, sum)
			}
			for _, part := range c.records.Staged() {
				part.Wait()
			}
			devicetest.SameBits(t, "the gradients", download(m, m.Gradients()), want)
			devicetest.SameBits(t, "what is staged of them", stage, want)
		}
		if want := 3; calls != want { // the first run, and two recordings
			t.Errorf("recompute %d: it was asked %d times, want %d", k, calls, want)
		}
	}
}
