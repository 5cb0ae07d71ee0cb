//go:build !cgo

package cpu

// threads is 1: the caller's.
func (*pure) threads() int { return 1 }

// setThreads does nothing: the only thread is the caller's.
func (*pure) setThreads(int) error { return nil }
