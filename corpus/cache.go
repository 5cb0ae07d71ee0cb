package corpus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"rondo/internal/flock"
)

const (
	maxCachedFiles   = 32 // in a cache folder; the least recently used are removed
	tokenFileSuffix  = ".tokens"
	partialSuffix    = ".partial"
	abandonedAfter   = 24 * time.Hour // since the last write to a partial file
	lockPollInterval = 50 * time.Millisecond
)

// cache is a folder of token files that all processes of a host share. Its files are complete: each
// was written under another name, synced and renamed.
type cache struct{ dir string }

// openCache creates the folder if it is missing. Empty means the user's cache folder.
func openCache(dir string) (cache, error) {
	shared := false // others may write to the folder that it is in
	if dir == "" {
		dir, shared = userCache()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cache{}, fmt.Errorf("token cache: %w: set XDG_CACHE_HOME to a folder that can be "+
			"written", err)
	}
	if shared {
		if err := checkPrivate(dir); err != nil {
			return cache{}, fmt.Errorf("token cache: %w: there is no HOME; set XDG_CACHE_HOME to "+
				"a folder of your own", err)
		}
	}
	return cache{dir}, nil
}

// userCache returns the user's cache folder. A user without a home folder gets one in the folder of
// temporary files, where others may have made it before.
func userCache() (dir string, shared bool) {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "rondo", "corpus"), false
	}
	return filepath.Join(os.TempDir(), "rondo-corpus-"+strconv.Itoa(os.Getuid())), true
}

// checkPrivate fails unless dir is a folder, not a link to one, that this user alone can change.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || info.Mode().Perm()&0o022 != 0 || !isOwn(info):
		return fmt.Errorf("%s is not a folder that this user alone can change", dir)
	}
	return nil
}

// tokens returns the token file of a key. If it is missing or damaged, tokens calls build, under a
// lock that one process of the host holds at a time.
func (c cache) tokens(
	ctx context.Context, key string, build func(dst io.WriteSeeker) error,
) (*TokenFile, error) {
	path := filepath.Join(c.dir, key+tokenFileSuffix)
	file, err := c.find(ctx, path)
	if file != nil || err != nil {
		return file, err
	}
	unlock, err := c.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	file, err = c.find(ctx, path) // another process may have built it
	if file != nil || err != nil {
		return file, err
	}
	if err := c.write(path, build); err != nil {
		return nil, err
	}
	c.evict(path)
	return openTokenFile(ctx, path)
}

// find opens a token file. It returns nil without an error if the file must be built.
func (c cache) find(ctx context.Context, path string) (*TokenFile, error) {
	file, err := openTokenFile(ctx, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("token cache: %w", err)
	}
	c.use(path)
	return file, nil
}

// use notes that a file is used.
func (c cache) use(path string) {
	now := time.Now()
	// The time of use matters only for eviction, so a read-only cache works too.
	_ = os.Chtimes(path, now, now)
}

// write builds a file under a temporary name, syncs it and renames it.
func (c cache) write(path string, build func(dst io.WriteSeeker) error) (err error) {
	partial := strings.TrimSuffix(path, filepath.Ext(path)) + partialSuffix
	file, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("token cache: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(partial)
		}
	}()
	if err := build(file); err != nil {
		file.Close()
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("token cache: %w", err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("token cache: %w", err)
	}
	return c.syncFolder()
}

func (c cache) syncFolder() error {
	folder, err := os.Open(c.dir)
	if err != nil {
		return fmt.Errorf("token cache: %w", err)
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return fmt.Errorf("token cache: %w", err)
	}
	return nil
}

// lock waits until this process alone may build files whose keys have the same first digit, or
// until ctx ends. The kernel releases a dead process's lock. There are sixteen lock files, so they
// never need to be removed.
func (c cache) lock(ctx context.Context, key string) (unlock func(), err error) {
	path := filepath.Join(c.dir, "lock-"+key[:1])
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("token cache: %w", err)
	}
	poll := time.NewTicker(lockPollInterval)
	defer poll.Stop()
	for {
		err := flock.Try(file)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, flock.ErrHeld) {
			file.Close()
			return nil, fmt.Errorf("token cache: lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("token cache: another process holds %s: %w", path, ctx.Err())
		case <-poll.C:
		}
	}
}

// evict removes the least recently used token files, and lists of files, beyond maxCachedFiles, and
// old partial files of killed processes. A process that has a removed file open can still read it.
// Errors are ignored: the next build tries again.
func (c cache) evict(keep string) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	files := map[string][]fs.FileInfo{} // by suffix
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			continue
		}
		path := filepath.Join(c.dir, entry.Name())
		switch suffix := filepath.Ext(entry.Name()); suffix {
		case partialSuffix:
			if time.Since(info.ModTime()) > abandonedAfter {
				os.Remove(path)
			}
		case tokenFileSuffix, filesSuffix:
			if path != keep {
				files[suffix] = append(files[suffix], info)
			}
		}
	}
	for _, files := range files {
		slices.SortFunc(files, func(a, b fs.FileInfo) int {
			return b.ModTime().Compare(a.ModTime())
		})
		for i := maxCachedFiles - 1; i < len(files); i++ {
			os.Remove(filepath.Join(c.dir, files[i].Name()))
		}
	}
}
