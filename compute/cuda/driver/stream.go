//go:build cuda

package driver

// #include "driver.h"
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"
)

// sharedPerBlock is the attribute that cu has no name for.
const sharedPerBlock = cu.DeviceAttribute(C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

// AllocHost allocates pinned host memory, from and to which the device copies directly.
func (c *Context) AllocHost(bytes int) ([]byte, error) {
	var made C.struct_rondo_made
	err := c.do("cuMemHostAlloc", func() error {
		made = C.rondo_alloc_host(C.size_t(bytes))
		return failed("cuMemHostAlloc", made.result)
	})
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(made.it), bytes), nil
}

// FreeHost gives it back. Nothing that is under way may use it.
func (c *Context) FreeHost(host []byte) error {
	return c.do("cuMemFreeHost", func() error {
		return cu.MemFreeHost(unsafe.Pointer(unsafe.SliceData(host)))
	})
}

// Stream is a queue of work, which the device does in order.
type Stream struct {
	context *Context
	stream  cu.Stream
}

// NewStream makes a stream that does not wait for others.
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{context: c}
	err := c.do("cuStreamCreate", func() (err error) {
		s.stream, err = cu.MakeStream(cu.NonBlocking)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Close frees the stream. Its remaining work is still done.
func (s *Stream) Close() error {
	return s.context.do("cuStreamDestroy", s.stream.Destroy)
}

// c is the stream as C has it.
func (s *Stream) c() C.CUstream { return C.CUstream(unsafe.Pointer(s.stream.C())) }

// Upload enqueues a copy from pinned memory, which may not change until it is done.
func (s *Stream) Upload(dst unsafe.Pointer, src []byte) error {
	return s.context.do("cuMemcpyHtoDAsync", func() error {
		return cu.MemcpyHtoDAsync(address(dst), unsafe.Pointer(unsafe.SliceData(src)),
			int64(len(src)), s.stream)
	})
}

// Download enqueues a copy to pinned memory.
func (s *Stream) Download(dst []byte, src unsafe.Pointer) error {
	return s.context.do("cuMemcpyDtoHAsync", func() error {
		return cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(dst)), address(src),
			int64(len(dst)), s.stream)
	})
}

// Copy enqueues a copy within the device's memory.
func (s *Stream) Copy(dst, src unsafe.Pointer, bytes int64) error {
	return s.context.do("cuMemcpyDtoDAsync", func() error {
		return cu.MemcpyDtoDAsync(address(dst), address(src), bytes, s.stream)
	})
}

// Zero enqueues zeros for the device's memory.
func (s *Stream) Zero(dst unsafe.Pointer, bytes int64) error {
	return s.context.do("cuMemsetD8Async", func() error {
		return cu.MemsetD8Async(address(dst), 0, bytes, s.stream)
	})
}
