package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"rondo/corpus"
)

func offsetZero(int64, int) int64 { return 0 }

func TestWorkersThatCannotNameALog(t *testing.T) {
	dir := t.TempDir()
	for _, worker := range []string{"", ".", "..", "a/b", ".hidden", "/"} {
		if _, err := Open(dir, worker, offsetZero); err == nil {
			t.Errorf("worker %q has a log", worker)
		}
	}
	first, err := Open(filepath.Join(dir, "new", "folder"), "worker-1", offsetZero)
	check(t, err)
	defer first.Close()
	_, err = Open(filepath.Join(dir, "new", "folder"), "worker-1", offsetZero)
	if !errors.Is(err, os.ErrExist) || !strings.HasPrefix(err.Error(), "--audit-dir: ") {
		t.Errorf("a second log of one worker: %v", err)
	}
}

func TestStepsNeedARing(t *testing.T) {
	log, err := Open(t.TempDir(), "worker-1", offsetZero)
	check(t, err)
	if err := log.Intend(1, 0, 0, 1, nil); err == nil {
		t.Error("a read without a ring")
	}
	if err := log.Commit(Commit{Step: 1}); err == nil {
		t.Error("a commit without a ring")
	}
	check(t, log.Close())
	check(t, log.Close())
	if err := log.Ring(Ring{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestFullDiskEndsTheLog: after a failed write, no line is written.
func TestFullDiskEndsTheLog(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no /dev/full here")
	}
	check(t, err)
	dir := t.TempDir()
	log, err := Open(dir, "worker-1", offsetZero)
	check(t, err)
	check(t, log.Ring(Ring{Run: 1, Generation: 1, World: 1, Batches: corpus.SamplerConfig{
		Tokens: 9, Lanes: 1, BPTT: 2, Seed: 1, Sampling: corpus.Random}}))
	sound := log.file
	log.file = full
	if err := log.Commit(Commit{Step: 1}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	check(t, full.Close())
	log.file = sound
	if err := log.Commit(Commit{Step: 2}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("after a line that failed: %v", err)
	}
	check(t, log.Close())
	text, err := os.ReadFile(filepath.Join(dir, "worker-1.jsonl"))
	check(t, err)
	if strings.Count(string(text), "\n") != 1 {
		t.Errorf("the log holds %q", text)
	}
}

func BenchmarkStep(b *testing.B) {
	log, err := Open(b.TempDir(), "worker-1", func(step int64, lane int) int64 {
		return step*35 + int64(lane)*1_000_000
	})
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	if err := log.Ring(Ring{Run: 1, Generation: 1, World: 1}); err != nil {
		b.Fatal(err)
	}
	inputs := make([]int32, 35*32)
	b.ReportAllocs()
	for step := int64(1); b.Loop(); step++ {
		err := errors.Join(log.Intend(step, 0, 0, 32, inputs), log.Commit(Commit{Step: step}))
		if err != nil {
			b.Fatal(err)
		}
	}
}
