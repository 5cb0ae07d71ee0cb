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
	maxCachedFiles   = 32 // token files in a cache folder; the least recently used go first
	tokenFileSuffix  = ".tokens"
	partialSuffix    = ".partial"
	abandonedAfter   = 24 * time.Hour // since the last write to a partial file
	lockPollInterval = 50 * time.Millisecond
)

// cache is a folder of token files, shared by all processes of a host. A file in it is complete:
// it was written under another name, synced and renamed.
type cache struct{ dir string }

// openCache makes the folder where it is missing; empty is the user's own.
func openCache(dir string) (cache, error) {
	if dir == "" {
		dir = userCache()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cache{}, fmt.Errorf("token cache: %w: set XDG_CACHE_HOME to a folder that can be "+
			"written", err)
	}
	return cache{dir}, nil
}

// userCache is the user's cache folder, or one of the temporary folder where there is no home.
func userCache() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "rondo", "corpus")
	}
	return filepath.Join(os.TempDir(), "rondo-corpus-"+strconv.Itoa(os.Getuid()))
}

// tokens returns the token file of a key. Where there is none, or a damaged one, it calls build
// under a lock that one process of the host holds at a time.
func (c cache) tokens(
	ctx context.Context, key string, build func(dst io.WriteSeeker) error,
) (*tokenFile, error) {
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
	file, err = c.find(ctx, path) // another process may have built it meanwhile
	if file != nil || err != nil {
		return file, err
	}
	if err := c.write(path, build); err != nil {
		return nil, err
	}
	c.evict(path)
	return openTokenFile(ctx, path)
}

// find opens a token file; nil without an error says that it must be built.
func (c cache) find(ctx context.Context, path string) (*tokenFile, error) {
	file, err := openTokenFile(ctx, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("token cache: %w", err)
	}
	now := time.Now()
	// The time of use only guides eviction, so a cache that cannot be written serves as well.
	_ = os.Chtimes(path, now, now)
	return file, nil
}

// write builds a file under a temporary name and puts it in place when it is safe on disk.
func (c cache) write(path string, build func(dst io.WriteSeeker) error) (err error) {
	partial := strings.TrimSuffix(path, tokenFileSuffix) + partialSuffix
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

// lock waits until this process alone builds files whose keys begin as this one does, or ctx
// ends. The kernel lets go of a dead process's lock. There are sixteen lock files, so that they
// need never be removed.
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

// evict removes the least recently used token files beyond maxCachedFiles, and what killed
// processes left. Who has such a file open keeps it. A file that cannot be removed is tried again
// after the next build.
func (c cache) evict(keep string) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	var files []fs.FileInfo
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			continue
		}
		path := filepath.Join(c.dir, entry.Name())
		switch filepath.Ext(entry.Name()) {
		case partialSuffix:
			if time.Since(info.ModTime()) > abandonedAfter {
				os.Remove(path)
			}
		case tokenFileSuffix:
			if path != keep {
				files = append(files, info)
			}
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for i := maxCachedFiles - 1; i < len(files); i++ {
		os.Remove(filepath.Join(c.dir, files[i].Name()))
	}
}
