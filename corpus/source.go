package corpus

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // Opticks
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Opticks is the default corpus: Isaac Newton's "Opticks", fourth edition (1730). The text is in
// the public domain, and this copy is the Go distribution's.
const Opticks = "builtin:opticks"

//go:embed opticks.txt
var opticks string

// blobStall is the longest time without data before a transfer from blob storage is ended.
const blobStall = 60 * time.Second

// A PassingError says that a text could not be read for a passing reason. It may succeed later, or
// on another machine.
type PassingError struct{ Err error }

func (e *PassingError) Error() string { return e.Err.Error() }
func (e *PassingError) Unwrap() error { return e.Err }

// Extension returns the end of the name of a file or an object, such as ".csv", in small letters.
func Extension(source string) string {
	if where, err := url.Parse(source); err == nil && strings.Contains(source, "://") {
		source = where.Path
	}
	return strings.ToLower(path.Ext(source))
}

// A FormatError says that the name of a file or an object has another end than those that are read.
type FormatError struct {
	Source string
	Reads  []string // Extensions; .zip is read too, with one file of these
	By     string   // what reads them, such as "--task tag"
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s reads %s, or a .zip with one such file, and %s is none of these: give "+
		"such a file, and name it by its format", cmp.Or(e.By, "the task"),
		strings.Join(e.Reads, ", "), e.Source)
}

// source is a text that can be read repeatedly from its start.
type source interface {
	// identity changes when the text does.
	identity() string
	// passes calls each function in turn with the text from its start. scratch is a folder for
	// temporary files.
	passes(ctx context.Context, scratch string, each []func(io.Reader) error) error
	close()
}

// openSource opens the text that name describes, and checks that it exists.
func openSource(
	ctx context.Context, name string, open func(context.Context, string) (*blob.Bucket, error),
) (source, error) {
	if builtin, ok := strings.CutPrefix(name, "builtin:"); ok {
		if name != Opticks {
			return nil, fmt.Errorf("corpus %s: %q is not built in; %s is", name, builtin, Opticks)
		}
		return builtinSource{opticks}, nil
	}
	if !strings.Contains(name, "://") {
		return openFile(name)
	}
	where, err := url.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	if where.Scheme == "file" {
		if where.Host != "" && where.Host != "localhost" {
			return nil, fmt.Errorf("corpus %s: a file URL has no host: write file:///%s%s",
				name, where.Host, where.Path)
		}
		return openFile(where.Path)
	}
	if open == nil {
		return nil, fmt.Errorf("corpus %s: %s:// is not supported here: give a path or %s",
			name, where.Scheme, Opticks)
	}
	return openBlob(ctx, where, open)
}

type builtinSource struct{ text string }

func (b builtinSource) identity() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(b.text))) }

func (b builtinSource) passes(_ context.Context, _ string, each []func(io.Reader) error) error {
	for _, pass := range each {
		if err := pass(strings.NewReader(b.text)); err != nil {
			return err
		}
	}
	return nil
}

func (builtinSource) close() {}

// fileSource is a local file. All passes read the same open file.
type fileSource struct {
	path string
	file *os.File
	info fs.FileInfo
}

func openFile(name string) (source, error) {
	if name == "" {
		return nil, fmt.Errorf("no --corpus is given: give a path, a blob URL or %s", Opticks)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, fmt.Errorf("corpus %s: %w", name, err)
	}
	// Opening a named pipe without a writer would block.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("corpus %s is not a regular file: give one text file", name)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, openError(name, err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("corpus: %w", err)
	}
	return fileSource{path, file, info}, nil
}

// openError adds what to do about a file that cannot be opened.
// missingError says that a file does not exist.
type missingError struct{ name string }

func (e *missingError) Error() string {
	return fmt.Sprintf("corpus %s does not exist: give a path, a blob URL or %s", e.name, Opticks)
}

func (*missingError) Unwrap() error { return fs.ErrNotExist }

func openError(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &missingError{name}
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("corpus %s may not be read by user %d: change its permissions",
			name, os.Getuid())
	}
	return fmt.Errorf("corpus %s: %w", name, err)
}

func (f fileSource) identity() string {
	return fmt.Sprintf("%s %d %d", f.path, f.info.Size(), f.info.ModTime().UnixNano())
}

func (f fileSource) passes(_ context.Context, _ string, each []func(io.Reader) error) error {
	if err := rereads(f.file, each); err != nil {
		return err
	}
	now, err := f.file.Stat()
	if err != nil {
		return err
	}
	if now.Size() != f.info.Size() || !now.ModTime().Equal(f.info.ModTime()) {
		return &PassingError{errors.New("it changed while it was read: run again when it is " +
			"complete")}
	}
	return nil
}

func (f fileSource) close() { f.file.Close() }

func rereads(file *os.File, each []func(io.Reader) error) error {
	for _, pass := range each {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := pass(file); err != nil {
			return err
		}
	}
	return nil
}

// blobSource is an object in blob storage.
type blobSource struct {
	bucket *blob.Bucket
	name   string
	key    string
	attrs  *blob.Attributes
}

// openBlob splits scheme://bucket/key?options into the bucket's URL and the key.
func openBlob(
	ctx context.Context, where *url.URL, open func(context.Context, string) (*blob.Bucket, error),
) (source, error) {
	key := strings.TrimPrefix(where.Path, "/")
	name := where.String()
	if key == "" {
		return nil, fmt.Errorf("corpus %s names no object: write %s://bucket/key", name,
			where.Scheme)
	}
	home := url.URL{Scheme: where.Scheme, Host: where.Host, RawQuery: where.RawQuery}
	bucket, err := open(ctx, home.String())
	if err != nil {
		return nil, fmt.Errorf("corpus %s: %w", name, err)
	}
	limited, cancel := context.WithTimeout(ctx, blobStall)
	defer cancel()
	attrs, err := bucket.Attributes(limited, key)
	if err != nil {
		bucket.Close()
		switch gcerrors.Code(err) {
		case gcerrors.NotFound:
			return nil, fmt.Errorf("corpus %s does not exist: check the bucket and the key", name)
		case gcerrors.PermissionDenied:
			return nil, fmt.Errorf("corpus %s may not be read: check the credentials: %w", name,
				err)
		}
		if ctx.Err() == nil && limited.Err() != nil {
			err = fmt.Errorf("the store has not answered for %v", blobStall)
		}
		return nil, fmt.Errorf("corpus %s: %w", name, &PassingError{err})
	}
	return &blobSource{bucket, name, key, attrs}, nil
}

func (b *blobSource) String() string { return b.name }

func (b *blobSource) identity() string {
	return fmt.Sprintf("%s %q %d %d", b.name, b.attrs.ETag, b.attrs.Size,
		b.attrs.ModTime.UnixNano())
}

// passes reads the object from storage only once. Several passes read a scratch copy.
func (b *blobSource) passes(
	ctx context.Context, scratch string, each []func(io.Reader) error,
) error {
	if len(each) == 1 {
		return b.read(ctx, each[0])
	}
	return b.copied(ctx, scratch, each)
}

// copied is passes with a scratch copy, so that a pass that waits does not hold the transfer up.
func (b *blobSource) copied(
	ctx context.Context, scratch string, each []func(io.Reader) error,
) error {
	file, err := scratchFile(scratch)
	if err != nil {
		return err
	}
	defer file.Close()
	err = b.read(ctx, func(text io.Reader) error {
		_, err := io.Copy(file, text)
		return err
	})
	if err != nil {
		return err
	}
	return rereads(file, each)
}

// read opens the object and calls use with its content. It returns a PassingError if the object was
// replaced since it was found.
func (b *blobSource) read(ctx context.Context, use func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := &PassingError{fmt.Errorf("blob storage sent nothing for %v", blobStall)}
	watch := time.AfterFunc(blobStall, func() { cancel(stalled) })
	defer watch.Stop()
	text, err := b.bucket.NewReader(ctx, b.key, nil)
	if err != nil { // it existed before, so the error may pass
		err = &PassingError{err}
	} else {
		defer text.Close()
		if text.Size() != b.attrs.Size || !text.ModTime().Equal(b.attrs.ModTime) {
			return &PassingError{errors.New("it was replaced while it was read: run again")}
		}
		err = use(watchedReader{text, watch})
	}
	if errors.Is(context.Cause(ctx), stalled) {
		return stalled
	}
	return err
}

func (b *blobSource) close() { b.bucket.Close() }

// watchedReader resets the watchdog whenever a read brings data. It marks errors of storage as
// passing.
type watchedReader struct {
	io.Reader
	watch *time.Timer
}

func (w watchedReader) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.watch.Reset(blobStall)
	}
	if err != nil && err != io.EOF {
		err = &PassingError{err}
	}
	return n, err
}

// ReadSource calls read with the content of a file or a blob, named as for Open.
func ReadSource(
	ctx context.Context, name string, open func(context.Context, string) (*blob.Bucket, error),
	read func(io.Reader) error,
) error {
	s, err := openSource(ctx, name, open)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.passes(ctx, "", []func(io.Reader) error{read}); err != nil {
		return fmt.Errorf("corpus %s: %w", name, err)
	}
	return nil
}
