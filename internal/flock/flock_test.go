package flock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestTry: a locked file cannot be locked again until it is closed.
func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var files [2]*os.File
	for i := range files {
		var err error
		if files[i], err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
	}
	if err := Try(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := Try(files[1]); !errors.Is(err, ErrHeld) {
		t.Errorf("a file that is locked: %v", err)
	}
	if err := files[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := Try(files[1]); err != nil {
		t.Errorf("after the other is closed: %v", err)
	}
}
