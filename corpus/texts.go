package corpus

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gocloud.dev/blob"

	"rondo/corpus/location"
)

// maxTexts bounds the files of a corpus.
const maxTexts = 1 << 20

// member is a file or an object of a corpus of texts.
type member interface {
	// identity changes when the content does. It is known without reading that.
	identity() string
	// describe returns the file with its digest.
	describe(ctx context.Context) (File, error)
	// read calls use with the content, once.
	read(ctx context.Context, use func(io.Reader) error) error
	String() string // its name, for people
}

// texts is a corpus of documents: files and objects in the order of the names given, and those of a
// folder or a pattern in the order of their own names.
type texts struct {
	members []member
	field   string // of JSON lines
	found   bool   // errors name the member
	buckets []*blob.Bucket
}

// openTexts finds the files that name lists, and opens none of them. name is one location, or
// several separated by commas.
func openTexts(
	ctx context.Context, name, field string,
	open func(context.Context, string) (*blob.Bucket, error),
) (*texts, error) {
	t := &texts{field: field}
	for _, place := range location.All(name) {
		t.found = t.found || place != name
		before := len(t.members)
		whole, split := location.Split(place)
		err := t.find(ctx, whole, open)
		if err == nil && split != "" {
			err = t.keepSplit(before, whole, split)
		}
		if err != nil {
			t.close()
			return nil, err
		}
	}
	return t, nil
}

// keepSplit removes the members from first on that are not in the split. All are below place.
func (t *texts) keepSplit(first int, place, split string) error {
	all := t.members[first:]
	above := location.Above(place)
	if real, err := filepath.EvalSymlinks(above); err == nil {
		if real, err = filepath.Abs(real); err == nil {
			above = real
		}
	}
	t.members = slices.Concat(t.members[:first], slices.DeleteFunc(slices.Clone(all),
		func(m member) bool {
			return !location.InSplit(strings.TrimPrefix(m.String(), above), split)
		}))
	if len(t.members) == first {
		return fmt.Errorf("corpus %s#%s: none of the %d files there has the word %s in its name",
			place, split, len(all), split)
	}
	return nil
}

// find adds the files and objects of one location.
func (t *texts) find(
	ctx context.Context, place string, open func(context.Context, string) (*blob.Bucket, error),
) error {
	before := len(t.members)
	local := place
	if where, err := url.Parse(place); err == nil && strings.Contains(place, "://") {
		switch {
		case where.Scheme != "file":
			return t.findObjects(ctx, place, open)
		case where.Host == "" || where.Host == "localhost":
			local = where.Path
		}
	}
	var err error
	if location.Above(local) != local {
		t.found, err = true, t.findMatches(local)
	} else if info, failed := os.Stat(local); failed == nil && info.IsDir() {
		t.found, err = true, t.findFiles(local)
	} else {
		return t.addSource(ctx, place, open)
	}
	if err == nil && len(t.members) == before {
		err = errors.New("no file is there: give a path, a blob URL or " + Opticks)
	}
	if err != nil {
		return fmt.Errorf("corpus %s: %w", place, err)
	}
	return nil
}

// addSource adds one file or object, or the text that is built in.
func (t *texts) addSource(
	ctx context.Context, place string, open func(context.Context, string) (*blob.Bucket, error),
) error {
	src, err := openSource(ctx, place, open)
	if err != nil {
		return err
	}
	switch s := src.(type) {
	case fileSource:
		s.close()
		return t.add(fileText{s.path, s.info})
	case *blobSource:
		t.buckets = append(t.buckets, s.bucket)
		return t.add(s)
	default:
		return t.add(builtinText{src})
	}
}

func (t *texts) add(m member) error {
	if len(t.members) == maxTexts {
		return fmt.Errorf("it has more than %d files: join some", maxTexts)
	}
	t.members = append(t.members, m)
	return nil
}

// findFiles adds all files below a folder, but not those whose name, or a folder's, begins with a
// dot.
func (t *texts) findFiles(folder string) error {
	folder, err := filepath.EvalSymlinks(folder) // WalkDir follows none
	if err != nil {
		return err
	}
	return filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != folder && strings.HasPrefix(entry.Name(), ".") {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return t.addFile(folder, name)
	})
}

// findMatches adds the files that a pattern matches.
func (t *texts) findMatches(pattern string) error {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("the pattern is malformed: %w", err)
	}
	if len(names) == 0 {
		names = []string{pattern} // perhaps a file with such a name
	}
	for _, name := range names {
		if err := t.addFile(location.Above(pattern), name); err != nil {
			return err
		}
	}
	return nil
}

// addFile adds a regular file. It passes over one below a name that begins with a dot, and refuses
// one that lies outside of the folder, behind a symbolic link or "..": whoever allows a folder
// allows nothing else.
func (t *texts) addFile(folder, name string) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	if folder, err = filepath.EvalSymlinks(folder); err != nil {
		return err
	}
	for _, p := range []*string{&real, &folder} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	inside, err := filepath.Rel(folder, real)
	if err != nil || !filepath.IsLocal(inside) {
		return fmt.Errorf("%s leads out of %s: name it by itself", name, folder)
	}
	if strings.Contains("/"+filepath.ToSlash(inside), "/.") {
		return nil
	}
	return t.add(fileText{real, info})
}

// findObjects adds an object, those below scheme://bucket/folder/, or those that a pattern matches.
func (t *texts) findObjects(
	ctx context.Context, place string, open func(context.Context, string) (*blob.Bucket, error),
) error {
	where, err := url.Parse(place)
	if err != nil {
		return fmt.Errorf("corpus: %w", err)
	}
	folder := location.Folder(where)
	single := folder == where.Path && (!strings.HasSuffix(folder, "/") || folder == "/")
	if single || where.Path == "" || open == nil {
		return t.addSource(ctx, place, open)
	}
	home := url.URL{Scheme: where.Scheme, Host: where.Host, RawQuery: where.RawQuery}
	bucket, err := open(ctx, home.String())
	if err != nil {
		return fmt.Errorf("corpus %s: %w", place, err)
	}
	t.buckets, t.found = append(t.buckets, bucket), true
	before := len(t.members)
	objects := bucket.List(&blob.ListOptions{Prefix: strings.TrimPrefix(folder, "/")})
	for err == nil {
		var object *blob.ListObject
		if object, err = nextObject(ctx, objects); err == nil {
			err = t.addObject(bucket, where, object)
		}
	}
	if errors.Is(err, io.EOF) && len(t.members) == before {
		err = errors.New("no object is there: check the bucket and the folder")
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("corpus %s: %w", place, err)
	}
	return nil
}

// addObject adds an object of a folder, or one that the pattern in the URL matches.
func (t *texts) addObject(bucket *blob.Bucket, where *url.URL, object *blob.ListObject) error {
	if strings.HasSuffix(object.Key, "/") { // what consoles make for an empty folder
		return nil
	}
	if folder := location.Folder(where); folder != where.Path {
		match, err := path.Match(strings.TrimPrefix(where.Path, "/"), object.Key)
		if err != nil {
			return fmt.Errorf("the pattern is malformed: %w", err)
		}
		if !match {
			return nil
		}
	}
	name := fmt.Sprintf("%s://%s/%s", where.Scheme, where.Host, object.Key)
	return t.add(&blobSource{bucket, name, object.Key, &blob.Attributes{Size: object.Size,
		ModTime: object.ModTime, ETag: fmt.Sprintf("%x", object.MD5)}})
}

// nextObject returns the next object of a listing; io.EOF: there is none.
func nextObject(ctx context.Context, objects *blob.ListIterator) (*blob.ListObject, error) {
	limited, cancel := context.WithTimeout(ctx, blobStall)
	defer cancel()
	object, err := objects.Next(limited)
	if err != nil && !errors.Is(err, io.EOF) {
		if ctx.Err() == nil && limited.Err() != nil {
			err = fmt.Errorf("the store has not answered for %v", blobStall)
		}
		err = &PassingError{err}
	}
	return object, err
}

// hasFields reports whether some of the texts are fields of JSON objects, or columns. A .zip may
// have such a file.
func (t *texts) hasFields() bool {
	return slices.ContainsFunc(t.members, func(m member) bool {
		name := strings.ToLower(m.String())
		return strings.Contains(name, ".jsonl") || strings.Contains(name, ".parquet") ||
			strings.HasSuffix(name, ".zip")
	})
}

// identity is that of all files in their order. A text by itself has its own.
func (t *texts) identity() string {
	if len(t.members) == 1 {
		return t.members[0].identity()
	}
	h := sha256.New()
	for _, m := range t.members {
		fmt.Fprintf(h, "%q\n", m.identity())
	}
	return fmt.Sprintf("%d files, sha256 %x", len(t.members), h.Sum(nil))
}

// passes calls each function in turn with the files' documents. Objects are read from storage once:
// if there are several passes, a scratch file keeps them. Of several objects each is copied while
// it is read: one that is read ahead waits for those before it, and storage waits for no reader.
func (t *texts) passes(ctx context.Context, scratch string, each []func(reading) error) error {
	members := slices.Clone(t.members)
	if len(each) == 1 && len(members) > 1 {
		for i, m := range members {
			if object, ok := m.(*blobSource); ok {
				members[i] = aheadObject{object, scratch}
			}
		}
	}
	if len(each) > 1 && len(t.buckets) > 0 {
		file, err := scratchFile(scratch)
		if err != nil {
			return err
		}
		defer file.Close()
		var size int64
		for i, m := range members {
			if object, ok := m.(*blobSource); ok {
				members[i] = &copiedObject{blobSource: object, in: file, offset: size}
				size += object.attrs.Size
			}
		}
	}
	var files reading
	for _, m := range members {
		files = append(files, func(document func(io.Reader) error) error {
			err := m.read(ctx, func(packed io.Reader) error {
				return readDocuments(m.String(), t.field, packed, document)
			})
			if err != nil && t.found {
				err = fmt.Errorf("%s: %w", m, err)
			}
			return err
		})
	}
	for _, pass := range each {
		if err := pass(files); err != nil {
			return err
		}
	}
	return nil
}

func (t *texts) close() {
	for _, b := range t.buckets {
		b.Close()
	}
}

// fileText is a local file that is opened when it is read.
type fileText struct {
	path string
	info fs.FileInfo
}

func (f fileText) String() string   { return f.path }
func (f fileText) identity() string { return fileSource{path: f.path, info: f.info}.identity() }

func (f fileText) read(ctx context.Context, use func(io.Reader) error) error {
	file, err := os.Open(f.path)
	if err != nil {
		return openError(f.path, err)
	}
	defer file.Close()
	src := fileSource{f.path, file, f.info}
	return src.passes(ctx, "", []func(io.Reader) error{use})
}

// builtinText is a text in the program.
type builtinText struct{ source }

func (builtinText) String() string { return Opticks }

func (b builtinText) read(ctx context.Context, use func(io.Reader) error) error {
	return b.passes(ctx, "", []func(io.Reader) error{use})
}

// aheadObject reads an object from a copy that lasts as long as the reading.
type aheadObject struct {
	*blobSource
	scratch string
}

func (a aheadObject) read(ctx context.Context, use func(io.Reader) error) error {
	return a.copied(ctx, a.scratch, []func(io.Reader) error{use})
}

// copiedObject reads an object from storage the first time, and its copy later.
type copiedObject struct {
	*blobSource
	in     *os.File // copies of objects, one after the other
	offset int64
	copied bool
}

func (c *copiedObject) read(ctx context.Context, use func(io.Reader) error) error {
	if !c.copied {
		err := c.blobSource.read(ctx, func(text io.Reader) error {
			to := io.NewOffsetWriter(c.in, c.offset)
			_, err := io.Copy(to, io.LimitReader(text, c.attrs.Size))
			return err
		})
		if err != nil {
			return err
		}
		c.copied = true
	}
	return use(io.NewSectionReader(c.in, c.offset, c.attrs.Size))
}
