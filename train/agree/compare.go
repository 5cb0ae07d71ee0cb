package agree

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// CorruptError ends a rank whose state differs from that of most ranks. The rank must drop its
// state; the next Join gives it another.
type CorruptError struct {
	Rank int
	Sign string // another sign than the state that it is corrupt; "": its state
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("rank %d, this one, %s: its memory or its arithmetic is not to be trusted",
		e.Rank, cmp.Or(e.Sign, "has other parameters than most ranks"))
}

// PeerCorruptError ends the other ranks when one rank is corrupt.
type PeerCorruptError struct {
	Ranks []int
	Sign  string
}

func (e *PeerCorruptError) Error() string {
	return fmt.Sprintf("the ranks %v %s: their memory or their arithmetic is not to be trusted",
		e.Ranks, cmp.Or(e.Sign, "have other parameters than the others"))
}

// SplitError ends all ranks when no more than half of them have the same state.
type SplitError struct{ Step int64 }

func (e *SplitError) Error() string {
	return fmt.Sprintf("after step %d no more than half of the ranks have the same parameters, so "+
		"none can be trusted: training must go back to a checkpoint", e.Step)
}

// Alike compares digests of the ranks' states after a step. The ranks in except take part in the
// gather, but their digests are not compared.
func Alike(ctx context.Context, r Ranks, step int64, digest func() uint64, except ...int) error {
	if len(r.LaneEnds)-len(except) < 2 {
		return nil
	}
	var own uint64
	if !slices.Contains(except, r.Rank) {
		own = digest()
	}
	all, err := Gather(ctx, r, own)
	if err != nil {
		return fmt.Errorf("comparing the ranks' parameters: %w", err)
	}
	digests := make(map[int]uint64, len(all))
	for rank, d := range all {
		if !slices.Contains(except, rank) {
			digests[rank] = d
		}
	}
	return r.compare(step, digests)
}

// compare finds the ranks whose digests are not the majority's.
func (r Ranks) compare(step int64, digests map[int]uint64) error {
	counts := map[uint64]int{}
	for _, d := range digests {
		counts[d]++
	}
	var corrupt []int
	for rank, d := range digests {
		if 2*counts[d] <= len(digests) {
			corrupt = append(corrupt, rank)
		}
	}
	switch len(corrupt) {
	case 0:
		return nil
	case len(digests):
		return &SplitError{Step: step}
	}
	return r.corrupt(corrupt, "")
}

// Blame returns the error of this rank when all ranks have seen a sign that one rank is corrupt.
func (r Ranks) Blame(rank int, sign string) error { return r.corrupt([]int{rank}, sign) }

// corrupt returns the error of this rank when the states of some ranks are not to be trusted.
func (r Ranks) corrupt(ranks []int, sign string) error {
	if slices.Contains(ranks, r.Rank) {
		return &CorruptError{Rank: r.Rank, Sign: sign}
	}
	slices.Sort(ranks)
	return &PeerCorruptError{Ranks: ranks, Sign: sign}
}
