package train

import (
	"context"
	"fmt"
)

// maskBits is how many lanes one float32 of a mask stands for.
const maskBits = 16

// dealLanes gives every rank the states of all lanes after the step that all are at, and returns
// the lanes that no rank knows.
func (t *Trainer) dealLanes(ctx context.Context) (lost []int, err error) {
	e := t.lastStates()
	if t.task.Reset(t.position(t.progress.Step)) {
		return nil, nil
	}
	if t.ring.Peers == nil {
		return e.lost(), nil
	}
	contributors, err := t.whoKnows(ctx, e)
	if err != nil {
		return nil, err
	}
	if err := t.gatherFrom(ctx, e, contributors); err != nil {
		return nil, fmt.Errorf("dealing the lanes' states: %w", err)
	}
	return e.lost(), nil
}

// lastStates returns the lanes' states after the last step, as far as this rank can know them by
// itself.
func (t *Trainer) lastStates() *entry {
	e := t.book.at(t.progress.Step, t.committed)
	if t.task.Reset(t.position(t.progress.Step)) {
		e.zero()
	} else if t.progress.NonfiniteRun > 0 {
		t.book.heal(e, 0, 0) // a rank that did not complete the step has not done it yet
	}
	return e
}

// whoKnows returns for each lane the lowest rank that knows its state; -1 is none.
func (t *Trainer) whoKnows(ctx context.Context, e *entry) ([]int, error) {
	size := (t.cfg.Lanes + maskBits - 1) / maskBits
	ends := make([]int, len(t.ring.LaneEnds))
	for rank := range ends {
		ends[rank] = (rank + 1) * size
	}
	wire := make([]float32, size*len(ends))
	for lane, known := range e.known {
		if known {
			wire[t.ring.Rank*size+lane/maskBits] += float32(int(1) << (lane % maskBits))
		}
	}
	if err := t.ring.Peers.AllGather(ctx, wire, ends); err != nil {
		return nil, fmt.Errorf("finding who knows which lanes: %w", err)
	}
	contributors := make([]int, t.cfg.Lanes)
	for lane := range contributors {
		contributors[lane] = -1
		for rank := range ends {
			if int(wire[rank*size+lane/maskBits])>>(lane%maskBits)&1 == 1 {
				contributors[lane] = rank
				break
			}
		}
	}
	return contributors, nil
}

// gatherFrom gives every rank the states of all lanes that have a contributor. The entry changes
// only when all have come.
func (t *Trainer) gatherFrom(ctx context.Context, e *entry, contributors []int) error {
	ends := make([]int, len(t.ring.LaneEnds))
	order := make([]int, 0, t.cfg.Lanes) // lanes, by contributor
	for rank := range ends {
		for lane, contributor := range contributors {
			if contributor == rank {
				order = append(order, lane)
			}
		}
		ends[rank] = len(order) * t.laneSize
	}
	wire := make([]float32, len(order)*t.laneSize)
	for i, lane := range order {
		if contributors[lane] == t.ring.Rank {
			copy(wire[i*t.laneSize:], t.book.lanes(e, lane, lane+1))
		}
	}
	if err := t.ring.Peers.AllGather(ctx, wire, ends); err != nil {
		return err
	}
	for i, lane := range order {
		copy(t.book.lanes(e, lane, lane+1), wire[i*t.laneSize:])
		e.known[lane] = true
	}
	return nil
}

// gatherLanes gives every rank the states of all lanes after the last step.
func (t *Trainer) gatherLanes(ctx context.Context) error {
	e := t.book.at(t.progress.Step, t.committed)
	switch {
	case t.task.Reset(t.position(t.progress.Step)):
		e.zero()
	case t.ring.Peers != nil:
		// What of it is known comes back as it is: a gathering that is broken off harms nothing.
		if err := t.ring.Peers.AllGather(ctx, e.states, t.laneFloats); err != nil {
			return fmt.Errorf("gathering the lanes' state: %w", err)
		}
		e.know(0, t.cfg.Lanes)
	}
	return nil
}
