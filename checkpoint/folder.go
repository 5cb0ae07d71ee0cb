package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// folder is a place on a local file system. A checkpoint is written to a hidden sibling folder (its
// draft), synced and renamed. The system calls are fields, so that tests can make them fail.
type folder struct {
	root string
	// sync makes a file or a folder durable.
	sync func(*os.File) error
	// exchange swaps two paths atomically. It returns errors.ErrUnsupported where the file system
	// cannot; the old folder is then moved aside before the rename.
	exchange func(a, b string) error
	// lock takes an exclusive lock on an open folder; the process's death releases it. So a draft
	// that can be locked has no living writer. It returns errLocked if another process holds the
	// lock, and errors.ErrUnsupported where there are no locks; then the folder's age decides.
	lock  func(*os.File) error
	now   func() time.Time
	fault faults

	held *os.File // the owner's file of this process, locked; nil: none
}

// errLocked says that a living writer holds the lock.
var errLocked = errors.New("locked by another writer")

// staleAfter is the age from which a draft counts as abandoned where locks are not supported.
const staleAfter = 24 * time.Hour

// replaceAttempts bounds the renames that are retried after a reader has restored the old folder.
const replaceAttempts = 3

// draftAttempts bounds the drafts that begin makes anew. Each other writer's begin can sweep one,
// between its creation and its lock; ranks that leave together all begin at once.
const draftAttempts = 100

func newFolder(root string, fault faults) *folder {
	return &folder{root, (*os.File).Sync, exchangePaths, lockFolder, time.Now, fault, nil}
}

func (f *folder) at(name string) string { return filepath.Join(f.root, name) }

// close frees the lock of the owner's file.
func (f *folder) close() error {
	if f.held == nil {
		return nil
	}
	held := f.held
	f.held = nil
	return held.Close()
}

func (f *folder) list(context.Context) (complete, partial []string, err error) {
	if err := f.restore(); err != nil {
		return nil, nil, err
	}
	entries, err := f.entries()
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if _, ok := parseStepFolder(e.Name()); !ok || !e.IsDir() {
			continue
		}
		if exists, err := f.has(filepath.Join(e.Name(), manifestName)); err != nil {
			return nil, nil, err
		} else if exists {
			complete = append(complete, e.Name())
		}
	}
	return complete, nil, nil
}

// entries lists the root; a missing root is empty.
func (f *folder) entries() ([]os.DirEntry, error) {
	entries, err := os.ReadDir(f.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// has reports whether name exists below the root.
func (f *folder) has(name string) (bool, error) {
	_, err := os.Lstat(f.at(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (f *folder) open(_ context.Context, name, file string) (io.ReadCloser, int64, error) {
	r, err := os.Open(filepath.Join(f.root, name, file))
	if err != nil {
		return nil, 0, err
	}
	info, err := r.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, r.Close())
	}
	return r, info.Size(), nil
}

func (f *folder) size(_ context.Context, name, file string) (int64, error) {
	info, err := os.Stat(filepath.Join(f.root, name, file))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// remove moves the folder aside, and looks whose it is. Only then does it rename it to a draft's
// name and delete it: after a crash the next begin deletes the rest. A reader may restore the
// folder that lies aside.
func (f *folder) remove(_ context.Context, name string, claim int64) error {
	for range replaceAttempts {
		aside, hidden := f.at(hiddenName(name, asideKind)), f.at(hiddenName(name, draftKind))
		err := os.Rename(f.at(name), aside)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if claimOf(aside) > claim {
			return f.restore()
		}
		err = os.Rename(aside, hidden)
		if err == nil {
			return os.RemoveAll(hidden)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// claimOf returns the claim under which a step's folder was written; 0 if its manifest is damaged.
func claimOf(path string) int64 {
	file, err := os.Open(filepath.Join(path, manifestName))
	if err != nil {
		return 0
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxManifestBytes))
	if err != nil {
		return 0
	}
	m, err := parseManifest(text)
	if err != nil {
		return 0
	}
	return m.Claim
}

// createClaim does not sync: a crash of the machine ends the process that claims.
func (f *folder) createClaim(ctx context.Context, name string, text []byte) error {
	if err := f.makeRoot(); err != nil {
		return err
	}
	file, err := os.OpenFile(f.at(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	// Whoever looks whether the owner lives may have the lock for a moment.
	if _, err = f.lockWithin(ctx, file); err == nil {
		_, err = file.Write(text)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(f.at(name)))
	}
	err = f.close()
	f.held = file
	return err
}

func (f *folder) listClaims(context.Context) (names []string, err error) {
	entries, err := f.entries()
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (f *folder) removeClaim(_ context.Context, name string) error {
	if err := os.Remove(f.at(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// A process that was killed frees its locks a moment after its death.
const (
	lockPatience = 2 * time.Second
	lockInterval = 20 * time.Millisecond
)

// claimHeld tries to lock the owner's file, for lockPatience.
func (f *folder) claimHeld(ctx context.Context, name string) (bool, error) {
	file, err := os.OpenFile(f.at(name), os.O_RDWR, 0) // NFS locks only what is open for writing
	if errors.Is(err, fs.ErrPermission) {
		file, err = os.Open(f.at(name))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	locked, err := f.lockWithin(ctx, file)
	return !locked, err
}

// lockWithin locks a file within lockPatience. It returns false if another process keeps the lock.
// Where there are no locks it returns true.
func (f *folder) lockWithin(ctx context.Context, file *os.File) (locked bool, err error) {
	patience := time.After(lockPatience)
	for {
		if err := f.lock(file); !errors.Is(err, errLocked) {
			return true, nil
		}
		select {
		case <-time.After(lockInterval):
		case <-patience:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// The kinds of hidden folders beside the step folders.
const (
	draftKind = "draft" // being written or being deleted
	asideKind = "aside" // the old folder, while the new one takes its name
)

// hiddenName returns a new name, for example .step-00000050.draft-0123456789abcdef.
func hiddenName(step, kind string) string { return "." + step + "." + kind + "-" + newMark() }

// parseHidden is the inverse of hiddenName.
func parseHidden(name string) (step, kind string, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 || parts[0] != "" {
		return "", "", false
	}
	kind, mark, _ := strings.Cut(parts[2], "-")
	_, isStep := parseStepFolder(parts[1])
	return parts[1], kind, isStep && isMark(mark) && (kind == draftKind || kind == asideKind)
}

// restore renames an old folder back if its writer died after moving it aside and before renaming
// the new one.
func (f *folder) restore() error {
	entries, err := f.entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		step, kind, ok := parseHidden(e.Name())
		if !ok || kind != asideKind {
			continue
		}
		if exists, err := f.has(step); err != nil {
			return err
		} else if exists {
			continue
		}
		err := os.Rename(f.at(e.Name()), f.at(step))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s was being replaced when its writer died, and %s holds it; "+
				"rename it back: %w", step, e.Name(), err)
		}
	}
	return nil
}

// sweep deletes the hidden folders of dead writers. It deletes only folders with names of this
// package that contain nothing but checkpoint files. Folders that it cannot delete stay until the
// next sweep.
func (f *folder) sweep() error {
	if err := f.restore(); err != nil {
		return err
	}
	entries, err := f.entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && f.isOurs(e.Name()) {
			f.discardDead(e.Name())
		}
	}
	return nil
}

// isOurs reports whether a folder has a hidden folder's name and contains only checkpoint files.
func (f *folder) isOurs(name string) bool {
	if _, _, ok := parseHidden(name); !ok {
		return false
	}
	entries, err := os.ReadDir(f.at(name))
	for _, e := range entries {
		if !e.Type().IsRegular() || !isFileName(e.Name()) && e.Name() != manifestName {
			return false
		}
	}
	return err == nil
}

// discardDead deletes a hidden folder of a dead writer. It keeps an old folder that is the only
// copy of its step, because the new one is not in place yet.
func (f *folder) discardDead(name string) {
	if step, kind, _ := parseHidden(name); kind == asideKind {
		if replaced, err := f.has(step); err != nil || !replaced {
			return
		}
	}
	dir, err := os.Open(f.at(name))
	if err != nil {
		return
	}
	defer dir.Close()
	err = f.lock(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		info, statErr := dir.Stat()
		if statErr == nil && f.now().Sub(info.ModTime()) > staleAfter {
			err = nil
		}
	}
	if err == nil {
		os.RemoveAll(f.at(name))
	}
}

// makeRoot creates the root and syncs the parent of each folder that it made.
func (f *folder) makeRoot() error {
	var made []string
	for dir := filepath.Clean(f.root); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		made = append(made, dir)
	}
	if err := os.MkdirAll(f.root, 0o777); err != nil {
		return err
	}
	for _, dir := range made {
		if err := f.syncFolder(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// syncFolder makes a folder's entries durable.
func (f *folder) syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := f.sync(dir); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
