package train

import (
	"hash/crc32"
	"unsafe"
)

// digest is a fingerprint of the parameters and of what the optimizer keeps of all of them.
func (t *Trainer) digest() uint64 { return t.digestOf(t.tensors(), t.cfg.HostMemory) }

// digestOf is a fingerprint of tensors in host memory, or in the device's: two checksums of 32
// bits, by polynomials that most processors compute in hardware. It is of their bits, as they lie
// in memory, and not of where one tensor ends.
func (t *Trainer) digestOf(tensors [][]float32, host bool) uint64 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	var high, low uint32
	add := func(x []float32) {
		if len(x) == 0 {
			return
		}
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
		high = crc32.Update(high, castagnoli, bytes)
		low = crc32.Update(low, crc32.IEEETable, bytes)
	}
	const cached = 1 << 13 // floats that the second checksum finds in the cache
	for _, x := range tensors {
		for len(x) > 0 {
			n := min(len(x), cached)
			if !host {
				n = min(len(x), len(t.piece))
				t.dev.Download(t.piece[:n], x[:n])
				add(t.piece[:n])
			} else {
				add(x[:n])
			}
			x = x[n:]
		}
	}
	return uint64(high)<<32 | uint64(low)
}
