//go:build !cgo

package cpu

// threads is 1: the caller's.
func (*pure) threads() int { return 1 }

// setThreads has nothing to set: there is one thread, the caller's.
func (*pure) setThreads(int) error { return nil }
