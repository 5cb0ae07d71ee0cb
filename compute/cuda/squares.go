//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
)

// squareSum is a sum of squares that stays on the device and goes to the host, too.
type squareSum struct {
	device *Device
	sum    unsafe.Pointer // float64
	result *result
}

// NewSquareSum makes room for a sum.
func (d *Device) NewSquareSum() compute.SquareSum {
	s := &squareSum{device: d, result: d.memory.newResult()}
	defer orUndo(s.Close)
	s.sum = d.memory.malloc(8)
	return s
}

// Of enqueues the sum.
func (s *squareSum) Of(x []float32) {
	partial := s.device.memory.scratch(8 * squareBlocks(x))
	sumBlocks(&s.device.queue, partial, x)
	s.device.queue.launch("flat_sum_parts", across(1, flatThreads), int64(squareBlocks(x)), partial,
		s.sum, s.result.place())
}

// Sum waits for the last sum.
func (s *squareSum) Sum() float64 {
	return s.result.read()
}

// Close frees the memory; it may be called more than once.
func (s *squareSum) Close() {
	s.result.close()
	s.device.memory.release(s.sum)
	s.sum = nil
}

// lossOf is the device's memory of a loss, a float64; nil: the loss is not this package's.
func lossOf(o compute.Output) unsafe.Pointer {
	switch last := o.(type) {
	case *output:
		return last.sum
	case interface{ First() compute.Output }: // where another's loss is not finite, no gradient is
		return lossOf(last.First())
	case *compute.Squares:
		if sum, ok := last.Total().(*squareSum); ok {
			return sum.sum
		}
	}
	return nil
}
