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

// copyOut copies the state to dst, host memory: lane by lane [B, L, States, H].
func (s state) copyOut(dst, host []float32) error { return s.copy(dst, host, false) }

// copyIn copies src, host memory laid out as in copyOut, to the state.
func (s state) copyIn(src, host []float32) error { return s.copy(src, host, true) }

// copy moves the state between the device and host memory by way of host: [B, H].
func (s state) copy(lanes, host []float32, toDevice bool) error {
	if len(lanes) != len(s.flat) {
		return fmt.Errorf("model: the state of %d lanes is %d floats, not %d",
			s.lanes, len(s.flat), len(lanes))
	}
	dev, size, h := s.model.dev, s.model.config.StateSize(), s.model.config.Hidden
	for offset := 0; offset < size; offset += h { // in a lane's state
		x := s.flat[offset*s.lanes:][:len(host)]
		if !toDevice {
			dev.Download(host, x)
		}
		for b := range s.lanes {
			lane, row := lanes[b*size+offset:][:h], host[b*h:][:h]
			if toDevice {
				copy(row, lane)
			} else {
				copy(lane, row)
			}
		}
		if toDevice {
			dev.Upload(x, host)
		}
	}
	return nil
}

func (s *state) close() {
	if s.flat != nil {
		s.model.dev.Free(s.flat)
		s.flat, s.layers = nil, nil
	}
}
