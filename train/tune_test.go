package train

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/model"
)

// The cut is the one that leaves the least to wait for; where none is much better than one bucket,
// it is one.
func TestChoose(t *testing.T) {
	const million = 1 << 20
	points := []int{million, 2 * million, 3 * million, 4 * million}
	even := []float32{0.3, 0.2, 0.1, 0} // seconds before the last part
	probe := func(latency, each float64) []float32 {
		return append(slices.Clone(even), float32(latency+each*probeSmall),
			float32(latency+each*probeLarge))
	}
	for name, c := range map[string]struct {
		means   []float32
		buckets int
		exposed float64 // seconds
	}{
		"a fast link, whose latency counts": {probe(0.01, 1e-12), 1, 0.01},
		"communication of 80 %":             {probe(0, 0.08/million), 4, 0.08},
		"a slow link":                       {probe(0, 0.4/million), 4, 1.3},
		"latency as long as a part's way":   {probe(0.08, 0.08/million), 2, 0.28},
	} {
		least, found := choose(points, c.means)
		cut := bucketsOf(points, least)
		if least == 0 {
			cut = points[3:]
		}
		if len(cut) != c.buckets || math.Abs(found.Exposed.Seconds()-c.exposed) > 0.02*c.exposed {
			t.Errorf("%s: %d buckets, %v", name, len(cut), found)
		}
		if found.Exposed > found.Whole {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// All ranks cut the gradient alike, say so, and have the same parameters afterwards. They measure
// only what may travel in buckets.
func TestTuning(t *testing.T) {
	for _, c := range []struct {
		hidden int
		scope  ClipScope
		tells  int
	}{{192, ScopeGlobal, 1}, {192, ScopeWorker, 0}, {16, ScopeGlobal, 0}} {
		j := newJob(2)
		j.model = model.Config{Cell: compute.LSTM, Vocab: testV, Hidden: c.hidden, Layers: 2,
			Seed: 5, Init: model.Init{Kind: model.Uniform}, GradientTail: Tail}
		j.config.Steps, j.config.BucketBytes, j.config.Clip.Scope = 5, 0, c.scope
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

// probed is a Summer that counts what it is measured by.
type probed struct {
	Summer
	probes *atomic.Int64
}

func (p probed) Probe(ctx context.Context, buf []float32) error {
	p.probes.Add(1)
	return p.Summer.Probe(ctx, buf)
}

// A Summer is measured by the sums that it makes. One that sends nothing before it has the whole
// gradient has nothing to be cut for.
func TestTuningOfASummer(t *testing.T) {
	for _, c := range []struct {
		config compress.Config
		tells  int
	}{{compress.Config{}, 1}, {compress.Config{TopK: 0.1}, 0}} {
		j := newJob(2)
		j.model = model.Config{Cell: compute.LSTM, Vocab: testV, Hidden: 192, Layers: 2,
			Seed: 5, Init: model.Init{Kind: model.Uniform}, GradientTail: Tail}
		j.config.Steps, j.config.BucketBytes, j.config.Clip.Scope = 5, 0, ScopeGlobal
		summing(t, &j, c.config)
		plain, asked := j.summer, new(atomic.Int64)
		j.summer = func(worker int, r Ring) Summer { return probed{plain(worker, r), asked} }
		outcomes, _, _ := j.runQueued(t)
		if want := int64(c.tells * 2 * 2 * (probes + 1)); asked.Load() != want {
			t.Errorf("%+v: measured by %d sums, want %d", c.config, asked.Load(), want)
		}
		if got := outcomes[0].tuned; len(got) != c.tells {
			t.Errorf("%+v: the ranks heard of %v", c.config, got)
		}
	}
}

// A rank that is slow is who the other waits for, and does not wait itself.
func TestWaitingIsForTheSlowest(t *testing.T) {
	var sum [arrivalSlots]float32
	took := make([]time.Duration, arrivalSlots+2) // two slots have two ranks each
	for rank := range took {
		took[rank] = time.Second
	}
	took[3], took[arrivalSlots] = 4*time.Second, 3*time.Second
	for rank, d := range took {
		var own [arrivalSlots]float32
		own[5] = 7 // of the last step
		putArrival(own[:], rank, d)
		for i, v := range own {
			sum[i] += v
		}
	}
	slowest := takeArrivals(sum[:], len(took))
	if slowest != 4*time.Second {
		t.Errorf("the slowest took %v", slowest)
	}
	for _, c := range []struct{ own, exposed, want time.Duration }{
		{time.Second, 5 * time.Second, 3 * time.Second},
		{time.Second, 2 * time.Second, 2 * time.Second}, // no longer than it was exposed
		{4 * time.Second, time.Second, 0}, {5 * time.Second, time.Second, 0},
	} {
		if got := waited(slowest, c.own, c.exposed); got != c.want {
			t.Errorf("%+v: waited %v", c, got)
		}
	}
}
