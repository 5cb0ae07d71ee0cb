package train

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A rank that is late in so many roll calls in a row is named, or put out of the ring.
const (
	nameCalls  = 2
	evictCalls = 3
	// nameFactor is how many times slower than the others a rank is that is named.
	nameFactor = 1.5
	// leastDelay is what a rank must cost the others in a step to be late: less is noise.
	leastDelay = time.Millisecond
	// blockedFactor is how many times longer sends may be blocked than a slow rank works longer
	// before the network is blamed: a rank whose processor is busy also receives slowly.
	blockedFactor = 4
)

// presence is what a rank answers to a roll call. Times are nanoseconds, the mean over the steps
// since the last one. Its size is fixed.
type presence struct {
	Digest  uint64 // of all that must be the same on every rank
	Steps   int64
	Compute int64 // reading, forward, backward, update
	Sending int64 // its sends were blocked
	Waiting int64 // it waited to receive
}

// roll is what a rank keeps from one roll call to the next. A Join begins with a new one, but for
// who was named for eviction: whoever decides on that may let the ring be, which then goes on.
type roll struct {
	generation       int64  // of the ring
	toEvict          []bool // the ranks that were named for eviction
	steps            int64
	compute          time.Duration
	sending, waiting time.Duration // what the Peers' Timing was
	late             []lateness    // of each rank
}

// lateness is for how many roll calls in a row a rank was late.
type lateness struct{ named, evict int }

func (r *roll) begin(ring Ring) {
	toEvict := r.toEvict
	if n := len(ring.LaneEnds); r.generation != ring.Generation || len(toEvict) != n {
		toEvict = make([]bool, n)
	}
	*r = roll{generation: ring.Generation, toEvict: toEvict,
		late: make([]lateness, len(ring.LaneEnds))}
	if ring.Peers != nil {
		r.sending, r.waiting = ring.Peers.Timing()
	}
}

// count counts a step of so much time beside the sum over the ranks.
func (r *roll) count(compute time.Duration) {
	r.steps++
	r.compute += compute
}

// answer returns the mean times since the last call, and begins anew.
func (r *roll) answer(ring Ring) presence {
	sending, waiting := ring.Peers.Timing()
	steps := max(1, r.steps)
	p := presence{Steps: r.steps, Compute: int64(r.compute) / steps,
		Sending: int64(sending-r.sending) / steps, Waiting: int64(waiting-r.waiting) / steps}
	r.steps, r.compute, r.sending, r.waiting = 0, 0, sending, waiting
	return p
}

// rollCall has the ranks compare what they have and how fast they are. All come to the same
// verdict, at the same step.
func (t *Trainer) rollCall(ctx context.Context) error {
	if t.ring.Peers == nil || len(t.ring.LaneEnds) == 1 {
		return nil
	}
	own := t.roll.answer(t.ring)
	own.Digest = t.digest()
	all, err := gather(ctx, t, own)
	if err != nil {
		return fmt.Errorf("roll call: %w", err)
	}
	digests := make(map[int]uint64, len(all))
	for rank, p := range all {
		digests[rank] = p.Digest
	}
	if err := t.compare(t.progress.Step, digests); err != nil {
		return err
	}
	if err := t.alikeShards(ctx); err != nil {
		return err
	}
	if own.Steps == 0 { // a call that is done again says nothing of times
		return nil
	}
	return t.judge(delays(all))
}

// CorruptError is what this rank ends with when what it has is not what most ranks have. It has
// dropped its state: the next Join gives it another.
type CorruptError struct{ Rank int }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("rank %d, this one, has other parameters than most ranks: its memory or "+
		"its arithmetic is not to be trusted", e.Rank)
}

// PeerCorruptError is what the other ranks end with then.
type PeerCorruptError struct{ Ranks []int }

func (e *PeerCorruptError) Error() string {
	return fmt.Sprintf("the ranks %v have other parameters than the others: their memory or their "+
		"arithmetic is not to be trusted", e.Ranks)
}

// SplitError is what all ranks end with when no more than half of them have the same.
type SplitError struct{ Step int64 }

func (e *SplitError) Error() string {
	return fmt.Sprintf("after step %d no more than half of the ranks have the same parameters, so "+
		"none can be trusted: training must go back to a checkpoint", e.Step)
}

// alike has the ranks, but for some who need not, compare what they have after a step.
func (t *Trainer) alike(ctx context.Context, step int64, except []int) error {
	if t.cfg.CheckEvery == 0 || len(t.ring.LaneEnds)-len(except) < 2 {
		return nil
	}
	var own uint64
	if !slices.Contains(except, t.ring.Rank) {
		own = t.digest()
	}
	all, err := gather(ctx, t, own)
	if err != nil {
		return fmt.Errorf("comparing the ranks' parameters: %w", err)
	}
	digests := make(map[int]uint64, len(all))
	for rank, d := range all {
		if !slices.Contains(except, rank) {
			digests[rank] = d
		}
	}
	return t.compare(step, digests)
}

// compare finds the ranks whose digests are not the majority's.
func (t *Trainer) compare(step int64, digests map[int]uint64) error {
	counts := map[uint64]int{}
	for _, d := range digests {
		counts[d]++
	}
	if len(counts) <= 1 {
		return nil
	}
	var corrupt []int
	for rank, d := range digests {
		if 2*counts[d] <= len(digests) {
			corrupt = append(corrupt, rank)
		}
	}
	if len(corrupt) == len(digests) {
		return &SplitError{Step: step}
	}
	return t.corrupt(corrupt)
}

// corrupt is the verdict that what these ranks have is not to be trusted.
func (t *Trainer) corrupt(ranks []int) error {
	if slices.Contains(ranks, t.ring.Rank) {
		t.Forget()
		return &CorruptError{Rank: t.ring.Rank}
	}
	slices.Sort(ranks)
	return &PeerCorruptError{Ranks: ranks}
}

// delay is how many times longer a step takes the other ranks because of one, and why.
type delay struct {
	factor float64 // 1 is not at all
	cause  string  // compute or network
}

// delays finds for each rank how late it is. One whose own work takes longer than the others' is
// late by compute. One that could not get its chunks out is late by the network, unless a rank
// that works for too long explains it.
func delays(all []presence) []delay {
	late := make([]delay, len(all))
	compute := median(all, func(p presence) int64 { return p.Compute })
	excess := int64(0) // of the slowest rank's work
	for rank, p := range all {
		late[rank] = delay{1, "compute"}
		excess = max(excess, p.Compute-compute)
		if p.Compute-compute > int64(leastDelay) {
			late[rank].factor = float64(p.Compute) / float64(max(compute, 1))
		}
	}
	sending := median(all, func(p presence) int64 { return p.Sending })
	for rank, p := range all {
		if extra := p.Sending - sending; extra > max(int64(leastDelay), blockedFactor*excess) {
			if factor := 1 + float64(extra)/float64(max(compute, 1)); factor > late[rank].factor {
				late[rank] = delay{factor, "network"}
			}
		}
	}
	return late
}

// median is the lower one of two: of two ranks, the faster sets the measure.
func median(all []presence, of func(presence) int64) int64 {
	values := make([]int64, len(all))
	for i, p := range all {
		values[i] = of(p)
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// StragglerError is what all ranks end with when one holds up the others again and again: once in a
// generation for each such rank.
type StragglerError struct {
	Rank int
	Text string
}

func (e *StragglerError) Error() string { return e.Text }

// judge names who is late, once until it has caught up, and the latest that has been late for too
// long, which is to be put out.
func (t *Trainer) judge(late []delay) error {
	worst := -1
	for rank, d := range late {
		l := &t.roll.late[rank]
		if d.factor <= nameFactor {
			l.named = 0
		} else if l.named++; l.named == nameCalls {
			t.cfg.Observer.Notice(t.lateText(rank, d))
		}
		limit := t.cfg.EvictStragglers
		if limit == 0 || d.factor <= limit || t.roll.toEvict[rank] {
			l.evict = 0
		} else if l.evict++; l.evict >= evictCalls && (worst < 0 || d.factor > late[worst].factor) {
			worst = rank
		}
	}
	if worst < 0 {
		return nil
	}
	t.roll.toEvict[worst] = true
	return &StragglerError{Rank: worst, Text: fmt.Sprintf("%s, for %d roll calls in a row, and "+
		"--evict-stragglers is %v", t.lateText(worst, late[worst]), t.roll.late[worst].evict,
		t.cfg.EvictStragglers)}
}

func (t *Trainer) lateText(rank int, d delay) string {
	who, step := t.ring.name(rank), t.progress.Step
	if d.cause == "network" {
		return fmt.Sprintf("%s is late at step %d (network): its link to %s makes a step %.1f "+
			"times longer", who, step, t.ring.name((rank+1)%len(t.ring.LaneEnds)), d.factor)
	}
	return fmt.Sprintf("%s is late at step %d (compute): its own work takes %.1f times as long as "+
		"the others'", who, step, d.factor)
}
