package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// folderDraft is a checkpoint under its temporary name. Its open folder holds the lock that marks
// its writer as alive.
type folderDraft struct {
	*folder
	name  string // name of the step's folder
	claim int64  // of the writer
	tmp   string // path of the draft
	dir   *os.File
}

func (f *folder) begin(_ context.Context, name string, claim int64) (draft, error) {
	if err := f.makeRoot(); err != nil {
		return nil, err
	}
	if err := f.sweep(); err != nil {
		return nil, err
	}
	// Another writer may sweep a draft before it is locked. Then begin makes a new one.
	for range draftAttempts {
		d := &folderDraft{folder: f, name: name, claim: claim,
			tmp: f.at(hiddenName(name, draftKind))}
		if err := f.fault.check(OpCreate, name, d.tmp); err != nil {
			return nil, err
		}
		if err := os.Mkdir(d.tmp, 0o777); err != nil {
			return nil, err
		}
		dir, err := os.Open(d.tmp)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, os.Remove(d.tmp))
		}
		d.dir = dir
		err = f.lock(dir)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, errLocked) {
			d.abort()
			return nil, fmt.Errorf("lock %s: %w", d.tmp, err)
		}
		if _, gone := os.Lstat(d.tmp); gone == nil && !errors.Is(err, errLocked) {
			return d, nil
		}
		dir.Close()
	}
	return nil, fmt.Errorf("another writer removes the drafts of %s: is a second job writing "+
		"to %s?", name, f.root)
}

func (d *folderDraft) create(_ context.Context, file string) (io.WriteCloser, string, error) {
	path := filepath.Join(d.tmp, file)
	if err := d.fault.check(OpCreate, d.name, path); err != nil {
		return nil, "", err
	}
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, "", err
	}
	return &draftFile{w, d}, file, nil
}

// draftFile is a file of a draft. Close makes it durable.
type draftFile struct {
	file  *os.File
	draft *folderDraft
}

func (f *draftFile) Write(b []byte) (int, error) {
	if err := f.draft.fault.check(OpWrite, f.draft.name, f.file.Name()); err != nil {
		return 0, err
	}
	return f.file.Write(b)
}

func (f *draftFile) Close() error {
	return errors.Join(f.draft.syncOpen(f.file), f.file.Close())
}

// syncOpen makes an open file or folder durable.
func (d *folderDraft) syncOpen(f *os.File) error {
	err := d.fault.check(OpSync, d.name, f.Name())
	if err == nil {
		err = d.sync(f)
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", f.Name(), err)
	}
	return nil
}

func (d *folderDraft) commit(ctx context.Context, manifest []byte) (err error) {
	defer func() {
		if err != nil {
			d.abort()
			return
		}
		err = d.dir.Close()
	}()
	w, _, err := d.create(ctx, manifestName)
	if err != nil {
		return err
	}
	if _, err := w.Write(manifest); err != nil {
		return errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := d.syncOpen(d.dir); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	old, err := d.replace()
	if err != nil {
		return err
	}
	if err := d.fault.check(OpSync, d.name, d.root); err != nil {
		return err
	}
	if err := d.syncFolder(d.root); err != nil {
		return err
	}
	if old != "" {
		os.RemoveAll(old) // a remainder is hidden, and the next sweep deletes it
	}
	return nil
}

// replace renames the draft to its final name. It returns the path of the folder that had that name
// before, or "" if there was none.
func (d *folderDraft) replace() (old string, err error) {
	final := d.at(d.name)
	if err := d.fault.check(OpRename, d.name, final); err != nil {
		return "", err
	}
	for range replaceAttempts {
		err = os.Rename(d.tmp, final)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		err = d.exchange(d.tmp, final)
		if err == nil && claimOf(d.tmp) > d.claim {
			return "", errors.Join(errLaterClaim, d.exchange(d.tmp, final))
		}
		if err == nil {
			return d.tmp, nil
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return "", err
		}
		old = d.at(hiddenName(d.name, asideKind))
		if err = os.Rename(final, old); err != nil {
			return "", err
		}
		if claimOf(old) > d.claim {
			return "", errors.Join(errLaterClaim, d.restore())
		}
		if err = os.Rename(d.tmp, final); err == nil {
			return old, nil
		}
		if back := d.restore(); back != nil {
			return "", errors.Join(err, back)
		}
	}
	return "", err
}

func (d *folderDraft) abort() {
	os.RemoveAll(d.tmp)
	d.dir.Close()
}
