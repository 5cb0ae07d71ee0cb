//go:build linux || darwin

package local

import "golang.org/x/sys/unix"

// freeBytes returns the number of bytes that an unprivileged process can still write in dir.
func freeBytes(dir string) (uint64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, err
	}
	return disk.Bavail * uint64(disk.Bsize), nil
}
