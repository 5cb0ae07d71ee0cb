package train

import (
	"slices"
	"strings"
	"testing"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/model"
	"rondo/train/optim"
)

// All ranks cut and report the gradient alike, and end with the same parameters. They measure only
// if the gradient may travel in buckets.
func TestTuning(t *testing.T) {
	for _, c := range []struct {
		hidden int
		scope  optim.ClipScope
		tells  int
	}{{192, optim.ScopeGlobal, 1}, {192, optim.ScopeWorker, 0}, {16, optim.ScopeGlobal, 0}} {
		j := newJob(2)
		j.model = model.Config{Cell: compute.LSTM, Vocab: testV, Hidden: c.hidden, Layers: 2,
			Seed: 5, Init: model.Init{Kind: model.Uniform}, GradientTail: Tail}
		j.config.Steps, j.bucketBytes, j.config.Clip.Scope = 5, 0, c.scope
		outcomes, _, _ := j.runQueued(t)
		if !slices.Equal(outcomes[0].params, outcomes[1].params) {
			t.Errorf("%+v: the ranks have other parameters", c)
		}
		first, second := outcomes[0].tuned, outcomes[1].tuned
		if len(first) != c.tells || !slices.Equal(first, second) {
			t.Errorf("%+v: the ranks heard of %v and %v", c, first, second)
		}
		for _, found := range first {
			if found.Buckets < 1 || found.Rate <= 0 || found.Backward <= 0 ||
				!strings.Contains(found.String(), "the gradient is summed in") {
				t.Errorf("%v", found)
			}
		}
	}
}

// A compressed sum is measured too, unless it sends nothing before it has the whole gradient: then
// there is nothing to cut.
func TestTuningOfACompressedSum(t *testing.T) {
	for _, c := range []struct {
		config compress.Config
		tells  int
	}{{compress.Config{}, 1}, {compress.Config{TopK: 0.1}, 0}} {
		j := newJob(2)
		j.model = model.Config{Cell: compute.LSTM, Vocab: testV, Hidden: 192, Layers: 2,
			Seed: 5, Init: model.Init{Kind: model.Uniform}, GradientTail: Tail}
		j.config.Steps, j.bucketBytes, j.config.Clip.Scope = 5, 0, optim.ScopeGlobal
		summing(t, &j, c.config)
		outcomes, _, _ := j.runQueued(t)
		if got := outcomes[0].tuned; len(got) != c.tells {
			t.Errorf("%+v: the ranks heard of %v", c.config, got)
		}
	}
}
