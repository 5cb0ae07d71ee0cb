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

	place  place
	folder string
}

// DamageError is a checkpoint that is not what was saved: a file is missing, truncated or altered.
type DamageError struct {
	File    string // such as model.safetensors
	Path    string // the step's folder
	Problem string
}

func (e *DamageError) Error() string { return e.File + " in " + e.Path + " " + e.Problem }

// Load opens the checkpoint of a step. Its manifest is checked, and that every file is there in
// its full size; what the files hold is checked when they are read. A checkpoint that is saved
// again or removed meanwhile may look damaged.
func (s *Store) Load(ctx context.Context, step int64) (*Checkpoint, error) {
	c, err := s.load(ctx, stepFolder(step), step)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w of step %d in %s%s", ErrNone, step, s.place.at(""), s.have(ctx))
	}
	return c, err
}

// have lists the newest steps there are, for an error.
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

// anyStep is load's step for a folder whose name does not say it.
const anyStep = -1

// load opens the checkpoint in a folder; fs.ErrNotExist says that there is no manifest.
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

// damaged makes a DamageError of a file of the checkpoint.
func (c *Checkpoint) damaged(file, format string, args ...any) error {
	return &DamageError{file, c.Path, fmt.Errorf(format, args...).Error()}
}

// checkSize judges the result of asking for a file's size.
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

// Latest opens the newest checkpoint as Load does. When that one is damaged it says so, and does
// not take an older one: LatestValid does.
func (s *Store) Latest(ctx context.Context) (*Checkpoint, error) {
	steps, err := s.Steps(ctx)
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("%w in %s", ErrNone, s.place.at(""))
	}
	return s.Load(ctx, steps[len(steps)-1])
}

// Skipped is a damaged checkpoint that LatestValid passed over.
type Skipped struct {
	Step int64
	Err  *DamageError
}

// LatestValid reads all of the newest checkpoint, then of the one before, until one is sound, and
// says which it skipped and why. Only damage is skipped: a newer format, another job or storage
// that fails is an error.
func (s *Store) LatestValid(ctx context.Context) (*Checkpoint, []Skipped, error) {
	steps, err := s.Steps(ctx)
	if err != nil {
		return nil, nil, err
	}
	var skipped []Skipped
	for _, step := range slices.Backward(steps) {
		c, err := s.Load(ctx, step)
		if err == nil {
			err = c.Verify(ctx)
		}
		if err == nil {
			return c, skipped, nil
		}
		var damage *DamageError
		if !errors.As(err, &damage) {
			return nil, skipped, err
		}
		skipped = append(skipped, Skipped{step, damage})
	}
	if len(skipped) > 0 {
		return nil, skipped, fmt.Errorf("%w in %s is sound; the newest: %w", ErrNone,
			s.place.at(""), skipped[0].Err)
	}
	return nil, nil, fmt.Errorf("%w in %s", ErrNone, s.place.at(""))
}

// Verify reads everything in a step's checkpoint and holds it against the manifest.
func (s *Store) Verify(ctx context.Context, step int64) error {
	c, err := s.Load(ctx, step)
	if err != nil {
		return err
	}
	return c.Verify(ctx)
}

// Resolve opens a checkpoint by a location that is either a checkpoint folder, of which it takes
// the newest, or one step's folder, under whatever name. The caller closes the Store when done.
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
