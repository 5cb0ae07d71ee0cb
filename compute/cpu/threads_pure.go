//go:build !cgo

package cpu

// setThreads has nothing to set: there is one thread, the caller's.
func (*pure) setThreads(int) error { return nil }
