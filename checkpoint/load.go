package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// Checkpoint is a complete checkpoint, open for reading.
type Checkpoint struct {
	Manifest
	// Path is its folder, as Resolve takes it.
	Path string
	// Skipped are the damaged checkpoints after it that a search for the newest passed over, the
	// newest first.
	Skipped []Skipped

	place  place
	folder string
}

// DamageError says that a checkpoint differs from what was saved: a file is missing, truncated or
// altered.
type DamageError struct {
	File    string // for example model.safetensors
	Path    string // the step's folder
	Problem string
}

func (e *DamageError) Error() string { return e.File + " in " + e.Path + " " + e.Problem }

// Load opens the checkpoint of a step. It checks the manifest, and that each file exists in its
// full size; the content of files is checked when it is read. A checkpoint that is saved again or
// removed during Load may look damaged.
func (s *Store) Load(ctx context.Context, step int64) (*Checkpoint, error) {
	c, err := s.load(ctx, stepFolder(step), step)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w of step %d in %s%s", ErrNone, step, s.place.at(""), s.have(ctx))
	}
	return c, err
}

// have lists the newest steps, for an error message.
func (s *Store) have(ctx context.Context) string {
	const most = 5
	steps, err := s.Steps(ctx)
	switch {
	case err != nil || len(steps) == 0:
		return ""
	case len(steps) > most:
		return fmt.Sprintf("; the newest are %d", steps[len(steps)-most:])
	}
	return fmt.Sprintf("; there are %d", steps)
}

// anyStep tells load to accept a checkpoint of any step.
const anyStep = -1

// load opens the checkpoint in a folder. If the folder has no manifest, the error is
// fs.ErrNotExist.
func (s *Store) load(ctx context.Context, folder string, step int64) (*Checkpoint, error) {
	c := &Checkpoint{Path: s.place.at(folder), place: s.place, folder: folder}
	m, err := c.readManifest(ctx)
	if err != nil {
		return nil, err
	}
	if step != anyStep && m.Step != step {
		return nil, c.damaged(manifestName, "is of step %d", m.Step)
	}
	if s.cfg.Identity != "" && m.Identity != s.cfg.Identity {
		return nil, fmt.Errorf("checkpoint %s belongs to job %q (identity %s), not to %q "+
			"(identity %s): choose another checkpoint folder", c.Path, m.Job, m.Identity,
			s.cfg.Job, s.cfg.Identity)
	}
	c.Manifest = *m
	for _, f := range m.Files {
		size, err := s.place.size(ctx, folder, f.path())
		if err := c.checkSize(f, size, err); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// readManifest reads the manifest in the checkpoint's folder.
func (c *Checkpoint) readManifest(ctx context.Context) (*Manifest, error) {
	r, size, err := c.place.open(ctx, c.folder, manifestName)
	if err != nil {
		return nil, fmt.Errorf("open %s in %s: %w", manifestName, c.Path, err)
	}
	defer r.Close()
	if size > maxManifestBytes {
		return nil, c.damaged(manifestName, "has %s bytes, more than the limit of %s",
			commas(size), commas(maxManifestBytes))
	}
	b, err := io.ReadAll(io.LimitReader(r, maxManifestBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", manifestName, c.Path, err)
	}
	m, err := parseManifest(b)
	var newer *newerFormatError
	if errors.As(err, &newer) {
		return nil, fmt.Errorf("%s in %s %w", manifestName, c.Path, err)
	}
	if err != nil {
		return nil, c.damaged(manifestName, "%w", err)
	}
	return m, nil
}

// damaged returns a DamageError about a file of the checkpoint.
func (c *Checkpoint) damaged(file, format string, args ...any) error {
	return &DamageError{file, c.Path, fmt.Errorf(format, args...).Error()}
}

// checkSize turns the size of a file, or the error of asking for it, into a DamageError or nil.
func (c *Checkpoint) checkSize(f FileEntry, size int64, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.damaged(f.Name, "is missing")
	case err != nil:
		return fmt.Errorf("open %s in %s: %w", f.Name, c.Path, err)
	case size < f.Size:
		return c.damaged(f.Name, "is truncated: %s bytes, the manifest says %s",
			commas(size), commas(f.Size))
	case size > f.Size:
		return c.damaged(f.Name, "was altered: %s bytes, the manifest says %s",
			commas(size), commas(f.Size))
	}
	return nil
}

// Skipped is a damaged checkpoint that a search for the newest passed over.
type Skipped struct {
	Step int64
	Err  *DamageError
}

// Latest opens the newest checkpoint whose manifest is sound and whose files have their full size.
// Checkpoint.Skipped names the damaged ones after it. A newer format, another job's checkpoint and
// failing storage are errors; they are not skipped.
func (s *Store) Latest(ctx context.Context) (*Checkpoint, error) { return s.latest(ctx, false) }

// LatestValid is Latest, but it also reads every byte of the checkpoint.
func (s *Store) LatestValid(ctx context.Context) (*Checkpoint, error) { return s.latest(ctx, true) }

// latest returns the newest sound checkpoint. If all are damaged, the error wraps the
// newest one's *DamageError.
func (s *Store) latest(ctx context.Context, whole bool) (*Checkpoint, error) {
	steps, err := s.Steps(ctx)
	if err != nil {
		return nil, err
	}
	var skipped []Skipped
	for _, step := range slices.Backward(steps) {
		c, err := s.Load(ctx, step)
		if err == nil && whole {
			err = c.Verify(ctx)
		}
		if err == nil {
			c.Skipped = skipped
			return c, nil
		}
		var damage *DamageError
		if !errors.As(err, &damage) {
			return nil, err
		}
		skipped = append(skipped, Skipped{step, damage})
	}
	if len(skipped) > 0 {
		return nil, fmt.Errorf("no checkpoint in %s is sound; the newest: %w", s.place.at(""),
			skipped[0].Err)
	}
	return nil, fmt.Errorf("%w in %s", ErrNone, s.place.at(""))
}

// Verify reads all files of a step's checkpoint and checks them against the manifest.
func (s *Store) Verify(ctx context.Context, step int64) error {
	c, err := s.Load(ctx, step)
	if err != nil {
		return err
	}
	return c.Verify(ctx)
}

// Resolve opens a checkpoint by location. The location is either a checkpoint folder, whose newest
// sound checkpoint is opened (see Latest), or one step's folder under any name. The caller closes
// the Store when done.
func Resolve(ctx context.Context, location string, cfg Config) (*Store, *Checkpoint, error) {
	s, err := Open(ctx, location, cfg)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.load(ctx, "", anyStep)
	if errors.Is(err, fs.ErrNotExist) {
		c, err = s.Latest(ctx)
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, c, nil
}
