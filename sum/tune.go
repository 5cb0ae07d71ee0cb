package sum

import (
	"context"
	"fmt"
	"time"
)

// How the buckets' size is found where the job does not give it. The first steps in a ring send the
// gradient in one piece, and note when backward finishes which part of it; then a short measurement
// of the links says what a sum costs, and what its bytes cost, and of all ways to cut the gradient
// the one is taken that leaves the least to wait for behind the backward pass.
const (
	// warmSteps are not looked at: memory is touched for the first time, kernels make room.
	warmSteps = 1
	// tuneSteps is how many steps are done in one piece.
	tuneSteps = warmSteps + 1
	// leastTuned is the gradient, in floats, below which it is one bucket anyway: 1 MiB.
	leastTuned = 1 << 18
	// The sums that are timed, in floats, and how often; the shortest time counts.
	probeSmall, probeLarge, probes = 1 << 10, 1 << 18, 3
	// leastGain is how much of a gradient's way must be hidden at least to be worth more than one
	// bucket: what sums cost the processor is in no model.
	leastGain = 0.1
)

// Tuning is how the gradient travels from now on in a ring, and why. It is the same on all ranks.
type Tuning struct {
	Buckets int
	Bytes   int64 // of a bucket at least, but for the last; 0: there is one

	// What was measured, the mean over the ranks: the way of the gradient is Latency for each
	// bucket and its bytes by Rate.
	Latency  time.Duration
	Rate     float64       // bytes of a gradient that are summed in a second
	Backward time.Duration // from when the first part was finished to when the last was
	// What is left to wait for behind the backward pass, by estimate: in one piece, and so.
	Whole, Exposed time.Duration
}

func (t Tuning) String() string {
	text := fmt.Sprintf("the gradient is summed in %d buckets", t.Buckets)
	if t.Buckets == 1 {
		text = "the gradient is summed in one piece"
	} else {
		text += fmt.Sprintf(" of at least %d bytes", t.Bytes)
	}
	return fmt.Sprintf("%s: a sum costs %v and its bytes pass at %.3g MB/s; backward takes %v "+
		"from its first part to its last, behind which one piece keeps the ranks waiting for %v, "+
		"and this for %v", text, t.Latency, t.Rate/1e6, t.Backward, t.Whole, t.Exposed)
}

// profile is when backward has finished the parts of the gradient.
type profile struct {
	ends []int       // of the parts; nil: nobody looks
	at   []time.Time // zero: not yet
}

func (p *profile) pass(end int, now time.Time) {
	for i, e := range p.ends {
		if e <= end && p.at[i].IsZero() {
			p.at[i] = now
		}
	}
}

// tuning is where the search for a ring's buckets is.
type tuning struct {
	wanted bool
	steps  int // that were done in this ring
}

// tune is called before each step. When the first steps were done, it cuts the gradient, and says
// that the ranks have met meanwhile.
func (b *buckets) tune(ctx context.Context) (met bool, err error) {
	if !b.tuning.wanted {
		return false, nil
	}
	if b.tuning.steps++; b.tuning.steps <= tuneSteps {
		b.points = profile{b.Finishes, make([]time.Time, len(b.Finishes))}
		return false, nil
	}
	b.tuning.wanted = false
	at := b.points.at
	b.points = profile{}
	means := make([]float32, len(at), len(at)+2) // seconds before the last part was finished
	for i := range at {
		means[i] = float32(at[len(at)-1].Sub(at[i]).Seconds())
	}
	small, large, err := b.measure(ctx)
	if err != nil {
		return false, fmt.Errorf("measuring the ring: %w", err)
	}
	means = append(means, float32(small.Seconds()), float32(large.Seconds()))
	if err := b.ring.AllReduce(ctx, means); err != nil {
		return false, fmt.Errorf("measuring the ring: %w", err)
	}
	for i := range means {
		means[i] /= float32(b.Ranks)
	}
	least, found := choose(b.Finishes, means)
	b.cut(least)
	found.Buckets, found.Bytes = len(b.ends), int64(least)*floatBytes
	if b.Tuned != nil {
		b.Tuned(found)
	}
	return true, nil
}

// measure returns how long a small sum takes and a large one, of numbers that travel as a
// gradient's do. The ranks begin each together, as the sum before has just ended on all.
func (b *buckets) measure(ctx context.Context) (small, large time.Duration, err error) {
	buf := make([]float32, probeLarge)
	shortest := func(n int) (best time.Duration, err error) {
		for i := range probes + 1 {
			began := b.Now()
			if err := b.probe(ctx, buf[:n]); err != nil {
				return 0, err
			}
			took := b.Now().Sub(began)
			if i == 1 || i > 1 && took < best { // the first waits for whoever comes last
				best = took
			}
		}
		return best, nil
	}
	if small, err = shortest(probeSmall); err == nil {
		large, err = shortest(probeLarge)
	}
	return small, large, err
}

// choose finds the least bucket, in floats, that leaves the least to wait for; 0: one bucket does.
// means are how many seconds before the last part each part was finished, and what the two probes
// took. The arithmetic is rounded step by step, so that ranks of all kinds come to the same.
func choose(points []int, means []float32) (least int, found Tuning) {
	n := len(points)
	small, large := float64(means[n]), float64(means[n+1])
	each := max(float64(large-small), 0) / (probeLarge - probeSmall) // a float's seconds
	latency := max(float64(small-float64(each*probeSmall)), 0)
	ready := func(i int) float64 { return float64(means[0]) - float64(means[i]) }
	exposed := func(least int) float64 {
		at, begin, part := 0.0, 0, 0
		for _, end := range bucketsOf(points, least) {
			for points[part] < end {
				part++
			}
			way := float64(each * float64(end-begin))
			at = float64(max(at, ready(part))+latency) + way
			begin = end
		}
		return at - ready(n-1)
	}
	whole := points[n-1]
	best := exposed(whole)
	found = Tuning{Latency: seconds(latency), Backward: seconds(ready(n - 1)),
		Whole: seconds(best), Rate: float64(floatBytes) / max(each, 1e-15)}
	enough := float64(best * (1 - leastGain))
	for size := whole / 2; size >= 1; size /= 2 {
		if e := exposed(size); e < enough {
			best, enough, least = e, e, size
		}
	}
	found.Exposed = seconds(best)
	return least, found
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
