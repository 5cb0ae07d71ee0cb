//go:build race

package shm

import (
	"runtime"
	"unsafe"
)

// order stands for all shared memory. The race detector follows what a process does to its own
// memory; that a neighbour answers only what it was sent goes past it. So, as package syscall
// does for input and output, all that is published comes before all that is observed later. One for
// each channel would not do: what one carried to another process is answered through another.
//
//nolint:gochecknoglobals // an address, whose bytes nobody writes
var order [1]byte

func released() { runtime.RaceReleaseMerge(unsafe.Pointer(&order)) }

func acquired() { runtime.RaceAcquire(unsafe.Pointer(&order)) }
