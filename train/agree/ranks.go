package agree

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// Ranks are the ranks of a ring, as one of them sees it.
type Ranks struct {
	Rank       int      // this one
	LaneEnds   []int    // rank r holds the lanes [LaneEnds[r-1], LaneEnds[r]) of the G lanes
	Names      []string // of the ranks, for people; nil: numbers will do
	Generation int64    // of the ring
	// AllGather gives every rank buf[ends[i-1]:ends[i]] of each rank i. Where a rank already has
	// these values, it writes the same bits. Nil: this rank is alone.
	AllGather func(ctx context.Context, buf []float32, ends []int) error
}

// Lanes are neighbouring lanes of the batch: [First, First+Count).
type Lanes struct{ First, Count int }

// End is the number of the lane behind them.
func (l Lanes) End() int { return l.First + l.Count }

// Lanes returns the lanes of a rank.
func (r Ranks) Lanes(rank int) Lanes {
	first := 0
	if rank > 0 {
		first = r.LaneEnds[rank-1]
	}
	return Lanes{first, r.LaneEnds[rank] - first}
}

// Name is a rank as people know it.
func (r Ranks) Name(rank int) string {
	if r.Names == nil {
		return fmt.Sprintf("rank %d", rank)
	}
	return fmt.Sprintf("rank %d (%s)", rank, r.Names[rank])
}

// evenEnds returns the ends of a gathering to which each rank gives size floats.
func (r Ranks) evenEnds(size int) []int {
	ends := make([]int, len(r.LaneEnds))
	for rank := range ends {
		ends[rank] = (rank + 1) * size
	}
	return ends
}

// Distrust returns the error for a rank that sent an impossible value. It is treated like a rank
// with corrupt memory.
func (r Ranks) Distrust(rank int, format string, a ...any) error {
	return fmt.Errorf("%s says "+format+": %w", append(append([]any{r.Name(rank)}, a...),
		r.corrupt([]int{rank}, ""))...)
}

// pair returns the two bytes in a float of a gathering. A sound rank sends no other value.
func pair(v float32) (uint16, bool) {
	if !(v >= 0 && v <= math.MaxUint16) { // also if it is not a number
		return 0, false
	}
	return uint16(v), float32(uint16(v)) == v
}

// checked is a gathered value that can recognise impossible contents.
type checked interface{ check() error }

// Gather gives every rank the values of all, by rank. A value has a fixed size, as encoding/binary
// defines it. Its bytes travel in pairs, since a float32 holds whole numbers of 24 bits. An
// impossible value is an error that names its rank.
func Gather[T any](ctx context.Context, r Ranks, own T) ([]T, error) {
	all := make([]T, len(r.LaneEnds))
	if r.AllGather == nil {
		all[0] = own
		return all, nil
	}
	size := (binary.Size(own) + 1) / 2
	bytes, err := binary.Append(make([]byte, 0, 2*size), binary.LittleEndian, own)
	if err != nil {
		return nil, fmt.Errorf("agree: encoding this rank's value: %w", err)
	}
	bytes = bytes[:2*size]
	ends := r.evenEnds(size)
	wire := make([]float32, size*len(all))
	for i := range size {
		wire[r.Rank*size+i] = float32(binary.LittleEndian.Uint16(bytes[2*i:]))
	}
	if err := r.AllGather(ctx, wire, ends); err != nil {
		return nil, err
	}
	for rank := range all {
		for i, v := range wire[rank*size : ends[rank]] {
			two, ok := pair(v)
			if !ok {
				return nil, r.Distrust(rank, "%v where two bytes are due", v)
			}
			binary.LittleEndian.PutUint16(bytes[2*i:], two)
		}
		if _, err := binary.Decode(bytes, binary.LittleEndian, &all[rank]); err != nil {
			return nil, fmt.Errorf("agree: decoding rank %d's value: %w", rank, err)
		}
		if value, ok := any(all[rank]).(checked); ok {
			if err := value.check(); err != nil {
				return nil, r.Distrust(rank, "%w", err)
			}
		}
	}
	return all, nil
}
