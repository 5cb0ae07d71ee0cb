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

// Config configures a Store.
type Config struct {
	// Job and Identity name the run; saving needs both. Identity is a fingerprint of everything
	// that must not change within a run. When it is set, checkpoints of another identity are
	// refused; when it is empty, all are read.
	Job, Identity string
	// OpenBucket opens a blob URL. The URL has no path and no prefix: the Store adds them to its
	// keys. The Store closes the bucket. Nil allows local folders only.
	OpenBucket func(ctx context.Context, url string) (*blob.Bucket, error)
	// Owner is the process that writes. With nil it claims nothing, and whoever claims the folder
	// goes before it.
	Owner *Owner
	// Now gives the creation time; nil means time.Now.
	Now func() time.Time
	// Fault, if set, is called before each operation of a Save. Its error becomes the operation's
	// error, to rehearse a full or broken disk. path is the operation's file or folder.
	Fault func(op Op, step int64, path string) error
}

// Op is a storage operation of a Save.
type Op string

// The operations. In a bucket, completing an upload counts as sync, and replacing the manifest
// counts as rename.
const (
	OpCreate Op = "create"
	OpWrite  Op = "write"
	OpSync   Op = "sync"
	OpRename Op = "rename"
)

// faults is Config.Fault; nil never fails.
type faults func(op Op, step int64, path string) error

// check returns the configured error for an operation, as an *fs.PathError as the system would.
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

// ErrNone is wrapped by errors about a missing checkpoint.
var ErrNone = errors.New("no checkpoint")

// File is a safetensors file to save. Name consists of lower-case letters, digits, _ and -, and
// ends in ".safetensors".
type File struct {
	Name    string
	Tensors []Tensor
}

// Snapshot is the state to save at a step.
type Snapshot struct {
	Step, Epoch int64
	Digest      uint64 // see Manifest
	Files       []File
	// Spec, Training and Tokenizer are JSON values, or empty (see Manifest).
	Spec, Training, Tokenizer json.RawMessage
	Vocabulary                []string
	Outputs                   []string
	Metrics                   map[string]float64
}

// Store is a folder with the checkpoints of one run. Its methods may be called concurrently, but a
// step must be saved or removed by one caller at a time.
type Store struct {
	place place
	cfg   Config
	// owned is set once the folder is known to belong to the job.
	owned  atomic.Bool
	claims claims
	// verified are the checkpoints that Retain need not read.
	verified verified
}

// Open opens a checkpoint folder: a local path or a blob URL (s3://bucket/runs/a,
// gs://bucket?prefix=runs/a/, file:///path). The first Save creates a missing local folder.
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
	s := &Store{place: p, cfg: cfg}
	s.claims.place, s.claims.owner, s.claims.now = p, cfg.Owner, cfg.Now
	s.claims.manifests = s.highestClaim
	return s, nil
}

// Close closes the bucket.
func (s *Store) Close() error { return s.place.close() }

// Save writes a checkpoint and returns its path. It replaces an earlier checkpoint of the same
// step. If it fails, the folder's checkpoints are unchanged, with one exception: when the last sync
// of a local folder fails, the new checkpoint may be in place. The tensors must not change during
// the call.
//
// Two processes may save one step at the same time, for example when an evicted worker does not
// know it yet. Each writes its own files, and the later claim wins. If another run has become the
// folder's owner, the error is an *OwnedError.
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
	if err := s.checkOwner(ctx); err != nil && !ofSameRun(err) {
		return "", err
	}
	m.Claim = s.claims.newest.Load()
	if s.cfg.Owner != nil {
		m.Run = s.cfg.Owner.Run
	}
	d, err := s.place.begin(ctx, name, m.Claim)
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
	if err := s.claims.mayAdd(ctx); err != nil {
		d.abort()
		return "", err
	}
	err = d.commit(ctx, b)
	if errors.Is(err, errLaterClaim) {
		err = s.claims.mayAdd(ctx) // the later owner's checkpoint serves as well
	}
	if err != nil {
		return "", err
	}
	s.verified.add(m)
	return s.place.at(name), nil
}

// SaveOnce is Save, but it does nothing if the run already has a sound checkpoint of the step. A
// worker that takes over from a dead one does not know whether the last step was saved. If it was,
// that checkpoint serves too: it may only differ in the order of the ranks' sums. Another run's
// checkpoint of the step does not serve, since that run may have had another rate, or other seeds.
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
	case err == nil && (s.cfg.Owner == nil || s.cfg.Owner.Run == there.Run):
		return there.Path, nil
	case err == nil:
		return s.Save(ctx, snap)
	case errors.Is(err, fs.ErrNotExist) || errors.As(err, &damage):
		return s.Save(ctx, snap)
	}
	return "", fmt.Errorf("save checkpoint %s: %w", s.place.at(stepFolder(snap.Step)), err)
}

// remedy suggests what to do about a storage error.
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

// manifest makes a snapshot's manifest without its files. It checks the snapshot before anything is
// written.
func (s *Store) manifest(snap Snapshot) (*Manifest, error) {
	if s.cfg.Job == "" {
		return nil, errors.New("the store was opened without a job: it can only read")
	}
	m := &Manifest{
		Format: FormatVersion, Job: s.cfg.Job, Identity: s.cfg.Identity,
		Step: snap.Step, Epoch: snap.Epoch, Digest: snap.Digest, Created: s.cfg.Now().UTC(),
		Metrics: snap.Metrics, Vocabulary: snap.Vocabulary,
		Outputs: snap.Outputs,
	}
	var err error
	if m.Spec, err = compact(snap.Spec); err != nil {
		return nil, fmt.Errorf("the spec is not JSON: %w", err)
	}
	if m.Training, err = compact(snap.Training); err != nil {
		return nil, fmt.Errorf("the training state is not JSON: %w", err)
	}
	if m.Tokenizer, err = compact(snap.Tokenizer); err != nil {
		return nil, fmt.Errorf("the tokenizer is not JSON: %w", err)
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

// writeFiles writes the files of a draft. A second goroutine hashes the same memory at the same
// time; it ends before writeFiles returns.
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

// hashAll sends the SHA-256 of each content in hexadecimal. It closes sums when it has finished or
// ctx has ended.
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

// writeFile writes one file of a draft. It returns the path and the size in bytes.
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
			cancel() // Close then abandons the file
			w.Close()
			return "", 0, err
		}
		size += int64(len(piece))
	}
	return path, size, w.Close()
}

// checkOwner returns an error if the folder holds another job's checkpoints, or if another process
// owns it. It looks for another job once per Store. Unreadable checkpoints are ignored, since they
// do not name their job.
func (s *Store) checkOwner(ctx context.Context) error {
	if s.owned.Load() {
		return s.claims.hold(ctx)
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
	return s.claims.hold(ctx)
}

// Steps returns the steps with a complete checkpoint, in ascending order.
func (s *Store) Steps(ctx context.Context) ([]int64, error) {
	complete, _, err := s.list(ctx)
	return complete, err
}

// list returns the steps with a complete checkpoint, and those with only files of dead writers, in
// ascending order.
func (s *Store) list(ctx context.Context) (complete, partial []int64, err error) {
	names, rest, err := s.place.list(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list checkpoints in %s: %w", s.place.at(""), err)
	}
	return stepsOf(names), stepsOf(rest), nil
}

// stepsOf returns the steps of the folders, sorted.
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
