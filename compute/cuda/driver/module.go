//go:build cuda

package driver

// #include "driver.h"
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"
)

// Module is compiled kernels.
type Module struct {
	context *Context
	module  cu.Module
}

// Load compiles PTX for the device. The driver caches the result.
func (c *Context) Load(ptx string) (*Module, error) {
	m := &Module{context: c}
	err := c.do("cuModuleLoadData", func() (err error) {
		m.module, err = cu.LoadData(ptx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Close gives the module back, and with it its kernels.
func (m *Module) Close() error { return m.context.do("cuModuleUnload", m.module.Unload) }

// Kernel is one function of a module.
type Kernel struct {
	context  *Context
	function cu.Function
	shared   int // bytes that it may be launched with, once it has been asked for more than usual
}

// usualShared is how many bytes of shared memory any kernel may be launched with.
const usualShared = 48 << 10

// Kernel finds a kernel.
func (m *Module) Kernel(name string) (*Kernel, error) {
	k := &Kernel{context: m.context, shared: usualShared}
	err := m.context.do("cuModuleGetFunction", func() (err error) {
		k.function, err = m.module.Function(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// c is the kernel as C has it: cu's Function is that and nothing else, but does not show it.
func (k *Kernel) c() C.CUfunction { return *(*C.CUfunction)(unsafe.Pointer(&k.function)) }

// allow raises the kernel's limit of shared memory.
func (k *Kernel) allow(shared int) error {
	return k.context.do("cuFuncSetAttribute", func() error {
		err := failed("cuFuncSetAttribute", C.cuFuncSetAttribute(k.c(),
			C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(shared)))
		if err == nil {
			k.shared = shared
		}
		return err
	})
}

// Use is a kernel's use of a multiprocessor.
type Use struct {
	Registers int // of a thread
	Local     int // bytes of a thread's local memory: spilled registers, and arrays with addresses
	Threads   int // the most that a block may have
}

// Use returns the registers and memory that the driver's compiler gave the kernel.
func (k *Kernel) Use() (u Use, err error) {
	err = k.context.do("cuFuncGetAttribute", func() (err error) {
		if u.Registers, err = k.function.Attribute(cu.NumRegs); err != nil {
			return err
		}
		if u.Local, err = k.function.Attribute(cu.LocalSizeBytes); err != nil {
			return err
		}
		u.Threads, err = k.function.Attribute(cu.FnMaxThreadsPerBlock)
		return err
	})
	return u, err
}

// Resident returns how many blocks a multiprocessor can have at once, each of threads threads and
// shared bytes of shared memory.
func (k *Kernel) Resident(threads, shared int) (int, error) {
	if shared > k.shared {
		if err := k.allow(shared); err != nil {
			return 0, err
		}
	}
	var blocks C.int
	err := k.context.do("cuOccupancyMaxActiveBlocksPerMultiprocessor", func() error {
		return failed("cuOccupancyMaxActiveBlocksPerMultiprocessor",
			C.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k.c(), C.int(threads),
				C.size_t(shared)))
	})
	return int(blocks), err
}

// Launch is how a kernel is launched.
type Launch struct {
	Grid, Block [3]int
	Shared      int      // bytes
	Cooperative bool     // blocks may wait for each other: all must fit at once
	Values      []uint64 // of the kernel's parameters, each in the first bytes
}

// Launch enqueues a kernel. It is the call that a step makes most often, and small kernels wait for
// it: so it is one call of C, where cu would take six.
func (s *Stream) Launch(k *Kernel, l *Launch) error {
	if l.Shared > k.shared {
		if err := k.allow(l.Shared); err != nil {
			return err
		}
	}
	return failed("cuLaunchKernel", C.rondo_launch(C.struct_rondo_launch{
		context: s.context.c(), kernel: k.c(), stream: s.c(),
		grid: extent(l.Grid), block: extent(l.Block), shared: C.uint(l.Shared),
		cooperative: flag(l.Cooperative), parameters: C.int(len(l.Values)),
	}, (*C.uint64_t)(unsafe.SliceData(l.Values))))
}

// extent is a grid's or a block's, as C has it.
func extent(e [3]int) [3]C.uint { return [3]C.uint{C.uint(e[0]), C.uint(e[1]), C.uint(e[2])} }
