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
	layers []compute.RecurrentState // cut from it
}

// newState makes a state of zeros.
func newState(m *Model, B int) state {
	c := m.config
	s := state{model: m, lanes: B, flat: m.dev.Alloc(B * c.StateSize())}
	n := c.Cell.States() * B * c.Hidden
	for k := range c.Layers {
		s.layers = append(s.layers, cutState(c.layerShape(k, 1, B), s.flat[k*n:(k+1)*n]))
	}
	return s
}

// zero sets the state of all lanes to zero.
func (s state) zero() { s.model.dev.Zero(s.flat) }

// check says what is wrong with the length of a state that is laid out lane by lane.
func (s state) check(lanes []float32) error {
	if len(lanes) != len(s.flat) {
		return fmt.Errorf("model: the state of %d lanes is %d floats, not %d",
			s.lanes, len(s.flat), len(lanes))
	}
	return nil
}

// rows are the places of a state in host memory as it is in the device's, [L, States, B, H], and
// lane by lane, [B, L, States, H]. each is called with every row of H floats of the two.
func (s state) rows(host, lanes []float32, each func(row, lane []float32)) {
	size, h := s.model.config.StateSize(), s.model.config.Hidden
	for offset := 0; offset < size; offset += h { // in a lane's state
		for b := range s.lanes {
			each(host[offset*s.lanes+b*h:][:h], lanes[b*size+offset:][:h])
		}
	}
}

// toLanes lays out host, which is as flat, lane by lane.
func (s state) toLanes(lanes, host []float32) {
	s.rows(host, lanes, func(row, lane []float32) { copy(lane, row) })
}

// fromLanes is its inverse.
func (s state) fromLanes(host, lanes []float32) {
	s.rows(host, lanes, func(row, lane []float32) { copy(row, lane) })
}

func (s *state) close() {
	if s.flat != nil {
		s.model.dev.Free(s.flat)
		s.flat, s.layers = nil, nil
	}
}
