//go:build cuda

// Package driver is package cuda's access to NVIDIA's driver API, cuBLAS and NCCL. Errors name the
// failed call, in CUDA's words. It calls gorgonia.org/cu where that has a function, and C functions
// for the rest: pinned memory, stream capture and graphs, a kernel's limit of shared memory, cuBLAS
// and NCCL. Launches and looks at events, which are frequent, are one call of C each.
//
// A CUDA context is current on an operating system's thread, and a goroutine moves between threads.
// So every call here stays on its thread and makes its context current first. The objects of a
// Context are used by one goroutine at a time.
//
// The package knows no kernels, shapes or tensors, and does not count memory. It imports libcuda of
// ours, and gorgonia.org/cu. cuda.h is needed to build it, and no library to run it.
package driver

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"rondo/compute/cuda/libcuda"
)

// Info describes a device.
type Info struct {
	Index           int
	Name, UUID      string
	Major, Minor    int // compute capability
	Multiprocessors int
	SharedPerBlock  int    // bytes that a kernel may ask for
	Memory, Free    int64  // bytes; Free is 0 if it is not known
	Driver          string // the newest CUDA that the driver supports: "12.4"
}

// Devices lists the devices that the driver shows, without their free memory. Without a driver its
// error says why.
func Devices() ([]Info, error) {
	count, err := Count()
	if err != nil {
		return nil, err
	}
	all := make([]Info, count)
	for i := range all {
		if all[i], err = Describe(i); err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
	}
	return all, nil
}

// Count returns the number of devices that the driver shows. Without a driver its error says why.
func Count() (int, error) {
	if missing := libcuda.Missing(); missing != "" {
		return 0, errors.New(missing)
	}
	count, err := cu.NumDevices()
	return count, failure("cuDeviceGetCount", err)
}

// Free returns a device's free memory in bytes. Unless the process has a context on the device, it
// opens one: that takes some tenths of a second and, until it returns, hundreds of megabytes.
func Free(index int) (int64, error) {
	c, err := Open(index)
	if err != nil {
		return 0, err
	}
	free, _, err := c.Memory()
	return free, errors.Join(err, c.Close())
}

// find finds a device.
func find(index int) (device cu.Device, err error) {
	if missing := libcuda.Missing(); missing != "" {
		return device, errors.New(missing)
	}
	device, err = cu.GetDevice(index)
	return device, failure("cuDeviceGet", err)
}

// Describe describes one device, without its free memory.
func Describe(index int) (Info, error) {
	device, err := find(index)
	if err != nil {
		return Info{}, err
	}
	info := Info{Index: index, Driver: version(cu.Version())}
	for attribute, value := range map[cu.DeviceAttribute]*int{
		cu.ComputeCapabilityMajor: &info.Major,
		cu.ComputeCapabilityMinor: &info.Minor,
		cu.MultiprocessorCount:    &info.Multiprocessors,
		sharedPerBlock:            &info.SharedPerBlock,
	} {
		if *value, err = device.Attribute(attribute); err != nil {
			return Info{}, failure("cuDeviceGetAttribute", err)
		}
	}
	if info.Memory, err = device.TotalMem(); err != nil {
		return Info{}, failure("cuDeviceTotalMem", err)
	}
	if info.Name, err = device.Name(); err != nil {
		return Info{}, failure("cuDeviceGetName", err)
	}
	id, err := device.UUID()
	if err != nil {
		return Info{}, failure("cuDeviceGetUuid", err)
	}
	info.UUID = "GPU-" + id.String()
	return info, nil
}

// Version is the newest CUDA that the driver supports, as CUDA counts: 12040 is 12.4.
func Version() int { return cu.Version() }

// version is a CUDA version for people.
func version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// Context is a device's primary context, which all of a process share.
type Context struct {
	device  cu.Device
	context cu.CUContext
	waiter  waiter
	hung    error       // set when a wait was given up
	asked   chan *Event // the event that the waiter is to wait for
	waited  chan error
	ended   chan struct{}
	timer   *time.Timer
}

// Open retains the primary context of a device.
func Open(index int) (*Context, error) {
	device, err := find(index)
	if err != nil {
		return nil, err
	}
	context, err := device.RetainPrimaryCtx()
	if err != nil {
		return nil, failure("cuDevicePrimaryCtxRetain", err)
	}
	c := &Context{device: device, context: context, asked: make(chan *Event),
		waited: make(chan error, 1), ended: make(chan struct{}), timer: time.NewTimer(0)}
	err = c.do("cuStreamCreate", func() (err error) {
		c.waiter, err = newWaiter()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, failure("cuDevicePrimaryCtxRelease",
			device.ReleasePrimaryCtx()))
	}
	go c.wait()
	return c, nil
}

// Close releases the context, and with it, unless somebody else holds it, everything in it.
func (c *Context) Close() error {
	close(c.asked)
	if c.hung != nil {
		return c.hung // its thread is still in the driver
	}
	<-c.ended
	err := c.do("cuStreamDestroy", c.waiter.close)
	return errors.Join(err, failure("cuDevicePrimaryCtxRelease", c.device.ReleasePrimaryCtx()))
}

// c is the context as C has it: cu's CUContext is that and nothing else, but does not show it.
func (c *Context) c() C.CUcontext { return *(*C.CUcontext)(unsafe.Pointer(&c.context)) }

// do runs f on one thread, on which the context is current. It may be nested.
func (c *Context) do(call string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(c.context); err != nil {
		return failure("cuCtxSetCurrent", err)
	}
	return failure(call, f())
}

// wait is the goroutine that waits in the driver, so that its callers can give up.
func (c *Context) wait() {
	defer close(c.ended)
	for event := range c.asked {
		c.waited <- c.do("cuEventSynchronize", func() error { return c.waiter.wait(event) })
	}
}

// Memory is how many bytes of the device's memory are free, and how many there are.
func (c *Context) Memory() (free, total int64, err error) {
	err = c.do("cuMemGetInfo", func() (err error) {
		free, total, err = cu.MemInfo()
		return err
	})
	return free, total, err
}

// Alloc makes memory of the device, which holds anything.
func (c *Context) Alloc(bytes int64) (p unsafe.Pointer, err error) {
	err = c.do("cuMemAlloc", func() error {
		address, err := cu.MemAlloc(bytes)
		p = pointer(address)
		return err
	})
	return p, err
}

// Free gives memory of Alloc back. Nothing that is under way may use it.
func (c *Context) Free(p unsafe.Pointer) error {
	return c.do("cuMemFree", func() error { return cu.MemFree(address(p)) })
}

// pointer is a device's address as the host's pointers are written; it is not to be followed. The
// detour is because vet, rightly, suspects any integer that becomes a pointer.
func pointer(p cu.DevicePtr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func address(p unsafe.Pointer) cu.DevicePtr { return cu.DevicePtr(uintptr(p)) }
