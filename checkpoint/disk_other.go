//go:build !linux

package checkpoint

import (
	"errors"
	"os"
)

// exchangePaths has no portable form; an old folder is moved aside instead.
func exchangePaths(string, string) error { return errors.ErrUnsupported }

// lockFolder has no portable form; a draft's age decides instead.
func lockFolder(*os.File) error { return errors.ErrUnsupported }
