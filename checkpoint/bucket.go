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
	b        objects
	prefix   string   // of every key: empty, or ends in /
	base     *url.URL // what the user gave, with the prefix as its path
	fault    faults
	now      func() time.Time
	patience time.Duration // with an answer
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

// attemptPrefix begins the sub-folder of a step that holds the files of one save. Each save has one
// of its own, so that two writers of a step never write to one key.
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
		o, err := b.next(ctx, objects)
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

func (b *bucket) next(ctx context.Context, objects *blob.ListIterator) (
	o *blob.ListObject, err error) {
	err = b.ask(ctx, func(ctx context.Context) (err error) {
		o, err = objects.Next(ctx)
		return err
	})
	return o, err
}

func (b *bucket) erase(ctx context.Context, key string) error {
	return b.ask(ctx, func(ctx context.Context) error { return notExist(b.b.Delete(ctx, key)) })
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
	r, err := b.await(ctx, b.key(folder, file))
	if err != nil {
		return nil, 0, notExist(err)
	}
	return r, r.Size(), nil
}

func (b *bucket) size(ctx context.Context, folder, file string) (int64, error) {
	var size int64
	err := b.ask(ctx, func(ctx context.Context) error {
		a, err := b.b.Attributes(ctx, b.key(folder, file))
		if err == nil {
			size = a.Size
		}
		return err
	})
	return size, notExist(err)
}

func (b *bucket) remove(ctx context.Context, folder string) error {
	err := b.erase(ctx, b.key(folder, manifestName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.deleteAll(ctx, b.key(folder)+"/")
}

// deleteAll deletes the objects that begin with prefix. One that is gone already is no error.
func (b *bucket) deleteAll(ctx context.Context, prefix string) error {
	return b.keys(ctx, prefix, func(key string) error {
		if err := b.erase(ctx, key); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// bucketDraft is a checkpoint whose manifest is not written yet.
type bucketDraft struct {
	*bucket
	folder  string
	attempt string   // where its files go within the folder
	written []string // of the objects begun
}

func (b *bucket) begin(_ context.Context, folder string) (draft, error) {
	return &bucketDraft{bucket: b, folder: folder, attempt: attemptPrefix + newMark()}, nil
}

func (d *bucketDraft) create(ctx context.Context, file string) (io.WriteCloser, string, error) {
	name := path.Join(d.attempt, file)
	key := d.key(d.folder, name)
	if err := d.fault.check(OpCreate, d.folder, key); err != nil {
		return nil, "", err
	}
	// The context of the upload: an error ends it before Close, which would complete the object.
	ctx, cancel := context.WithCancel(ctx)
	w, err := d.b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		cancel()
		return nil, "", err
	}
	d.written = append(d.written, key)
	return &bucketFile{w, d, key, cancel}, name, nil
}

// bucketFile is an object of a draft, which Close completes.
type bucketFile struct {
	object *blob.Writer
	draft  *bucketDraft
	key    string
	cancel context.CancelFunc
}

func (f *bucketFile) Write(b []byte) (int, error) {
	if err := f.draft.fault.check(OpWrite, f.draft.folder, f.key); err != nil {
		return 0, err
	}
	return f.object.Write(b)
}

func (f *bucketFile) Close() error {
	defer f.cancel()
	if err := f.draft.fault.check(OpSync, f.draft.folder, f.key); err != nil {
		f.cancel()
		_ = f.object.Close() // says that it was given up
		return err
	}
	return f.object.Close()
}

func (d *bucketDraft) commit(ctx context.Context, manifest []byte) error {
	key := d.key(d.folder, manifestName)
	replaced := d.filesOf(ctx)
	for _, op := range []Op{OpWrite, OpRename} {
		if err := d.fault.check(op, d.folder, key); err != nil {
			d.abort()
			return err
		}
	}
	err := d.ask(ctx, func(ctx context.Context) error {
		return d.b.WriteAll(ctx, key, manifest,
			&blob.WriterOptions{ContentType: "application/json"})
	})
	if err != nil {
		// The manifest may be there all the same, so the files must stay: files without a
		// manifest are nothing, a manifest without files would be a damaged checkpoint.
		return err
	}
	d.tidy(ctx, replaced)
	return nil
}

// filesOf returns the keys that the folder's manifest names, if there is one that can be read.
func (d *bucketDraft) filesOf(ctx context.Context) map[string]bool {
	c := &Checkpoint{Path: d.at(d.folder), place: d.bucket, folder: d.folder}
	m, err := c.readManifest(ctx)
	if err != nil {
		return nil
	}
	keys := make(map[string]bool, len(m.Files))
	for _, f := range m.Files {
		keys[d.key(d.folder, f.path())] = true
	}
	return keys
}

// tidy deletes the files of the manifest that was replaced, and what is so old that its writer must
// be dead. Other files may be those of a writer that is about to replace this one's manifest. What
// cannot be deleted now goes with the folder.
func (d *bucketDraft) tidy(ctx context.Context, replaced map[string]bool) {
	own := d.key(d.folder, d.attempt) + "/"
	objects := d.b.List(&blob.ListOptions{Prefix: d.key(d.folder) + "/"})
	for {
		o, err := d.next(ctx, objects)
		if err != nil {
			return
		}
		old := d.now().Sub(o.ModTime) > staleAfter
		if strings.HasPrefix(o.Key, own) || o.Key == d.key(d.folder, manifestName) {
			continue
		}
		if old || replaced[o.Key] {
			_ = d.erase(ctx, o.Key)
		}
	}
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
