package checkpoint

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// exchangePaths swaps two paths atomically (renameat2(2), RENAME_EXCHANGE).
func exchangePaths(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) { // NFS and others do not support the flag
		err = errors.ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return nil
}

// lockFolder takes flock(2)'s exclusive lock without waiting.
func lockFolder(dir *os.File) error {
	err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errLocked
	case errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOLCK): // some NFS mounts have no locks
		return errors.ErrUnsupported
	}
	return err
}
