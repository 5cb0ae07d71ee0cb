package agree

import (
	"context"
	"hash/crc32"
	"unsafe"

	"rondo/compute"
)

// Memory is the memory that tensors lie in. The zero value is host memory.
type Memory struct {
	Device compute.Device // nil: host memory
	Piece  []float32      // host memory that a device's tensors pass through
}

// window returns host memory for the first floats of x, at most most of them: x itself, or the
// piece that download fills and upload empties.
func (m Memory) window(x []float32, most int) []float32 {
	if m.Device == nil {
		return x[:min(len(x), most)]
	}
	return m.Piece[:min(len(x), len(m.Piece))]
}

func (m Memory) download(window, x []float32) {
	if m.Device != nil {
		m.Device.Download(window, x[:len(window)])
	}
}

func (m Memory) upload(x, window []float32) {
	if m.Device != nil {
		m.Device.Upload(x[:len(window)], window)
	}
}

// Digest is a fingerprint of the bits of tensors, one after the other: two checksums of 32 bits, by
// polynomials that most processors compute in hardware.
func (m Memory) Digest(tensors [][]float32) uint64 {
	const cached = 1 << 13 // floats that the second checksum finds in the cache
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	var high, low uint32
	for _, x := range tensors {
		for len(x) > 0 {
			window := m.window(x, cached)
			m.download(window, x)
			bytes := unsafe.Slice((*byte)(unsafe.Pointer(&window[0])), 4*len(window))
			high = crc32.Update(high, castagnoli, bytes)
			low = crc32.Update(low, crc32.IEEETable, bytes)
			x = x[len(window):]
		}
	}
	return uint64(high)<<32 | uint64(low)
}

// broadcast copies the donor's tensors to the ranks that receive. The others take part, and write
// nothing. When it fails, a receiver's tensors may hold anything.
func (m Memory) broadcast(
	ctx context.Context, r Ranks, tensors [][]float32, donor int, receive bool,
) error {
	ends := make([]int, len(r.LaneEnds))
	for _, x := range tensors {
		for len(x) > 0 {
			window := m.window(x, len(x))
			if r.Rank == donor {
				m.download(window, x)
			}
			for rank := donor; rank < len(ends); rank++ { // the donor gives all of it
				ends[rank] = len(window)
			}
			if err := r.AllGather(ctx, window, ends); err != nil {
				return err
			}
			if receive {
				m.upload(x, window)
			}
			x = x[len(window):]
		}
	}
	return nil
}
