package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// File is a file of a corpus, or an object.
type File struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// Digest is "sha256:" and the content's in hexadecimal. Of an object it is "object:" and that
	// of what its store says of it, so that it is not read for this.
	Digest string `json:"digest"`
}

// Files are the files of a corpus in their order.
type Files []File

// content identifies a corpus by its files' bytes and packing, not by their places.
func (f Files) content() string {
	h := sha256.New()
	for _, file := range f {
		fmt.Fprintf(h, "%s %s\n", file.Digest, packing(file.Name))
	}
	return fmt.Sprintf("%d files, sha256 %x", len(f), h.Sum(nil))
}

// packing is the end of a name, such as .jsonl.gz, by which a file is read; empty: plain text.
func packing(name string) string {
	name = strings.ToLower(name)
	outer := filepath.Ext(name)
	switch outer {
	case ".jsonl", ".parquet", ".zip":
		return outer
	case ".gz", ".zst":
		if strings.HasSuffix(strings.TrimSuffix(name, outer), ".jsonl") {
			return ".jsonl" + outer
		}
		return outer
	}
	return ""
}

// Changed says in a few words how another list of files differs from this one; empty: at most in
// the files' places.
func (f Files) Changed(other Files) string {
	i := 0
	for i < min(len(f), len(other)) && f[i].Digest == other[i].Digest &&
		packing(f[i].Name) == packing(other[i].Name) {
		i++
	}
	switch {
	case i == len(f) && i == len(other):
		return ""
	case i == len(f) || len(f) < len(other) && !sameName(f[i], other[i]):
		return fmt.Sprintf("there are %d files instead of %d: %s too", len(other), len(f),
			other[i].Name)
	case i == len(other) || len(f) > len(other) && !sameName(f[i], other[i]):
		return fmt.Sprintf("there are %d files instead of %d: not %s", len(other), len(f),
			f[i].Name)
	case !sameName(f[i], other[i]):
		return fmt.Sprintf("%s is in the place of %s", other[i].Name, f[i].Name)
	case f[i].Bytes != other[i].Bytes:
		return fmt.Sprintf("%s has %d bytes instead of %d", other[i].Name, other[i].Bytes,
			f[i].Bytes)
	}
	const shown = len("sha256:") + 12
	return fmt.Sprintf("%s has %d bytes, as now, but %.*s... instead of %.*s...", other[i].Name,
		f[i].Bytes, shown, other[i].Digest, shown, f[i].Digest)
}

func sameName(a, b File) bool { return filepath.Base(a.Name) == filepath.Base(b.Name) }

const filesSuffix = ".files"

// files returns a corpus's files. One process of a host reads them to know their digests. The cache
// keeps these, and no other process reads the files again while their sizes and times are the same.
func (t *texts) files(ctx context.Context, store cache) (Files, error) {
	sum := sha256.Sum256([]byte(t.identity()))
	key := hex.EncodeToString(sum[:])
	path := filepath.Join(store.dir, key+filesSuffix)
	if known := readFiles(path); len(known) == len(t.members) {
		store.use(path)
		return known, nil
	}
	unlock, err := store.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if known := readFiles(path); len(known) == len(t.members) {
		return known, nil
	}
	files := make(Files, len(t.members))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(processors())
	for i, m := range t.members {
		group.Go(func() (err error) {
			if files[i], err = m.describe(ctx); err != nil && t.found {
				return fmt.Errorf("%s: %w", m, err)
			}
			// A checkpoint, which names the files, has no other text.
			files[i].Name = strings.ToValidUTF8(files[i].Name, "\uFFFD")
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(files)
	if err != nil {
		return nil, fmt.Errorf("token cache: %w", err)
	}
	err = store.write(path, func(dst io.WriteSeeker) error {
		_, err := dst.Write(text)
		return err
	})
	store.evict(path)
	return files, err
}

// readFiles reads a stored list of files; nil: there is none, or it is damaged.
func readFiles(path string) (files Files) {
	text, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(text, &files) == nil {
		return files
	}
	return nil
}

func (f fileText) describe(ctx context.Context) (File, error) {
	h := sha256.New()
	err := f.read(ctx, func(r io.Reader) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{h}, untilDone{ctx, r}, make([]byte, blockBytes))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("digest: %w", err)
	}
	return File{f.path, f.info.Size(), fmt.Sprintf("sha256:%x", h.Sum(nil))}, err
}

func (b *blobSource) describe(context.Context) (File, error) {
	return File{b.name, b.attrs.Size,
		fmt.Sprintf("object:%x", sha256.Sum256([]byte(b.identity())))}, nil
}

func (b builtinText) describe(context.Context) (File, error) {
	return File{Opticks, int64(len(opticks)), "sha256:" + b.identity()}, nil
}

// untilDone ends a reading with its context.
type untilDone struct {
	ctx context.Context //nolint:containedctx // of one call
	io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, u.ctx.Err()
	}
	return u.Reader.Read(p)
}
