package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"gocloud.dev/blob"
)

// Config says whose checkpoints a Store holds, and how it reaches them.
type Config struct {
	// Job and Identity say which run's checkpoints these are; both are needed to save. Identity
	// is a fingerprint of what must not change within a run. When it is set, a checkpoint of
	// another identity is refused; when it is empty, any is read.
	Job, Identity string
	// OpenBucket opens a blob URL, which has no path and no prefix any more: the Store puts them
	// before its keys. It closes the bucket. Nil allows local folders only.
	OpenBucket func(ctx context.Context, url string) (*blob.Bucket, error)
	// Now is the clock of the time of creation; nil is time.Now.
	Now func() time.Time
	// Fault, if set, is asked before each operation of a Save, and its error is the operation's: to
	// rehearse what a disk that is full or broken does. Path is the file's or the folder's.
	Fault func(op Op, step int64, path string) error
}

// Op is an operation of a Save on storage.
type Op string

// The operations. An object in a bucket is synced when its upload is completed, and a manifest
// there is renamed in place of the one before.
const (
	OpCreate Op = "create"
	OpWrite  Op = "write"
	OpSync   Op = "sync"
	OpRename Op = "rename"
)

// faults asks Config.Fault for one place; nil never fails.
type faults func(op Op, step int64, path string) error

// check returns the error of an operation on a file of a step's folder, as the system gives it.
func (f faults) check(op Op, folder, path string) error {
	if f == nil {
		return nil
	}
	step, ok := parseStepFolder(folder)
	if !ok {
		panic(fmt.Sprintf("checkpoint: %q is no step's folder", folder))
	}
	if err := f(op, step, path); err != nil {
		return &fs.PathError{Op: string(op), Path: path, Err: err}
	}
	return nil
}

// ErrNone is wrapped by the errors that say that a checkpoint is not there.
var ErrNone = errors.New("no checkpoint")

// File is a safetensors file to save. Its name ends in ".safetensors"; before that it has
// lower-case letters, digits, _ and -.
type File struct {
	Name    string
	Tensors []Tensor
}

// Snapshot is the state to save at a step.
type Snapshot struct {
	Step, Epoch int64
	Files       []File
	// Spec and Training are JSON values, or empty (see Manifest).
	Spec, Training json.RawMessage
	Vocabulary     []string
	Metrics        map[string]float64
}

// Store is a checkpoint folder: the checkpoints of one run. Its methods may be called at the same
// time, except that one step is saved or removed by one caller at a time.
type Store struct {
	place place
	cfg   Config
	// owned is set when the folder is known to belong to the job.
	owned atomic.Bool
}

// Open opens a checkpoint folder: a local path or a blob URL (s3://bucket/runs/a,
// gs://bucket?prefix=runs/a/, file:///path). A local folder need not exist; the first Save makes
// it.
func Open(ctx context.Context, location string, cfg Config) (*Store, error) {
	if (cfg.Job == "") != (cfg.Identity == "") {
		return nil, fmt.Errorf("checkpoint folder %s: job %q and identity %q: give both or none",
			location, cfg.Job, cfg.Identity)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p, err := openPlace(ctx, location, cfg.OpenBucket, cfg.Fault)
	if err != nil {
		return nil, err
	}
	return &Store{place: p, cfg: cfg}, nil
}

// Close closes the bucket.
func (s *Store) Close() error { return s.place.close() }

// Save writes a checkpoint and returns its path. When it fails, what the folder held before is
// untouched, the checkpoint of the same step included; only when the very last sync of a local
// folder fails may the new one be in its place. The tensors must not change meanwhile. When it
// succeeds, the checkpoint that the step's folder held before is gone.
//
// Two processes may save one step at the same time, as when a worker that was evicted does not
// know it yet: each writes files of its own, and the last manifest says which they are.
func (s *Store) Save(ctx context.Context, snap Snapshot) (path string, err error) {
	name := stepFolder(snap.Step)
	defer func() {
		if err != nil {
			err = fmt.Errorf("save checkpoint %s: %w%s", s.place.at(name), err, remedy(err))
		}
	}()
	m, err := s.manifest(snap)
	if err != nil {
		return "", err
	}
	if err := s.checkOwner(ctx); err != nil {
		return "", err
	}
	d, err := s.place.begin(ctx, name)
	if err != nil {
		return "", err
	}
	m.Files, err = writeFiles(ctx, d, snap.Files)
	if err != nil {
		d.abort()
		return "", err
	}
	b, err := m.encode()
	if err != nil {
		d.abort()
		return "", err
	}
	if err := d.commit(ctx, b); err != nil {
		return "", err
	}
	return s.place.at(name), nil
}

// SaveOnce is Save, unless the step has a checkpoint of this job already, every byte of it sound:
// then it does nothing and succeeds. A worker that takes over from one that died does not know
// whether that one had saved the last step; what it saved is the same step of the same job, though
// perhaps summed in another order.
func (s *Store) SaveOnce(ctx context.Context, snap Snapshot) (path string, err error) {
	if s.cfg.Job == "" {
		return s.Save(ctx, snap) // refuses
	}
	there, err := s.load(ctx, stepFolder(snap.Step), snap.Step)
	if err == nil {
		err = there.Verify(ctx)
	}
	var damage *DamageError
	switch {
	case err == nil:
		return there.Path, nil
	case errors.Is(err, fs.ErrNotExist) || errors.As(err, &damage):
		return s.Save(ctx, snap)
	}
	return "", fmt.Errorf("save checkpoint %s: %w", s.place.at(stepFolder(snap.Step)), err)
}

// remedy says what to do about an error of storage.
func remedy(err error) string {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, full) {
			return "; older checkpoints are untouched: free space there or choose another folder"
		}
	}
	if errors.Is(err, syscall.EIO) {
		return "; older checkpoints are untouched: check the disk or choose another folder"
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return "; make the folder writable or choose another"
	}
	return ""
}

// manifest makes a snapshot's manifest, without its files, and checks what it can before anything
// is written.
func (s *Store) manifest(snap Snapshot) (*Manifest, error) {
	if s.cfg.Job == "" {
		return nil, errors.New("the store was opened without a job: it can only read")
	}
	m := &Manifest{
		Format: FormatVersion, Job: s.cfg.Job, Identity: s.cfg.Identity,
		Step: snap.Step, Epoch: snap.Epoch, Created: s.cfg.Now().UTC(),
		Metrics: snap.Metrics, Vocabulary: snap.Vocabulary,
	}
	var err error
	if m.Spec, err = compact(snap.Spec); err != nil {
		return nil, fmt.Errorf("the spec is not JSON: %w", err)
	}
	if m.Training, err = compact(snap.Training); err != nil {
		return nil, fmt.Errorf("the training state is not JSON: %w", err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("the manifest %w", err)
	}
	if len(snap.Files) > maxFiles {
		return nil, fmt.Errorf("%d files are more than the limit of %d", len(snap.Files), maxFiles)
	}
	seen := make(map[string]bool)
	for _, f := range snap.Files {
		if !isFileName(f.Name) || seen[f.Name] {
			return nil, fmt.Errorf("%q cannot name a file, or comes twice", f.Name)
		}
		seen[f.Name] = true
		if err := checkTensors(f.Tensors); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return m, nil
}

// writeFiles writes the files of a draft. They are hashed at the same time, in a goroutine that
// goes its own pace through the same memory and ends before this returns.
func writeFiles(ctx context.Context, d draft, files []File) ([]FileEntry, error) {
	ctx, cancel := context.WithCancel(ctx)
	contents := make([]iter.Seq[[]byte], len(files))
	for i, f := range files {
		var err error
		if contents[i], err = encode(f.Tensors, nil); err != nil {
			cancel()
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	sums := make(chan string, len(files))
	go hashAll(ctx, contents, sums)
	defer func() {
		cancel()
		for range sums {
		}
	}()
	entries := make([]FileEntry, len(files))
	for i, f := range files {
		path, size, err := writeFile(ctx, d, f.Name, contents[i])
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", f.Name, err)
		}
		entries[i] = FileEntry{Name: f.Name, Size: size}
		if path != f.Name {
			entries[i].Path = path
		}
	}
	for i := range entries {
		sum, ok := <-sums
		if !ok {
			return nil, ctx.Err()
		}
		entries[i].SHA256 = sum
	}
	return entries, nil
}

// hashAll sends the SHA-256 of each content in hexadecimal, and closes sums at the end or when ctx
// ends.
func hashAll(ctx context.Context, contents []iter.Seq[[]byte], sums chan<- string) {
	defer close(sums)
	for _, content := range contents {
		h := sha256.New()
		for piece := range content {
			if ctx.Err() != nil {
				return
			}
			h.Write(piece)
		}
		sums <- hex.EncodeToString(h.Sum(nil))
	}
}

// writeFile writes one file of a draft, and returns its path and its size in bytes.
func writeFile(
	ctx context.Context, d draft, name string, content iter.Seq[[]byte],
) (path string, size int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, path, err := d.create(ctx, name)
	if err != nil {
		return "", 0, err
	}
	for piece := range content {
		if err = ctx.Err(); err == nil {
			_, err = w.Write(piece)
		}
		if err != nil {
			cancel() // so that Close gives the file up
			w.Close()
			return "", 0, err
		}
		size += int64(len(piece))
	}
	return path, size, w.Close()
}

// checkOwner refuses to write among another job's checkpoints. It asks once a Store; checkpoints
// that cannot be read do not say whose they are.
func (s *Store) checkOwner(ctx context.Context) error {
	if s.owned.Load() {
		return nil
	}
	steps, err := s.Steps(ctx)
	if err != nil {
		return err
	}
	for _, step := range slices.Backward(steps) {
		_, err := s.Load(ctx, step)
		var damage *DamageError
		if errors.As(err, &damage) || errors.Is(err, ErrNone) {
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	s.owned.Store(true)
	return nil
}

// Steps returns the steps that have a checkpoint, in rising order.
func (s *Store) Steps(ctx context.Context) ([]int64, error) {
	complete, _, err := s.list(ctx)
	return complete, err
}

// list returns the steps that have a checkpoint, and those of which a dead writer left files that
// are none, in rising order.
func (s *Store) list(ctx context.Context) (complete, partial []int64, err error) {
	names, rest, err := s.place.list(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list checkpoints in %s: %w", s.place.at(""), err)
	}
	return stepsOf(names), stepsOf(rest), nil
}

// stepsOf sorts the steps of folders.
func stepsOf(folders []string) []int64 {
	steps := make([]int64, 0, len(folders))
	for _, name := range folders {
		if step, ok := parseStepFolder(name); ok {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps
}
