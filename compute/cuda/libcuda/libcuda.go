//go:build cuda

// Package libcuda stands between a program and NVIDIA's driver library, so that one binary runs on
// machines with and without a GPU. It defines every function of the driver that the program calls
// (symbols.h) as a jump through a table, which is filled by opening libcuda.so.1 when Missing is
// first called; the binary does not name that library among those it needs. Before that, and where
// the library is absent or does not start, every function returns an error, but cuInit none: it
// does nothing, because gorgonia.org/cu calls it in every process, also in those that want no GPU,
// and ends the process at an error.
//
// It calls none of the functions but cuInit and those that name an error, and imports nothing. A
// function of the driver that symbols.h lacks is an undefined reference when a program is linked.
//
// libcuda.so beside this file is not a library: it is an empty linker script, which the -lcuda of
// gorgonia.org/cu finds where nothing of NVIDIA's is installed.
package libcuda

// #cgo LDFLAGS: -L${SRCDIR} -Wl,--as-needed -ldl
// #include "libcuda.h"
import "C"

// Missing opens and starts the driver, unless an earlier call has, and says, for people, why there
// is none: what the loader said of libcuda.so.1, or the driver itself. It is empty where there is
// one. Who calls a function of the driver has called it before.
func Missing() string { return C.GoString(C.rondo_libcuda_start()) }
