//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || wasip1 || windows)

package flock

import (
	"errors"
	"os"
)

// Try fails: this system has no such locks.
func Try(*os.File) error { return errors.ErrUnsupported }
