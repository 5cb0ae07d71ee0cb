package sum

import (
	"context"
	"fmt"
	"time"
)

// This file finds the bucket size if the job does not give one. The first steps in a ring send the
// gradient in one piece, and record when backward finishes each part. Then the ranks measure the
// latency and the rate of a sum. Of all ways to cut the gradient they choose the one with the least
// estimated wait after the backward pass.
const (
	// warmSteps are not measured: memory is touched for the first time, and kernels allocate their
	// workspaces.
	warmSteps = 1
	// tuneSteps is how many steps send the gradient in one piece.
	tuneSteps = warmSteps + 1
	// leastTuned is the least gradient, in floats, that is cut into buckets: 1 MiB.
	leastTuned = 1 << 18
	// The sizes of the timed sums, in floats, and the number of runs. The shortest time counts.
	probeSmall, probeLarge, probes = 1 << 10, 1 << 18, 3
	// leastGain is the share of the wait that more buckets must save. The estimate ignores the
	// processor time of sums.
	leastGain = 0.1
)

// Tuning says how a ring sums the gradient from now on, and why. It is the same on all ranks.
type Tuning struct {
	Buckets int
	Bytes   int64 // least size of a bucket, except the last; 0: one bucket

	Kept bool // an earlier ring's: there are no measurements

	// The measurements are means over the ranks. A bucket takes Latency plus its bytes over Rate.
	Latency  time.Duration
	Rate     float64       // gradient bytes per second
	Backward time.Duration // from the first finished part to the last
	// The estimated wait after the backward pass: in one piece, and with these buckets.
	Whole, Exposed time.Duration
}

func (t Tuning) String() string {
	text := fmt.Sprintf("the gradient is summed in %d buckets", t.Buckets)
	if t.Buckets == 1 {
		text = "the gradient is summed in one piece"
	} else {
		text += fmt.Sprintf(" of at least %d bytes", t.Bytes)
	}
	if t.Kept {
		return text + ", as an earlier ring of as many workers measured it, here or where its " +
			"checkpoint is from; --bucket-bytes overrides it"
	}
	return fmt.Sprintf("%s: a sum takes %v plus its bytes at %.3g MB/s; backward takes %v "+
		"from its first finished part to its last; after it the ranks would wait %v in one piece, "+
		"and wait %v now", text, t.Latency, t.Rate/1e6, t.Backward, t.Whole, t.Exposed)
}

// profile records when backward finished the parts of the gradient.
type profile struct {
	ends []int       // of the parts; nil: not recorded
	at   []time.Time // zero: not yet
}

func (p *profile) pass(end int, now time.Time) {
	for i, e := range p.ends {
		if e <= end && p.at[i].IsZero() {
			p.at[i] = now
		}
	}
}

// tuning is the state of the search for a ring's buckets.
type tuning struct {
	wanted bool
	steps  int // steps done in this ring
}

// tune is called before each step. After the first steps it measures the ring and cuts the
// gradient. measured: the ranks have synchronised for that.
func (b *buckets) tune(ctx context.Context) (measured bool, err error) {
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
	means := make([]float32, len(at), len(at)+2) // seconds from each part's end to the last part's
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

// Cut implements train.Cutter.
func (b *buckets) Cut() (least int64) { return int64(b.least) }

// SetCut implements train.Cutter. A size that the job gives goes before it.
func (b *buckets) SetCut(least int64) {
	if b.tuning.wanted {
		b.tuning.wanted = false
		b.cut(int(least))
		if b.Tuned != nil {
			b.Tuned(Tuning{Buckets: len(b.ends), Bytes: least * floatBytes, Kept: true})
		}
	}
}

// measure returns the times of a small and a large sum, of numbers in the gradient's wire format.
// Each sum starts on all ranks at about the same time, because the previous one has just ended.
func (b *buckets) measure(ctx context.Context) (small, large time.Duration, err error) {
	buf := make([]float32, probeLarge)
	shortest := func(n int) (best time.Duration, err error) {
		for i := range probes + 1 {
			began := b.Now()
			if err := b.probe(ctx, buf[:n]); err != nil {
				return 0, err
			}
			took := b.Now().Sub(began)
			if i == 1 || i > 1 && took < best { // the first run waits for the last rank to arrive
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

// choose returns the least bucket size, in floats, with the least wait; 0: one bucket is enough.
// means holds for each part the seconds from its end to the last part's, and the times of the two
// probes. Each operation is rounded explicitly, so all kinds of processors reach the same result.
func choose(points []int, means []float32) (least int, found Tuning) {
	n := len(points)
	small, large := float64(means[n]), float64(means[n+1])
	each := max(float64(large-small), 0) / (probeLarge - probeSmall) // seconds per float
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
