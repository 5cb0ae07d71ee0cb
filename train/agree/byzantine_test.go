package agree

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// liar gives a rank the gatherings of a ring in which the others say anything.
type liar struct {
	random *rand.Rand
	rank   int
	sane   int // one in this many gathers has the rank's true value
}

func (l liar) gather(_ context.Context, buf []float32, ends []int) error {
	begin, own := 0, buf[:ends[l.rank]]
	if l.rank > 0 {
		own = own[ends[l.rank-1]:]
	}
	for rank, end := range ends {
		if rank != l.rank {
			l.lie(buf[begin:end], own)
		}
		begin = end
	}
	return nil
}

// lie fills another rank's values: this rank's own, changed in places, or anything.
func (l liar) lie(said, own []float32) {
	if len(own) == len(said) {
		copy(said, own)
	}
	for range l.random.IntN(l.sane) {
		if len(said) == 0 {
			return
		}
		at := l.random.IntN(len(said))
		switch l.random.IntN(4) {
		case 0:
			said[at] = math.Float32frombits(l.random.Uint32())
		case 1:
			said[at] = 0
		default:
			said[at] = float32(l.random.IntN(1 << 16))
		}
	}
}

// TestByzantineRanks: whatever the other ranks send, a rank ends soon and without a panic. If the
// values are impossible, its error names the sender.
func TestByzantineRanks(t *testing.T) {
	rounds := 20_000
	if !testing.Short() {
		rounds = 1_000_000
	}
	const longest = time.Second
	failed, trusted := 0, 0
	for round := range rounds {
		random := rand.New(rand.NewPCG(uint64(round), 7))
		l := liar{random, random.IntN(3), 1 + random.IntN(6)}
		r := Ranks{Rank: l.rank, LaneEnds: []int{2, 4, 6}, Generation: 2, AllGather: l.gather}
		own := newRank(int64(random.IntN(2)*7), 0, 1, 2, 3, 4, 5)
		for i := range own.tensors { // their contents do not matter
			own.tensors[i] = own.tensors[i][:3]
		}
		j := Join[int64]{Ranks: r, State: own, Tensors: own.tensors[:], Memory: own.memory,
			Shards: own, Compare: true, Replayer: own, SegmentsPerStep: 2, Notice: func(string) {}}
		began := time.Now()
		_, err := j.Run(t.Context())
		var roll Roll
		roll.Begin(r, 0)
		roll.Count(time.Millisecond)
		_, called := roll.Call(t.Context(), r, 7, 1, 0)
		if took := time.Since(began); took > longest {
			t.Fatalf("round %d took %v", round, took)
		}
		for _, err := range []error{err, called} {
			var others *PeerCorruptError
			var corrupt *CorruptError
			var split *SplitError
			switch {
			case err == nil:
				trusted++
			case errors.As(err, &others), errors.As(err, &corrupt), errors.As(err, &split):
				failed++
			default:
				t.Fatalf("round %d: %v", round, err)
			}
			if err != nil && strings.Contains(err.Error(), "%!") {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	t.Logf("%d gatherings ended with an error, %d with none", failed, trusted)
	if failed < rounds/4 || trusted < rounds/100 {
		t.Errorf("of %d rounds %d ended with an error and %d with none: the lies are of one kind",
			rounds, failed, trusted)
	}
}
