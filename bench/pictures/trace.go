package main

import (
	"cmp"
	"fmt"
	"slices"

	"rondo/bench/internal/killtrace"
)

// window is a job's steps around one kill.
type window struct {
	name   string
	kills  int // number of kills; the drawn one has the median cost
	kill   killtrace.Kill
	steps  []killtrace.Step // At: seconds since the kill; Step: beyond those completed at the kill
	pace   float64          // steps a second before the kill
	joined int              // index of the first step of a full ring after a smaller one; -1: none
}

// median returns the steps around the kill whose cost is the median (nearest rank).
func median(j killtrace.Job, before, after float64) (window, error) {
	if len(j.Kills) == 0 {
		return window{}, fmt.Errorf("%s: no kill", j.Job)
	}
	sorted := slices.SortedFunc(slices.Values(j.Kills), func(a, b killtrace.Kill) int {
		return cmp.Compare(a.Fresh, b.Fresh)
	})
	w := window{name: j.Job, kills: len(sorted), kill: sorted[(len(sorted)-1)/2], joined: -1}
	for _, k := range j.Kills {
		if k != w.kill && k.At > w.kill.At-before && k.At < w.kill.At+after {
			return window{}, fmt.Errorf("%s: two kills within %v s: give recovery a longer -calm",
				j.Job, before+after)
		}
	}
	var done int64 // steps completed at the kill
	for _, s := range j.Steps {
		if s.At <= w.kill.At {
			done = max(done, s.Step)
		}
	}
	for _, s := range j.Steps {
		s.At -= w.kill.At
		s.Step -= done
		if s.At >= -before && s.At <= after {
			w.steps = append(w.steps, s)
		}
	}
	return w, w.measure(after)
}

// slack is how many seconds before the picture's end the last step may be.
const slack = 1.5

// measure sets the pace and joined.
func (w *window) measure(after float64) error {
	// old steps came before the kill.
	old := slices.IndexFunc(w.steps, func(s killtrace.Step) bool { return s.At > 0 })
	if old < 2 {
		return fmt.Errorf("%s: fewer than two steps before the kill", w.name)
	}
	first, last := w.steps[0], w.steps[old-1]
	w.pace = float64(last.Step-first.Step) / (last.At - first.At)
	if end := w.steps[len(w.steps)-1].At; end < after-slack {
		return fmt.Errorf("%s: the steps end %.1f s after the kill: draw less, or give recovery a "+
			"longer -calm", w.name, end)
	}
	for i := old; i < len(w.steps); i++ {
		if w.steps[i].Workers == last.Workers && w.steps[i-1].Workers < last.Workers {
			w.joined = i
			break
		}
	}
	return nil
}
