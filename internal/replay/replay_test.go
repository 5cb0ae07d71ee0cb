package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain runs replay itself in a process that TestReplays starts.
func TestMain(m *testing.M) {
	if os.Getenv("RONDO_REPLAY_MAIN") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestReplays: a program that depends on chance prints the same in each run.
func TestReplays(t *testing.T) {
	program := filepath.Join(t.TempDir(), "race.wasm")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/race")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var first []byte
	cache := "XDG_CACHE_HOME=" + t.TempDir()
	for i := range 5 {
		replay := exec.CommandContext(t.Context(), os.Args[0], program)
		replay.Env = append(os.Environ(), "RONDO_REPLAY_MAIN=1", cache)
		out, err := replay.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if i == 0 {
			first = out
		}
		if len(out) < 500 || !bytes.Equal(out, first) {
			t.Fatalf("run %d prints\n%s\nand the first\n%s", i+1, out, first)
		}
	}
}
