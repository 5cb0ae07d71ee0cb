// Package flock locks files between processes. The kernel lets go of the lock of whoever dies. It
// imports nothing of ours.
package flock

import "errors"

// ErrHeld is of a file that another process, or another opening of it in this one, has locked.
var ErrHeld = errors.New("another process has locked it")
