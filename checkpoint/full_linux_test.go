package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk saves to a 64 KiB file system if it may mount one. TestFileSizeLimit covers the same
// path everywhere.
func TestFullDisk(t *testing.T) {
	mount := t.TempDir()
	err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64k")
	if errors.Is(err, unix.EPERM) {
		t.Log("mounting needs root; TestFileSizeLimit stands in")
		return
	}
	check(t, err)
	t.Cleanup(func() { check(t, unix.Unmount(mount, 0)) })
	root := filepath.Join(mount, "run")
	store, _ := localStore(t, root)
	_, err = store.Save(t.Context(), snapshot(50, 1))
	check(t, err)
	_, err = store.Save(t.Context(), large(60))
	wantError(t, err, "save checkpoint "+root+"/step-00000060", "no space left on device",
		"older checkpoints are untouched: free space there or choose another folder")
	wantUntouched(t, root)
	// The folder itself may not fit either.
	check(t, fill(filepath.Join(mount, "filler")))
	_, err = store.Save(t.Context(), snapshot(60, 1))
	wantError(t, err, "no space left on device", "free space")
	wantUntouched(t, root)
	check(t, os.Remove(filepath.Join(mount, "filler")))
	_, err = store.Save(t.Context(), snapshot(60, 1))
	check(t, err)
	if list := names(t, root); !slices.Equal(list, []string{"step-00000050", "step-00000060"}) {
		t.Errorf("the folder holds %q", list)
	}
}

// fill writes a file until there is no space left.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
