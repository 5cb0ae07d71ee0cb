package audit

import (
	"errors"
	"os"
	"strings"
	"testing"

	"rondo/corpus"
)

// examplesLog writes the log of a worker that reads 10 examples in 4 lanes, 3 segments an epoch.
// example says what a lane reads in a segment. The step that redo names is repeated by a second
// ring.
func examplesLog(
	t *testing.T, steps, redo int64, example func(segment int64, lane int) int64,
) *Report {
	t.Helper()
	dir := t.TempDir()
	log, err := Open(dir, "a", example)
	if err != nil {
		t.Fatal(err)
	}
	ring := Ring{Run: 1, Generation: 1, World: 1,
		Batches: corpus.SamplerConfig{Tokens: 10, Lanes: 4, Sampling: corpus.Examples}}
	err = log.Ring(ring)
	for step := int64(1); step <= steps; step++ {
		err = errors.Join(err, log.Intend(step, 0, 0, 4, []int32{1, 2}))
		if step == redo {
			ring.Generation, ring.From = 2, step-1
			err = errors.Join(err, log.Ring(ring), log.Intend(step, 0, 0, 4, []int32{1, 2}))
		}
		err = errors.Join(err, log.Commit(Commit{Step: step}))
	}
	if err = errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
	report, err := Prove(t.Context(), os.DirFS(dir), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// inOrder deals the examples in order.
func inOrder(segment int64, lane int) int64 {
	if n := segment%3*4 + int64(lane); n < 10 {
		return n
	}
	return -1
}

func TestEachExampleOnceAnEpoch(t *testing.T) {
	for name, c := range map[string]struct {
		steps, redo int64
		example     func(segment int64, lane int) int64
		epochs      int64
		finding     string
	}{
		"whole epochs":    {6, 0, inOrder, 2, ""},
		"a part of one":   {5, 0, inOrder, 1, ""},
		"a step repeated": {6, 4, inOrder, 2, ""},
		"twice": {3, 0, func(s int64, lane int) int64 {
			return inOrder(s, 0) // every lane reads the first one's
		}, 0, "epoch 1: example 0 was read twice, the second time in segment 1"},
		"left out": {6, 0, func(s int64, lane int) int64 {
			if at := inOrder(s, lane); at != 7 || s < 3 {
				return at
			}
			return -1
		}, 1, "epoch 2: 1 of 10 examples were not read"},
		"left out of a part": {1, 0, func(s int64, lane int) int64 {
			return min(inOrder(s, lane), int64(-1))
		}, 0, "epoch 1: more than 2 lanes read no example, the last in segment 1"},
		"no such example": {3, 0, func(s int64, lane int) int64 {
			if at := inOrder(s, lane); at != 9 {
				return at
			}
			return 10
		}, 0, "lane 1 read example 10, and there are 10"},
	} {
		t.Run(name, func(t *testing.T) {
			r := examplesLog(t, c.steps, c.redo, c.example)
			if !r.Examples || r.Epochs != c.epochs || r.Last != c.steps {
				t.Errorf("%+v", r)
			}
			found := strings.Join(r.Findings, "\n")
			if !strings.Contains(found, c.finding) || c.finding == "" && found != "" {
				t.Errorf("found %q, want %q", found, c.finding)
			}
		})
	}
}

func TestImpossibleExamples(t *testing.T) {
	for _, b := range []corpus.SamplerConfig{
		{Tokens: 0, Lanes: 4}, {Tokens: maxExamples + 1, Lanes: 4}, {Tokens: 4, Lanes: 0},
		{Tokens: 4, Lanes: corpus.MaxLanes + 1}, {Tokens: 4, Lanes: 4, BPTT: 7},
	} {
		if _, err := newEpochs(b); err == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
}
