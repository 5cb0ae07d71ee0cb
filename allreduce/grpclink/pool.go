package grpclink

import (
	"sync"

	"rondo/allreduce/grpclink/framing"
)

// frames is a pool of gRPC's read buffers. gRPC's own pool clears each buffer first, which would
// write every byte of a gradient once more.
type frames struct{ free sync.Pool }

// Get returns n bytes of any content.
func (f *frames) Get(n int) *[]byte {
	if n > framing.FrameBytes {
		b := make([]byte, n)
		return &b
	}
	if b, ok := f.free.Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, framing.FrameBytes)
	return &b
}

// Put takes a buffer back.
func (f *frames) Put(b *[]byte) {
	if cap(*b) == framing.FrameBytes {
		f.free.Put(b)
	}
}
