package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Retain keeps the newest keep checkpoints and the one with the lowest validation loss, and deletes
// the others. Only sound checkpoints count, so a damaged one never displaces a complete one; it is
// deleted when it is older than those kept. The files of a checkpoint that this Store has not saved
// are read once; after that, and of those that it has saved, only manifest and sizes are. Retain
// also deletes files that a dead writer left in a bucket, for steps before the newest checkpoint.
func (s *Store) Retain(ctx context.Context, keep int) error {
	return s.retain(ctx, keep, -1)
}

// retain is Retain, but it never deletes the step spared.
func (s *Store) retain(ctx context.Context, keep int, spared int64) error {
	if keep < 1 {
		return fmt.Errorf("keep %d checkpoints in %s: at least 1 must stay", keep, s.place.at(""))
	}
	if err := s.checkOwner(ctx); err != nil {
		return err
	}
	steps, partial, err := s.list(ctx)
	if err != nil {
		return err
	}
	var best *Checkpoint
	if len(steps) > keep {
		if best, _, err = s.Best(ctx); err != nil && !errors.Is(err, ErrNone) {
			return err
		}
	}
	complete := 0
	for _, step := range slices.Backward(steps) {
		if complete >= keep {
			err = nil
			if step != spared && (best == nil || step != best.Step) {
				err = s.Remove(ctx, step)
			}
		} else if err = s.verified.verify(ctx, s, step); err == nil {
			complete++
		} else if damage := (*DamageError)(nil); errors.As(err, &damage) {
			err = nil
		}
		if err != nil {
			return err
		}
	}
	// A partial folder of a later step may still have a writer.
	for _, step := range partial {
		if len(steps) > 0 && step < steps[len(steps)-1] {
			if err := s.Remove(ctx, step); err != nil {
				return err
			}
		}
	}
	return nil
}

// verified has the SHA-256 of each step's manifest whose files a Store has written or read. Removed
// steps are dropped.
type verified struct{ manifests sync.Map }

func (v *verified) add(m *Manifest) { v.manifests.Store(m.Step, m.SHA256) }

// verify is Store.Verify, but it reads files only once.
func (v *verified) verify(ctx context.Context, s *Store, step int64) error {
	c, err := s.Load(ctx, step)
	if err != nil {
		return err
	}
	if sum, known := v.manifests.Load(step); known && sum == c.SHA256 {
		return nil
	}
	if err = c.Verify(ctx); err == nil {
		v.add(&c.Manifest)
	}
	return err
}

// Remove deletes a step's folder. A missing folder is no error.
func (s *Store) Remove(ctx context.Context, step int64) error {
	if err := s.checkOwner(ctx); err != nil {
		return err
	}
	s.verified.manifests.Delete(step)
	if err := s.place.remove(ctx, stepFolder(step), s.claims.newest.Load()); err != nil {
		return fmt.Errorf("remove checkpoint %s: %w", s.place.at(stepFolder(step)), err)
	}
	return nil
}

// RemoveAfter deletes the checkpoints of all steps after step, newest first. A run that resumes
// from an earlier step, or starts anew (step -1), makes them obsolete.
func (s *Store) RemoveAfter(ctx context.Context, step int64) error {
	if err := s.checkOwner(ctx); err != nil {
		return err
	}
	steps, err := s.Steps(ctx)
	if err != nil {
		return err
	}
	for _, later := range slices.Backward(steps) {
		if later <= step {
			break
		}
		if err := s.Remove(ctx, later); err != nil {
			return err
		}
	}
	return nil
}
