package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// bucket is a place in an object store, where nothing can be renamed and every object appears
// whole. The manifest is the switch: it is written last and deleted first.
type bucket struct {
	b      objects
	prefix string   // of every key: empty, or ends in /
	base   *url.URL // what the user gave, with the prefix as its path
}

// objects is what of a *blob.Bucket is used.
type objects interface {
	List(*blob.ListOptions) *blob.ListIterator
	NewReader(ctx context.Context, key string, opts *blob.ReaderOptions) (*blob.Reader, error)
	NewWriter(ctx context.Context, key string, opts *blob.WriterOptions) (*blob.Writer, error)
	WriteAll(ctx context.Context, key string, p []byte, opts *blob.WriterOptions) error
	Attributes(ctx context.Context, key string) (*blob.Attributes, error)
	Delete(ctx context.Context, key string) error
	Close() error
}

// attemptPrefix begins the sub-folder of a step that is saved again.
const attemptPrefix = "attempt-"

func (b *bucket) at(folder string) string { return b.base.JoinPath(folder).String() }
func (b *bucket) close() error            { return b.b.Close() }

// notExist makes a missing object fs.ErrNotExist, as a missing file is.
func notExist(err error) error {
	if err != nil && gcerrors.Code(err) == gcerrors.NotFound {
		return fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return err
}

// key returns the key of a file, or of a folder within the place.
func (b *bucket) key(elements ...string) string { return b.prefix + path.Join(elements...) }

// keys calls visit for every object whose key begins with prefix.
func (b *bucket) keys(ctx context.Context, prefix string, visit func(key string) error) error {
	objects := b.b.List(&blob.ListOptions{Prefix: prefix})
	for {
		o, err := objects.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(o.Key); err != nil {
			return err
		}
	}
}

func (b *bucket) list(ctx context.Context) (complete, partial []string, err error) {
	done := make(map[string]bool) // by folder: does it have a manifest
	err = b.keys(ctx, b.prefix+stepPrefix, func(key string) error {
		name, file, _ := strings.Cut(strings.TrimPrefix(key, b.prefix), "/")
		if _, ok := parseStepFolder(name); ok {
			done[name] = done[name] || file == manifestName
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for name, isComplete := range done {
		if isComplete {
			complete = append(complete, name)
		} else {
			partial = append(partial, name)
		}
	}
	return complete, partial, nil
}

func (b *bucket) open(ctx context.Context, folder, file string) (io.ReadCloser, int64, error) {
	r, err := b.b.NewReader(ctx, b.key(folder, file), nil)
	if err != nil {
		return nil, 0, notExist(err)
	}
	return r, r.Size(), nil
}

func (b *bucket) size(ctx context.Context, folder, file string) (int64, error) {
	a, err := b.b.Attributes(ctx, b.key(folder, file))
	if err != nil {
		return 0, notExist(err)
	}
	return a.Size, nil
}

func (b *bucket) remove(ctx context.Context, folder string) error {
	err := notExist(b.b.Delete(ctx, b.key(folder, manifestName)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.deleteAll(ctx, b.key(folder)+"/", func(string) bool { return false })
}

// deleteAll deletes the objects that begin with prefix, but for those to keep. One that is gone
// already is no error.
func (b *bucket) deleteAll(ctx context.Context, prefix string, keep func(key string) bool) error {
	return b.keys(ctx, prefix, func(key string) error {
		if keep(key) {
			return nil
		}
		if err := notExist(b.b.Delete(ctx, key)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// bucketDraft is a checkpoint whose manifest is not written yet.
type bucketDraft struct {
	*bucket
	folder  string
	attempt string   // where its files go within the folder; empty if it is the first there
	written []string // of the objects begun
}

func (b *bucket) begin(ctx context.Context, folder string) (draft, error) {
	d := &bucketDraft{bucket: b, folder: folder}
	err := b.keys(ctx, b.key(folder)+"/", func(string) error {
		d.attempt = attemptPrefix + newMark()
		return io.EOF
	})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return d, nil
}

func (d *bucketDraft) create(ctx context.Context, file string) (io.WriteCloser, string, error) {
	name := path.Join(d.attempt, file)
	key := d.key(d.folder, name)
	w, err := d.b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return nil, "", err
	}
	d.written = append(d.written, key)
	return w, name, nil
}

func (d *bucketDraft) commit(ctx context.Context, manifest []byte) error {
	key := d.key(d.folder, manifestName)
	err := d.b.WriteAll(ctx, key, manifest, &blob.WriterOptions{ContentType: "application/json"})
	if err != nil {
		// The manifest may be there all the same, so the files must stay: files without a
		// manifest are nothing, a manifest without files would be a damaged checkpoint.
		return err
	}
	if d.attempt != "" {
		// The files of the old manifest. What cannot be deleted now goes with the folder.
		_ = d.deleteAll(ctx, d.key(d.folder)+"/", func(k string) bool {
			return k == key || strings.HasPrefix(k, d.key(d.folder, d.attempt)+"/")
		})
	}
	return nil
}

// abortTimeout bounds the cleaning up after a failure, whose own context may have ended.
const abortTimeout = 10 * time.Second

func (d *bucketDraft) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	for _, key := range d.written {
		_ = d.b.Delete(ctx, key)
	}
}
