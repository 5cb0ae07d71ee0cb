package checkpoint

import (
	"context"
	"errors"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// dyingObjects simulates a process that dies before its n-th change to the bucket: that change and
// all later ones fail.
type dyingObjects struct {
	objects
	left int
}

func (d *dyingObjects) step() error {
	if d.left == 0 {
		return errCrash
	}
	d.left--
	return nil
}

func (d *dyingObjects) NewWriter(
	ctx context.Context, key string, opts *blob.WriterOptions,
) (*blob.Writer, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	return d.objects.NewWriter(ctx, key, opts)
}

func (d *dyingObjects) WriteAll(
	ctx context.Context, key string, p []byte, opts *blob.WriterOptions,
) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.objects.WriteAll(ctx, key, p, opts)
}

func (d *dyingObjects) Delete(ctx context.Context, key string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.objects.Delete(ctx, key)
}

// TestBucketCrash interrupts each operation before each of its changes to the bucket. All
// checkpoints listed afterwards must be sound, and repeating the operation must succeed.
func TestBucketCrash(t *testing.T) {
	ctx := t.Context()
	for name, operation := range map[string]func(*Store) error{
		"save":       func(s *Store) error { _, err := s.Save(ctx, snapshot(60, 2)); return err },
		"save again": func(s *Store) error { _, err := s.Save(ctx, snapshot(50, 2)); return err },
		"remove":     func(s *Store) error { return s.Remove(ctx, 50) },
		"retain":     func(s *Store) error { return s.Retain(ctx, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			changes := 0
			for ended := false; !ended; changes++ {
				s := bucketStorage(t, memblob.OpenBucket(nil))
				for _, step := range []int64{40, 50} {
					_, err := s.store(t).Save(ctx, snapshot(step, 1))
					check(t, err)
				}
				dying := s.store(t)
				place := dying.place.(*bucket)
				dead := &dyingObjects{place.b, changes}
				place.b = dead
				err := operation(dying)
				if err != nil && !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
				ended = err == nil && dead.left > 0
				wantAllSound(t, s)
				check(t, operation(s.later(t)))
				wantAllSound(t, s)
				steps, err := s.store(t).Steps(ctx)
				if keys := s.keys(t); err != nil || len(keys) != 4*len(steps) {
					t.Errorf("change %d, %v: files left: %q", changes, err, keys)
				}
			}
			if changes < 5 {
				t.Errorf("only %d changes", changes)
			}
		})
	}
}

// wantAllSound verifies every checkpoint there is; at least one must be.
func wantAllSound(t *testing.T, s storage) {
	t.Helper()
	store := s.store(t)
	steps, err := store.Steps(t.Context())
	if err != nil || len(steps) == 0 {
		t.Errorf("steps %v, %v", steps, err)
	}
	for _, step := range steps {
		check(t, store.Verify(t.Context(), step))
	}
}
