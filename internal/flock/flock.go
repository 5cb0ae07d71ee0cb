// Package flock locks files between processes. The kernel releases a dead process's locks. The
// package imports nothing of this module.
package flock

import "errors"

// ErrHeld says that the file is locked by another process, or through another os.File of this one.
var ErrHeld = errors.New("another process has locked it")
