//go:build !linux

package checkpoint

import (
	"errors"
	"os"
)

// exchangePaths is not supported here. The caller moves the old folder aside instead.
func exchangePaths(string, string) error { return errors.ErrUnsupported }

// lockFolder is not supported here. A draft counts as abandoned by its age instead.
func lockFolder(*os.File) error { return errors.ErrUnsupported }
