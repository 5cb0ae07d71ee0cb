package model

import (
	"fmt"

	"rondo/compute"
)

// state is what B lanes carry from one segment to the next.
type state struct {
	model  *Model
	lanes  int                      // B
	flat   []float32                // [L, States, B, H], device memory
	layers []compute.RecurrentState // views of flat
}

// newState makes a zero state.
func newState(m *Model, B int) state {
	c := m.config
	s := state{model: m, lanes: B, flat: m.dev.Alloc(B * c.StateSize())}
	n := c.states() * B * c.Hidden
	for k := range c.Layers {
		s.layers = append(s.layers, cutState(c.layerShape(k, 1, B), s.flat[k*n:(k+1)*n]))
	}
	return s
}

// zero sets the state of all lanes to zero.
func (s state) zero() { s.model.dev.Zero(s.flat) }

// zeroLane sets the state of one lane to zero.
func (s state) zeroLane(lane int) {
	h := s.model.config.Hidden
	for at := lane * h; at < len(s.flat); at += s.lanes * h {
		s.model.dev.Zero(s.flat[at:][:h])
	}
}

// check returns an error if a lane-by-lane state has the wrong length.
func (s state) check(lanes []float32) error {
	if len(lanes) != len(s.flat) {
		return fmt.Errorf("model: the state of %d lanes is %d floats, not %d",
			s.lanes, len(s.flat), len(lanes))
	}
	return nil
}

// rows calls each with every row of H floats of a state in two layouts: host in the device's, [L,
// States, B, H], and lanes lane by lane, [B, L, States, H].
func (s state) rows(host, lanes []float32, each func(row, lane []float32)) {
	size, h := s.model.config.StateSize(), s.model.config.Hidden
	for offset := 0; offset < size; offset += h { // offset within a lane's state
		for b := range s.lanes {
			each(host[offset*s.lanes+b*h:][:h], lanes[b*size+offset:][:h])
		}
	}
}

// toLanes copies host, laid out as flat, to lanes, lane by lane.
func (s state) toLanes(lanes, host []float32) {
	s.rows(host, lanes, func(row, lane []float32) { copy(lane, row) })
}

// fromLanes is the inverse of toLanes.
func (s state) fromLanes(host, lanes []float32) {
	s.rows(host, lanes, func(row, lane []float32) { copy(row, lane) })
}

func (s *state) close() {
	if s.flat != nil {
		s.model.dev.Free(s.flat)
		s.flat, s.layers = nil, nil
	}
}
