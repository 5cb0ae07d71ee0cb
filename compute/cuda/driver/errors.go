//go:build cuda

package driver

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"reflect"
)

// Error is an error returned by a call of the driver or of cuBLAS.
type Error struct {
	Call string // cuMemAlloc
	Code int
	Name string // CUDA_ERROR_OUT_OF_MEMORY
	Text string // out of memory
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

// OutOfMemory reports whether a call failed for lack of the device's memory.
func OutOfMemory(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Code == C.CUDA_ERROR_OUT_OF_MEMORY && !e.blas() ||
		e.Code == blasAllocFailed && e.blas())
}

// Broken reports whether an error is permanent: the device, or this process's context on it, is
// lost, and every later call fails as well. After other errors, such as a wrong argument, the
// device works as before. After an error of cuBLAS the device may be lost too, but then the next
// call reports it.
func Broken(err error) bool {
	if errors.Is(err, errHung) {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || e.blas() {
		return false
	}
	switch e.Code {
	case C.CUDA_ERROR_DEINITIALIZED, C.CUDA_ERROR_DEVICE_UNAVAILABLE, C.CUDA_ERROR_INVALID_CONTEXT,
		C.CUDA_ERROR_CONTEXT_IS_DESTROYED, C.CUDA_ERROR_ECC_UNCORRECTABLE,
		C.CUDA_ERROR_NVLINK_UNCORRECTABLE, C.CUDA_ERROR_ILLEGAL_ADDRESS,
		C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_ASSERT, C.CUDA_ERROR_HARDWARE_STACK_ERROR,
		C.CUDA_ERROR_ILLEGAL_INSTRUCTION, C.CUDA_ERROR_MISALIGNED_ADDRESS,
		C.CUDA_ERROR_INVALID_ADDRESS_SPACE, C.CUDA_ERROR_INVALID_PC, C.CUDA_ERROR_LAUNCH_FAILED,
		C.CUDA_ERROR_MPS_RPC_FAILURE, C.CUDA_ERROR_EXTERNAL_DEVICE, C.CUDA_ERROR_UNKNOWN,
		contained, mpsClientTerminated, tensorMemoryLeak:
		return true
	}
	return false
}

// Errors that are for good, and that not every cuda.h has.
const (
	contained           = 226 // an error of a device's memory that is this process's only
	tensorMemoryLeak    = 721
	mpsClientTerminated = 810
)

// TooManyBlocks reports whether a cooperative launch was refused because its blocks cannot all be
// resident at once, for instance because another process has a part of the GPU. Nothing was
// launched.
func TooManyBlocks(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && !e.blas() && e.Code == C.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
}

// Unsupported reports whether cuBLAS has no product of these operands, on any device or on this
// one.
func Unsupported(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.blas() && (e.Code == blasArchMismatch || e.Code == blasNotSupported)
}

// failure makes an *Error of an error of cu or of the C functions.
func failure(call string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok { // of a call within
		return e
	}
	// cu's type of errors, a CUresult with a method, has no name outside of cu.
	result := reflect.ValueOf(err)
	if !result.CanInt() {
		return fmt.Errorf("%s: %w", call, err)
	}
	return failed(call, C.CUresult(result.Int()))
}

// failed is a C function's result as an error.
func failed(call string, result C.CUresult) error {
	if result == C.CUDA_SUCCESS {
		return nil
	}
	e := &Error{Call: call, Code: int(result), Name: C.GoString(C.rondo_error_name(result)),
		Text: C.GoString(C.rondo_error_text(result))}
	if e.Name == "" {
		e.Name, e.Text = "error", "CUDA does not know it"
	}
	return e
}
