//go:build cuda

package driver

// #include <stdlib.h>
// #include "blas.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// Operand is the type of a product's operands in memory, and the type that they are multiplied in.
// Sums are float32.
type Operand int

// The operands.
const (
	Float32  Operand = iota // float32
	TF32                    // float32, multiplied with 10 bits of significand
	BFloat16                // bfloat16
	Float16                 // IEEE 754 half precision
)

// cuBLAS's numbers for them: cudaDataType_t and cublasComputeType_t.
func (o Operand) numbers() (kind, compute C.int) {
	const r32F, r16BF, r16F, compute32F, compute32FFastTF32 = 0, 14, 2, 68, 77
	switch o {
	case Float32:
		return r32F, compute32F
	case TF32:
		return r32F, compute32FFastTF32
	case BFloat16:
		return r16BF, compute32F
	case Float16:
		return r16F, compute32F
	}
	panic(fmt.Sprintf("driver: operand %d is not one of 0..3", int(o)))
}

// The statuses of a call without enough memory, and of one that the device or its operands do not
// support.
const (
	blasAllocFailed  = 3
	blasArchMismatch = 8
	blasNotSupported = 15
)

// statusPrefix begins the names of all.
const statusPrefix = "CUBLAS_STATUS_"

// statuses are cuBLAS's.
func statuses() map[int]string {
	return map[int]string{1: "NOT_INITIALIZED", blasAllocFailed: "ALLOC_FAILED",
		7: "INVALID_VALUE", blasArchMismatch: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
		13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", blasNotSupported: "NOT_SUPPORTED",
		16: "LICENSE_ERROR"}
}

// blas reports whether the error is cuBLAS's, whose numbers are its own.
func (e *Error) blas() bool { return strings.HasPrefix(e.Call, "cublas") }

// multiplied is a call's status as an error.
func multiplied(call string, status C.int) error {
	if status == 0 {
		return nil
	}
	e := &Error{Call: call, Code: int(status), Name: statusPrefix + "UNKNOWN",
		Text: "cuBLAS says no more"}
	if name := statuses()[e.Code]; name != "" {
		e.Name = statusPrefix + name
	}
	return e
}

// BLAS is cuBLAS on a stream.
type BLAS struct {
	context *Context
	library *C.struct_rondo_blas
}

// The versions of cuBLAS whose functions are those of blas.c.
const newestBLAS, oldestBLAS = 13, 11

// OpenBLAS opens the newest cuBLAS that starts on this device, for a stream. Where none does it
// returns nil, and why the newest did not in a few words, none where there is none. The workspace
// is memory of the device, which only cuBLAS uses until it is closed: with it, and one stream, the
// same product has the same bits each time, and a graph may hold it.
func (s *Stream) OpenBLAS(workspace unsafe.Pointer, bytes int64) (b *BLAS, why string) {
	for version := newestBLAS; version >= oldestBLAS; version-- {
		for _, folder := range libraryFolders(fmt.Sprintf("libcublas.so.%d", version)) {
			b, err := s.openBLAS(version, folder, workspace, bytes)
			if b != nil {
				return b, ""
			}
			if e, ok := errors.AsType[*Error](err); ok && why == "" {
				name := strings.TrimPrefix(e.Name, statusPrefix)
				why = fmt.Sprintf("%d says %s", version, name)
			}
		}
	}
	return nil, why
}

// openBLAS opens one cuBLAS. It returns nil, and no error, where it is not there.
func (s *Stream) openBLAS(version int, folder string, workspace unsafe.Pointer,
	bytes int64) (*BLAS, error) {
	name := C.CString(folder)
	defer C.free(unsafe.Pointer(name))
	b := &BLAS{context: s.context, library: C.rondo_blas_open(C.int(version), name)}
	if b.library == nil {
		return nil, nil
	}
	const call = "cublasCreate"
	err := b.context.do(call, func() error {
		err := multiplied(call, C.rondo_blas_start(b.library, unsafe.Pointer(s.c()), workspace,
			C.size_t(bytes)))
		if err != nil {
			C.rondo_blas_discard(b.library)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Close ends cuBLAS.
func (b *BLAS) Close() error {
	return b.context.do("cublasDestroy", func() error {
		return multiplied("cublasDestroy", C.rondo_blas_close(b.library))
	})
}

// Version is cuBLAS's: "12.4".
func (b *BLAS) Version() string {
	v := int(C.rondo_blas_version(b.library))
	return fmt.Sprintf("%d.%d", v/10000, v%10000/100)
}

// Library is the file that it was opened from.
func (b *BLAS) Library() string { return C.GoString(C.rondo_blas_path(b.library)) }

// Product is c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n] of float32,
// all row-major and packed (a transposed operand is stored [k, m] or [n, k]).
type Product struct {
	Operand        Operand
	TransA, TransB bool
	M, N, K        int
	Alpha, Beta    float32
	A, B, C        unsafe.Pointer
}

// Multiply enqueues a product.
func (b *BLAS) Multiply(p *Product) error {
	kind, compute := p.Operand.numbers()
	// Rows packed in memory are columns to cuBLAS, so it computes c' = op(b)' op(a)'.
	swapped := C.struct_rondo_product{trans_a: flag(p.TransB), trans_b: flag(p.TransA),
		m: C.int(p.N), n: C.int(p.M), k: C.int(p.K), _type: kind, compute: compute,
		alpha: C.float(p.Alpha), beta: C.float(p.Beta),
		a: C.size_t(uintptr(p.B)), b: C.size_t(uintptr(p.A)), c: C.size_t(uintptr(p.C))}
	return b.context.do("cublasGemmEx", func() error {
		return multiplied("cublasGemmEx", C.rondo_blas_gemm(b.library, swapped))
	})
}

func flag(on bool) C.int {
	if on {
		return 1
	}
	return 0
}
