package train

import (
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/compute"
	"rondo/train/optim"
)

// drawn is a Tracer that records.
type drawn struct {
	spans  map[string][]lapSpan // of each track
	counts int
}

type lapSpan struct {
	name         string
	began, ended time.Time
}

func (d *drawn) Span(track, name string, began, ended time.Time) {
	d.spans[track] = append(d.spans[track], lapSpan{name, began, ended})
}

func (d *drawn) Count(string, time.Time, float64) { d.counts++ }

// The spans of a track are nested or disjoint, and cover everything that a step does.
func TestSpansNest(t *testing.T) {
	j := deep(2)
	j.config.Save, j.config.SaveEvery, j.config.CheckEvery = true, 5, 4
	j.evaluation, j.config.EvalEvery = newEvaluation(60), 6
	heard := &drawn{spans: map[string][]lapSpan{}}
	j.tracer = heard
	j.prepare = func(rank int, trainer *Trainer) {
		if rank == 0 {
			trainer.laps.tracer, trainer.cfg.Tracer = heard, heard
		}
	}
	j.runQueued(t)
	if heard.counts != int(j.config.Steps) {
		t.Errorf("%d figures of %d steps", heard.counts, j.config.Steps)
	}
	nested(t, heard, map[string]int{"step": 12, "load": 12, "forward": 12, "backward": 12,
		"exposed to the ring": 12, "clip": 12, "update": 12, "checkpoint": 3, "evaluation": 2,
		"roll call": 3, "bucket 1 of 9": 12, "bucket 9 of 9": 12})
}

// The same holds for a round.
func TestSpansOfRounds(t *testing.T) {
	j := inRounds(deep(2), optim.Local{Every: 5, Outer: optim.OuterSGD, Rate: 1})
	j.config.Optimizer.Rule = compute.Momentum
	heard := &drawn{spans: map[string][]lapSpan{}}
	j.tracer = heard
	j.prepare = func(rank int, trainer *Trainer) {
		if rank == 0 {
			trainer.laps.tracer, trainer.cfg.Tracer = heard, heard
		}
	}
	j.runQueued(t)
	nested(t, heard, map[string]int{"round": 3, "keeping the round's start": 3, "load": 12,
		"forward": 12, "backward": 12, "clip": 12, "update": 12, "averaging the slots": 3,
		"outer gradient": 3, "exposed to the ring": 3, "outer update": 3, "bucket 1 of 1": 3})
}

// nested checks the spans of each track against each other, and counts them by name.
func nested(t *testing.T, heard *drawn, counts map[string]int) {
	t.Helper()
	count := map[string]int{}
	for track, spans := range heard.spans {
		slices.SortStableFunc(spans, func(a, b lapSpan) int {
			if c := a.began.Compare(b.began); c != 0 {
				return c
			}
			return b.ended.Compare(a.ended)
		})
		var open []lapSpan
		for _, s := range spans {
			for len(open) > 0 && !s.began.Before(open[len(open)-1].ended) {
				open = open[:len(open)-1]
			}
			if len(open) > 0 && s.ended.After(open[len(open)-1].ended) {
				t.Errorf("%s: %q begins within %q and ends after it", track, s.name,
					open[len(open)-1].name)
			}
			if s.ended.Before(s.began) {
				t.Errorf("%s: %q ends before it begins", track, s.name)
			}
			open = append(open, s)
			name, _, _ := strings.Cut(s.name, ",")
			for _, whole := range []string{"step", "round"} {
				if strings.HasPrefix(name, whole+" ") {
					name = whole
				}
			}
			count[name]++
		}
	}
	for name, want := range counts {
		if count[name] != want {
			t.Errorf("%d spans %q, want %d: %v", count[name], name, want, count)
		}
	}
}
