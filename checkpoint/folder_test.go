package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// localStore opens a folder as a job. Tests may change its place.
func localStore(t *testing.T, root string) (*Store, *folder) {
	t.Helper()
	store := storage{location: root}.store(t)
	return store, store.place.(*folder)
}

// saved makes a folder with a checkpoint of step 50, variant 1.
func saved(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	store, _ := localStore(t, root)
	_, err := store.Save(t.Context(), snapshot(50, 1))
	check(t, err)
	return root
}

// names lists a folder.
func names(t *testing.T, root string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	check(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func wantLatest(t *testing.T, root string, want Snapshot) {
	t.Helper()
	store, _ := localStore(t, root)
	c, err := store.Latest(t.Context())
	check(t, err)
	wantHolds(t, c, want)
}

// TestFolderSyncs checks which files and folders are synced, and in which order.
func TestFolderSyncs(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a", "b")
	store, place := localStore(t, root)
	var synced []string
	place.sync = func(f *os.File) error {
		path := f.Name()
		if d := filepath.Base(filepath.Dir(path)); strings.HasPrefix(d, ".step") {
			path = filepath.Base(path)
		} else if strings.HasPrefix(filepath.Base(path), ".step") {
			path = "draft"
			if list := names(t, f.Name()); len(list) != 4 {
				t.Errorf("the draft was synced with %q in it", list)
			}
		} else if path == root {
			if list := names(t, root); !slices.Equal(list, []string{"step-00000050"}) {
				t.Errorf("the root was synced with %q in it", list)
			}
		}
		synced = append(synced, path)
		return f.Sync()
	}
	_, err := store.Save(t.Context(), snapshot(50, 1))
	check(t, err)
	want := []string{filepath.Dir(root), filepath.Dir(filepath.Dir(root)), "model.safetensors",
		"optimizer.safetensors", "lanes.safetensors", "manifest.json", "draft", root}
	if !slices.Equal(synced, want) {
		t.Errorf("synced %q, want %q", synced, want)
	}
}

// TestFolderSyncFails makes every sync of a save fail in turn.
func TestFolderSyncFails(t *testing.T) {
	const syncs = 6 // four files, the draft, the root
	for n := range syncs {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			root := saved(t)
			store, place := localStore(t, root)
			count := 0
			place.sync = func(f *os.File) error {
				if count++; count == n+1 {
					return &os.PathError{Op: "sync", Path: f.Name(), Err: syscall.EIO}
				}
				return f.Sync()
			}
			_, err := store.Save(t.Context(), snapshot(60, 2))
			wantError(t, err, "save checkpoint "+root+"/step-00000060", "sync "+root,
				"input/output error; older checkpoints are untouched: check the disk")
			want := []string{"step-00000050"}
			if n == syncs-1 { // after the last sync's failure the new one is in place
				want = append(want, "step-00000060")
			}
			if list := names(t, root); !slices.Equal(list, want) {
				t.Errorf("the folder holds %q, want %q", list, want)
			}
			check(t, store.Verify(t.Context(), 50))
			if count = syncs; n == syncs-1 {
				check(t, store.Verify(t.Context(), 60))
			}
			_, err = store.Save(t.Context(), snapshot(60, 3))
			check(t, err)
			wantLatest(t, root, snapshot(60, 3))
		})
	}
}

// dies runs a save that panics. Like the death of the process, the panic frees the lock and cleans
// up nothing else. The place's hooks panic before or after their work.
func dies(t *testing.T, store *Store, snap Snapshot) (died bool) {
	t.Helper()
	defer func() {
		switch r := recover(); r {
		case nil:
		case errCrash:
			died = true
		default:
			panic(r)
		}
	}()
	_, err := store.Save(t.Context(), snap)
	check(t, err)
	return false
}

// TestFolderCrash crashes before and after every sync and exchange of a save, with and without a
// working exchange.
func TestFolderCrash(t *testing.T) {
	for _, exchanges := range []bool{true, false} {
		for _, step := range []int64{50, 60} { // saved again, and new
			for n := 0; ; n++ {
				root := saved(t)
				store, place := localStore(t, root)
				count := 0
				point := func() {
					if count++; count == n+1 {
						panic(errCrash)
					}
				}
				var drafts []*os.File
				place.sync = func(f *os.File) error {
					point()
					err := f.Sync()
					point()
					return err
				}
				place.lock = func(f *os.File) error {
					drafts = append(drafts, f)
					return lockFolder(f)
				}
				place.exchange = func(a, b string) error {
					point()
					if !exchanges {
						return errors.ErrUnsupported
					}
					err := exchangePaths(a, b)
					point()
					return err
				}
				died := dies(t, store, snapshot(step, 2))
				for _, f := range drafts {
					f.Close()
				}
				after, _ := localStore(t, root)
				c, err := after.Latest(t.Context())
				check(t, err)
				if c.Metrics["loss"] == 2 {
					wantHolds(t, c, snapshot(step, 2))
				} else {
					wantHolds(t, c, snapshot(50, 1))
				}
				_, err = after.Save(t.Context(), snapshot(70, 3))
				check(t, err)
				for _, name := range names(t, root) {
					if !strings.HasPrefix(name, stepPrefix) {
						t.Errorf("crash %d left %s", n, name)
					}
				}
				wantLatest(t, root, snapshot(70, 3))
				if !died {
					if c.Metrics["loss"] != 2 || n < 12 {
						t.Errorf("%d points, then loss %v", n, c.Metrics["loss"])
					}
					break
				}
			}
		}
	}
}

// TestFolderWithoutExchange saves a step again on a file system that cannot exchange paths.
func TestFolderWithoutExchange(t *testing.T) {
	root := saved(t)
	store, place := localStore(t, root)
	place.exchange = func(string, string) error { return errors.ErrUnsupported }
	_, err := store.Save(t.Context(), snapshot(50, 2))
	check(t, err)
	wantLatest(t, root, snapshot(50, 2))
	if list := names(t, root); !slices.Equal(list, []string{"step-00000050"}) {
		t.Errorf("the folder holds %q", list)
	}
	// A reader that takes the writer for dead puts the old folder back. The writer must try again.
	aside := filepath.Join(root, hiddenName("step-00000050", asideKind))
	place.exchange = func(_, final string) error {
		place.exchange = func(string, string) error { return errors.ErrUnsupported }
		check(t, os.Rename(final, aside))
		_, _, err := place.list(t.Context())
		check(t, err)
		return errors.ErrUnsupported
	}
	_, err = store.Save(t.Context(), snapshot(50, 3))
	check(t, err)
	wantLatest(t, root, snapshot(50, 3))
	place.exchange = func(string, string) error { return syscall.EIO }
	_, err = store.Save(t.Context(), snapshot(50, 4))
	wantError(t, err, "input/output error")
	wantLatest(t, root, snapshot(50, 3))
	if list := names(t, root); !slices.Equal(list, []string{"step-00000050"}) {
		t.Errorf("the folder holds %q", list)
	}
}

// TestFolderRestores: a step is found although its writer died after moving it aside.
func TestFolderRestores(t *testing.T) {
	root := saved(t)
	final := filepath.Join(root, "step-00000050")
	check(t, os.Rename(final, filepath.Join(root, hiddenName("step-00000050", asideKind))))
	wantLatest(t, root, snapshot(50, 1))
	// A folder that is moved aside after the sweep's restore must not be swept.
	aside := hiddenName("step-00000050", asideKind)
	check(t, os.Rename(final, filepath.Join(root, aside)))
	newFolder(root, nil).discardDead(aside)
	wantLatest(t, root, snapshot(50, 1))
	// Once the new folder is in place, the old one may go.
	check(t, os.CopyFS(filepath.Join(root, aside), os.DirFS(final)))
	wantLatest(t, root, snapshot(50, 1))
	store, _ := localStore(t, root)
	_, err := store.Save(t.Context(), snapshot(60, 2))
	check(t, err)
	if list := names(t, root); !slices.Equal(list, []string{"step-00000050", "step-00000060"}) {
		t.Errorf("the folder holds %q", list)
	}
}

// TestFolderSweeps: a save removes the drafts of dead writers and nothing else.
func TestFolderSweeps(t *testing.T) {
	root := saved(t)
	draft := func(file string) (name string) {
		name = hiddenName("step-00000060", draftKind)
		check(t, os.Mkdir(filepath.Join(root, name), 0o777))
		if file != "" {
			check(t, os.WriteFile(filepath.Join(root, name, file), []byte("x"), 0o666))
		}
		return name
	}
	draft("")
	draft("model.safetensors")
	draft("manifest.json")
	want := []string{"step-00000050", "step-00000070", draft("notes.txt"), draft(".nfs0001")}
	deep := draft("")
	check(t, os.Mkdir(filepath.Join(root, deep, "model.safetensors"), 0o777))
	alive := draft("model.safetensors")
	dir, err := os.Open(filepath.Join(root, alive))
	check(t, err)
	defer dir.Close()
	check(t, lockFolder(dir))
	for _, foreign := range []string{".step-00000060.draft-0123", ".step-60.draft-0123456789abcdef",
		".step-00000060.draft-0123456789abcdeX", ".step-00000060.other-0123456789abcdef",
		"step-00000060.draft-0123456789abcdef", ".step-00000060.draft-0123456789abcdef.x",
		"notes"} {
		check(t, os.Mkdir(filepath.Join(root, foreign), 0o777))
		want = append(want, foreign)
	}
	file := ".step-00000060.draft-0123456789abcdef"
	check(t, os.WriteFile(filepath.Join(root, file), nil, 0o666))
	want = append(want, deep, alive, file)
	store, _ := localStore(t, root)
	_, err = store.Save(t.Context(), snapshot(70, 0))
	check(t, err)
	slices.Sort(want)
	if list := names(t, root); !slices.Equal(list, want) {
		t.Errorf("the folder holds\n%q, want\n%q", list, want)
	}
}

// TestFolderWithoutLocks: without locks, the age decides which drafts are dead.
func TestFolderWithoutLocks(t *testing.T) {
	root := saved(t)
	name := hiddenName("step-00000060", draftKind)
	check(t, os.Mkdir(filepath.Join(root, name), 0o777))
	store, place := localStore(t, root)
	place.lock = func(*os.File) error { return errors.ErrUnsupported }
	for _, test := range []struct {
		age  time.Duration
		want int
	}{{staleAfter - time.Minute, 2}, {staleAfter + time.Minute, 1}} {
		place.now = func() time.Time { return time.Now().Add(test.age) }
		_, err := store.Save(t.Context(), snapshot(50, 2))
		check(t, err)
		if list := names(t, root); len(list) != test.want {
			t.Errorf("at age %v the folder holds %q", test.age, list)
		}
	}
	wantLatest(t, root, snapshot(50, 2))
}

// TestFolderSweptBeforeLock lets other writers sweep a draft just before it is locked, nine times:
// ranks that leave together save at the same moment, and each sweeps.
func TestFolderSweptBeforeLock(t *testing.T) {
	root := saved(t)
	store, place := localStore(t, root)
	sweeps := 0
	place.lock = func(f *os.File) error {
		if sweeps++; sweeps > 9 {
			return lockFolder(f)
		}
		check(t, os.Remove(f.Name()))
		if sweeps%2 == 0 {
			return errLocked
		}
		return nil
	}
	_, err := store.Save(t.Context(), snapshot(60, 2))
	check(t, err)
	wantLatest(t, root, snapshot(60, 2))
	place.lock = func(f *os.File) error {
		os.Remove(f.Name())
		return errLocked
	}
	_, err = store.Save(t.Context(), snapshot(70, 2))
	wantError(t, err, "another writer removes the drafts of step-00000070")
}

// TestFolderIsAFile opens a path that is a file.
func TestFolderIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(path, nil, 0o666))
	store, _ := localStore(t, path)
	_, err := store.Save(t.Context(), snapshot(1, 0))
	wantError(t, err, path, "not a directory")
	_, err = store.Latest(t.Context())
	wantError(t, err, path, "not a directory")
}

// A Store remembers no step that it has removed.
func TestRemovedStepsAreForgotten(t *testing.T) {
	store, _ := localStore(t, t.TempDir())
	for step := range int64(9) {
		_, err := store.Save(t.Context(), snapshot(step, 0))
		check(t, err)
		check(t, store.Retain(t.Context(), 2))
	}
	var known []int64
	store.verified.manifests.Range(func(step, _ any) bool {
		known = append(known, step.(int64))
		return true
	})
	slices.Sort(known)
	if steps, err := store.Steps(t.Context()); err != nil || !slices.Equal(known, steps) {
		t.Errorf("the steps %v are remembered, of %v, %v", known, steps, err)
	}
}
