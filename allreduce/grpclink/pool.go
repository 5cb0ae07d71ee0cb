package grpclink

import "sync"

// frames is a pool of gRPC's read buffers. gRPC's own pool clears each buffer first, which would
// write every byte of a gradient once more.
type frames struct{ free sync.Pool }

// Get returns n bytes of any content.
func (f *frames) Get(n int) *[]byte {
	if n > frameBytes {
		b := make([]byte, n)
		return &b
	}
	if b, ok := f.free.Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, frameBytes)
	return &b
}

// Put takes a buffer back.
func (f *frames) Put(b *[]byte) {
	if cap(*b) == frameBytes {
		f.free.Put(b)
	}
}
