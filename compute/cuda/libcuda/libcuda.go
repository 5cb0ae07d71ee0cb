//go:build cuda

// Package libcuda stands between a program and NVIDIA's driver library, so that one binary runs on
// machines with and without a GPU. It defines every function of the driver that the program calls
// (symbols.h) as a jump through a table. The first call of Missing opens libcuda.so.1 and fills the
// table; the binary does not list that library as a dependency. Before that, and if the library is
// absent or does not start, every function returns an error. cuInit is an exception and does
// nothing: gorgonia.org/cu calls it in every process, also in those without need of a GPU, and ends
// the process at an error.
//
// It calls no function but cuInit and those that name an error, and imports nothing. A function of
// the driver that symbols.h lacks is an undefined reference when a program is linked.
package libcuda

// #cgo LDFLAGS: -ldl
// #include "libcuda.h"
import "C"

// Missing opens and starts the driver, unless an earlier call has. It returns the reason for having
// none, for people: an error of the loader or of the driver. Empty: there is a driver. It must be
// called before any function of the driver.
func Missing() string { return C.GoString(C.rondo_libcuda_start()) }
