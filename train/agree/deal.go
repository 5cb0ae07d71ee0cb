package agree

import (
	"context"
	"fmt"
)

// maskBits is how many lanes one float32 of a mask stands for.
const maskBits = 16

// Deal gives every rank the states of all lanes that some rank knows. It returns the others.
func (e *Entry) Deal(ctx context.Context, r Ranks) (lost []int, err error) {
	if r.AllGather == nil || e.zeroed {
		return e.Lost(), nil
	}
	givers, err := e.whoKnows(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("finding who knows which lanes: %w", err)
	}
	if err := e.gatherFrom(ctx, r, givers); err != nil {
		return nil, fmt.Errorf("dealing the lanes' states: %w", err)
	}
	return e.Lost(), nil
}

// whoKnows returns for each lane the lowest rank that knows its state; -1: none does.
func (e *Entry) whoKnows(ctx context.Context, r Ranks) ([]int, error) {
	size := (len(e.Known) + maskBits - 1) / maskBits
	ends := r.evenEnds(size)
	wire := make([]float32, size*len(ends))
	for lane, known := range e.Known {
		if known {
			wire[r.Rank*size+lane/maskBits] += float32(int(1) << (lane % maskBits))
		}
	}
	if err := r.AllGather(ctx, wire, ends); err != nil {
		return nil, err
	}
	givers := make([]int, len(e.Known))
	for i, v := range wire {
		if _, ok := pair(v); !ok {
			return nil, r.Distrust(i/size, "%v where a mask of %d lanes is due", v, maskBits)
		}
	}
	for lane := range givers {
		givers[lane] = -1
		for rank := range ends {
			if int(wire[rank*size+lane/maskBits])>>(lane%maskBits)&1 == 1 {
				givers[lane] = rank
				break
			}
		}
	}
	return givers, nil
}

// gatherFrom gives every rank the states of all lanes that have a giver. If the gather fails, the
// entry stays unchanged.
func (e *Entry) gatherFrom(ctx context.Context, r Ranks, givers []int) error {
	ends := make([]int, len(r.LaneEnds))
	order := make([]int, 0, len(givers)) // lanes, by giver
	for rank := range ends {
		for lane, giver := range givers {
			if giver == rank {
				order = append(order, lane)
			}
		}
		ends[rank] = len(order) * e.size
	}
	wire := make([]float32, len(order)*e.size)
	for i, lane := range order {
		if givers[lane] == r.Rank {
			copy(wire[i*e.size:], e.Lanes(Lanes{lane, 1}))
		}
	}
	if err := r.AllGather(ctx, wire, ends); err != nil {
		return err
	}
	for i, lane := range order {
		copy(e.Lanes(Lanes{lane, 1}), wire[i*e.size:])
		e.Known[lane] = true
	}
	return nil
}

// Gather gives every rank the states of all lanes, each from the rank that holds the lane. If it
// fails, the states that this rank knows stay: a gathering writes no other bits there.
func (e *Entry) Gather(ctx context.Context, r Ranks) error {
	if r.AllGather == nil || e.zeroed {
		return nil
	}
	ends := make([]int, len(r.LaneEnds))
	for rank, end := range r.LaneEnds {
		ends[rank] = end * e.size
	}
	if err := r.AllGather(ctx, e.States, ends); err != nil {
		return fmt.Errorf("gathering the lanes' state: %w", err)
	}
	e.Know(Lanes{0, len(e.Known)})
	return nil
}
