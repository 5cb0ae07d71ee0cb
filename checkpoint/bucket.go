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

// bucket is a place in an object store. Objects cannot be renamed, and each appears whole. The
// manifest makes a checkpoint complete, so it is written last and deleted first.
type bucket struct {
	b           objects
	prefix      string   // of every key; empty, or ends in /
	base        *url.URL // the user's URL, with the prefix as its path
	fault       faults
	now         func() time.Time
	answerLimit time.Duration // limit for each answer of the store
}

// objects is the part of *blob.Bucket that bucket uses.
type objects interface {
	List(*blob.ListOptions) *blob.ListIterator
	NewReader(ctx context.Context, key string, opts *blob.ReaderOptions) (*blob.Reader, error)
	NewWriter(ctx context.Context, key string, opts *blob.WriterOptions) (*blob.Writer, error)
	WriteAll(ctx context.Context, key string, p []byte, opts *blob.WriterOptions) error
	Attributes(ctx context.Context, key string) (*blob.Attributes, error)
	Delete(ctx context.Context, key string) error
	Close() error
}

func (b *bucket) at(folder string) string { return b.base.JoinPath(folder).String() }
func (b *bucket) close() error            { return b.b.Close() }

// notExist turns the store's "not found" into fs.ErrNotExist, as a local folder reports it.
func notExist(err error) error {
	if err != nil && gcerrors.Code(err) == gcerrors.NotFound {
		return fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return err
}

// key returns the object key of a file or folder of this place.
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
	done := make(map[string]bool) // folder name to whether it has a manifest
	err = b.keys(ctx, b.prefix+stepPrefix, func(key string) error {
		name, file, _ := strings.Cut(strings.TrimPrefix(key, b.prefix), "/")
		if _, ok := parseStepFolder(name); ok {
			_, isManifest := manifestClaim(file)
			done[name] = done[name] || isManifest
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

// manifest returns the file name of the folder's newest manifest.
func (b *bucket) manifest(ctx context.Context, folder string) (name string, err error) {
	newest := int64(0)
	err = b.keys(ctx, b.key(folder, manifestStem), func(key string) error {
		file := path.Base(key)
		if claim, ok := manifestClaim(file); ok && claim > newest {
			name, newest = file, claim
		}
		return nil
	})
	if err == nil && newest == 0 {
		err = fs.ErrNotExist
	}
	return name, err
}

func (b *bucket) open(
	ctx context.Context, folder, file string,
) (_ io.ReadCloser, _ int64, err error) {
	if file == manifestName {
		if file, err = b.manifest(ctx, folder); err != nil {
			return nil, 0, err
		}
	}
	r, err := b.openObject(ctx, b.key(folder, file))
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

// remove deletes the manifests first.
func (b *bucket) remove(ctx context.Context, folder string, claim int64) error {
	if err := b.deleteAll(ctx, b.key(folder)+"/", manifestStem, claim); err != nil {
		return err
	}
	return b.deleteAll(ctx, b.key(folder)+"/", "", claim)
}

// deleteAll deletes all objects of a step's folder whose name begins with stem, but those of later
// claims. An object that is already gone is no error.
func (b *bucket) deleteAll(ctx context.Context, folder, stem string, claim int64) error {
	return b.keys(ctx, folder+stem, func(key string) error {
		if writerClaim(strings.TrimPrefix(key, folder)) > max(claim, 1) {
			return nil
		}
		if err := b.erase(ctx, key); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func (b *bucket) createClaim(ctx context.Context, name string, text []byte) error {
	write := func(onlyNew bool) error {
		return b.ask(ctx, func(ctx context.Context) error {
			return b.b.WriteAll(ctx, b.key(name), text,
				&blob.WriterOptions{ContentType: "application/json", IfNotExist: onlyNew})
		})
	}
	err := write(true)
	var answer interface{ ErrorCode() string } // of S3 and stores like it
	switch {
	case err == nil:
	case gcerrors.Code(err) == gcerrors.FailedPrecondition:
		return fs.ErrExist
	case !errors.As(err, &answer):
	case answer.ErrorCode() == "ConditionalRequestConflict": // another claim is being written
		return fs.ErrExist
	case answer.ErrorCode() == "NotImplemented": // of two at the same moment the last one counts
		return write(false)
	}
	return err
}

func (b *bucket) listClaims(ctx context.Context) (names []string, err error) {
	err = b.keys(ctx, b.key(claimPrefix), func(key string) error {
		names = append(names, strings.TrimPrefix(key, b.prefix))
		return nil
	})
	return names, err
}

// claimHeld: a bucket does not know who lives.
func (b *bucket) claimHeld(context.Context, string) (bool, error) { return false, nil }

func (b *bucket) removeClaim(ctx context.Context, name string) error {
	if err := b.erase(ctx, b.key(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// bucketDraft is a checkpoint whose manifest is not written yet.
type bucketDraft struct {
	*bucket
	folder  string
	claim   int64    // of the writer
	attempt string   // sub-folder of this save's files
	written []string // keys of the objects begun
}

func (b *bucket) begin(_ context.Context, folder string, claim int64) (draft, error) {
	return &bucketDraft{bucket: b, folder: folder, claim: claim,
		attempt: newAttempt(claim)}, nil
}

func (d *bucketDraft) create(ctx context.Context, file string) (io.WriteCloser, string, error) {
	name := path.Join(d.attempt, file)
	key := d.key(d.folder, name)
	if err := d.fault.check(OpCreate, d.folder, key); err != nil {
		return nil, "", err
	}
	// Cancelling this context abandons the upload. Close alone would complete the object.
	ctx, cancel := context.WithCancel(ctx)
	w, err := d.b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		cancel()
		return nil, "", err
	}
	d.written = append(d.written, key)
	return &bucketFile{w, d, key, cancel}, name, nil
}

// bucketFile is an object of a draft. Close completes the upload.
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
		_ = f.object.Close() // reports the cancelled upload
		return err
	}
	return f.object.Close()
}

func (d *bucketDraft) commit(ctx context.Context, manifest []byte) error {
	key := d.key(d.folder, manifestOf(d.claim))
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
		// The manifest may have been written despite the error, so the files stay. Files without a
		// manifest are harmless; a manifest without files would be a damaged checkpoint.
		return err
	}
	d.tidy(ctx, replaced)
	return nil
}

// filesOf returns the keys that the folder's newest manifest lists, or nil if it cannot be read.
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

// tidy deletes the replaced manifest with its files, and files older than staleAfter, whose writers
// must be dead. Newer files may belong to another writer that is about to commit. Files of later
// claims stay. Files that cannot be deleted go when the folder is removed.
func (d *bucketDraft) tidy(ctx context.Context, replaced map[string]bool) {
	own := d.key(d.folder, d.attempt) + "/"
	objects := d.b.List(&blob.ListOptions{Prefix: d.key(d.folder) + "/"})
	for {
		o, err := d.next(ctx, objects)
		if err != nil {
			return
		}
		old := d.now().Sub(o.ModTime) > staleAfter
		file := strings.TrimPrefix(o.Key, d.key(d.folder)+"/")
		claim, isManifest := manifestClaim(file)
		if strings.HasPrefix(o.Key, own) || writerClaim(file) > max(d.claim, 1) ||
			isManifest && claim == max(d.claim, 1) {
			continue
		}
		if old || isManifest || replaced[o.Key] {
			_ = d.erase(ctx, o.Key)
		}
	}
}

// abortTimeout bounds the cleanup after a failed save, when the save's own context may have ended.
const abortTimeout = 10 * time.Second

func (d *bucketDraft) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	for _, key := range d.written {
		_ = d.b.Delete(ctx, key)
	}
}
