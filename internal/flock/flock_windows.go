package flock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// Try locks a file until it is closed. It does not wait; if the file is locked it returns ErrHeld.
func Try(file *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(file.Fd()), flags, 0, 1, 0, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrHeld
	}
	return err
}
