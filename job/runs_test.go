package job

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/checkpoint"
	"rondo/internal/app"
)

// TestRunFoldersAreNotShared: runs of one name that start in the same second have folders of their
// own, and those that save nothing leave nothing behind.
func TestRunFoldersAreNotShared(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	const runs = 8
	var mu sync.Mutex
	var starting sync.WaitGroup
	removes := map[string]func(){}
	for range runs {
		starting.Go(func() {
			folder, remove, err := NewRunFolder("song", now)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || !filepath.IsAbs(folder) || removes[folder] != nil {
				t.Errorf("folder %q, %v", folder, err)
				return
			}
			removes[folder] = remove
		})
	}
	starting.Wait()
	first := filepath.Join(RunsFolder, "song-20260102-030405")
	for _, want := range []string{first, first + "-2", first + "-8"} {
		if info, err := os.Stat(want); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, remove := range removes {
		remove()
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestRunFolderThatIsUsedStays: what was saved is never removed.
func TestRunFolderThatIsUsedStays(t *testing.T) {
	t.Chdir(t.TempDir())
	folder, remove, err := NewRunFolder("song", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	save(t, folder, 3)
	remove()
	if _, err := os.Stat(filepath.Join(folder, "step-00000003")); err != nil {
		t.Error(err)
	}
}

// TestRunFolderThatCannotBeMade: it is one line about the flag that helps.
func TestRunFolderThatCannotBeMade(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile(RunsFolder, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := NewRunFolder("song", time.Now())
	var wrong *app.UsageError
	if !errors.As(err, &wrong) {
		t.Errorf("%v is no usage error", err)
	}
}

func save(t *testing.T, folder string, step int64) {
	t.Helper()
	store, err := checkpoint.Open(t.Context(), folder, checkpoint.Config{Job: "song",
		Identity: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if _, err := store.Save(t.Context(), checkpoint.Snapshot{Step: step}); err != nil {
		t.Fatal(err)
	}
}

// TestNewestRun: the newest by its checkpoint's time, whatever the folders' names and steps.
func TestNewestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	var wrong *app.UsageError
	if _, _, err := NewestRun(t.Context()); !errors.As(err, &wrong) {
		t.Errorf("without a run: %v", err)
	}
	save(t, filepath.Join(RunsFolder, "z"), 9)
	save(t, filepath.Join(RunsFolder, "a"), 5)
	if err := os.MkdirAll(filepath.Join(RunsFolder, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	folder, step, err := NewestRun(t.Context())
	if err != nil || folder != filepath.Join(RunsFolder, "a") || step != 5 {
		t.Errorf("%s, step %d, %v", folder, step, err)
	}
	save(t, filepath.Join(RunsFolder, "z"), 10)
	if folder, step, err = NewestRun(t.Context()); err != nil || step != 10 {
		t.Errorf("%s, step %d, %v", folder, step, err)
	}
}

// TestNewestRunIsDamaged: an older run is not taken for the newest. What is wrong with an older run
// does not matter.
func TestNewestRunIsDamaged(t *testing.T) {
	t.Chdir(t.TempDir())
	older, newest := filepath.Join(RunsFolder, "z"), filepath.Join(RunsFolder, "a")
	save(t, older, 9)
	save(t, newest, 5)
	damage := func(folder, step string) {
		t.Helper()
		path := filepath.Join(folder, step, "manifest.json")
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		hour := time.Now().Add(time.Hour)
		if folder == newest { // whatever the resolution of the file system's clock
			if err := os.Chtimes(folder, hour, hour); err != nil {
				t.Fatal(err)
			}
		}
	}
	damage(newest, "step-00000005")
	_, _, err := NewestRun(t.Context())
	var damaged *checkpoint.DamageError
	if !errors.As(err, &damaged) || !strings.Contains(err.Error(), "the newest run, "+newest+",") {
		t.Errorf("the newest run is damaged: %v", err)
	}
	if err := os.RemoveAll(newest); err != nil {
		t.Fatal(err)
	}
	damage(older, "step-00000009")
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(older, long, long); err != nil {
		t.Fatal(err)
	}
	save(t, filepath.Join(RunsFolder, "new"), 3)
	folder, step, err := NewestRun(t.Context())
	if err != nil || folder != filepath.Join(RunsFolder, "new") || step != 3 {
		t.Errorf("%s, step %d, %v", folder, step, err)
	}
}
