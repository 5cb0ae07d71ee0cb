package checkpoint

import (
	"context"
	"errors"
	"io"
	"testing"
)

// errCrash is the result of every operation from the crash on.
var errCrash = errors.New("the process has died")

// crashing is a place whose process dies before its n-th operation: that operation and all later
// ones fail, and nothing is cleaned up.
type crashing struct {
	place
	left int
}

func (c *crashing) step() error {
	if c.left == 0 {
		return errCrash
	}
	c.left--
	return nil
}

func (c *crashing) begin(ctx context.Context, folder string, claim int64) (draft, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	d, err := c.place.begin(ctx, folder, claim)
	return &crashingDraft{d, c}, err
}

type crashingDraft struct {
	draft
	c *crashing
}

func (d *crashingDraft) create(ctx context.Context, file string) (io.WriteCloser, string, error) {
	if err := d.c.step(); err != nil {
		return nil, "", err
	}
	w, path, err := d.draft.create(ctx, file)
	return &crashingFile{w, d.c}, path, err
}

func (d *crashingDraft) commit(ctx context.Context, manifest []byte) error {
	if err := d.c.step(); err != nil {
		d.abort()
		return err
	}
	return d.draft.commit(ctx, manifest)
}

// abort frees the locks and does nothing else, as the death of a process would.
func (d *crashingDraft) abort() {
	if local, ok := d.draft.(*folderDraft); ok {
		local.dir.Close()
	}
}

type crashingFile struct {
	io.WriteCloser
	c *crashing
}

func (f *crashingFile) Write(p []byte) (int, error) {
	if err := f.c.step(); err != nil {
		return 0, err
	}
	return f.WriteCloser.Write(p)
}

func (f *crashingFile) Close() error {
	if err := f.c.step(); err != nil {
		f.WriteCloser.Close() // a cancelled upload, or a file closed by the process's death
		return err
	}
	return f.WriteCloser.Close()
}

// testCrash interrupts a save before each of its operations. Afterwards either the old or the new
// checkpoint must be found, and the next save must delete all remains.
func testCrash(t *testing.T, s storage) {
	ctx := t.Context()
	for _, step := range []int64{50, 60} { // saved again, and new
		for n := 0; ; n++ {
			if n > 100 {
				t.Fatal("the save never ends")
			}
			_, err := s.store(t).Save(ctx, snapshot(50, 1))
			check(t, err)
			check(t, s.store(t).Remove(ctx, 60))
			dying := s.store(t)
			dying.place = &crashing{dying.place, n}
			_, err = dying.Save(ctx, snapshot(step, 2))
			survived := err == nil
			if !survived && !errors.Is(err, errCrash) {
				t.Fatalf("crash %d: %v", n, err)
			}
			want := snapshot(50, 1)
			if survived {
				want = snapshot(step, 2)
			}
			c, err := s.store(t).Latest(ctx)
			check(t, err)
			wantHolds(t, c, want)
			_, err = s.later(t).Save(ctx, snapshot(step, 3))
			check(t, err)
			c, err = s.store(t).Latest(ctx)
			check(t, err)
			wantHolds(t, c, snapshot(step, 3))
			steps := int(step-50)/10 + 1
			if keys := s.keys(t); len(keys) != 4*steps {
				t.Fatalf("crash %d left files: %q", n, keys)
			}
			if survived {
				if n < 12 {
					t.Errorf("a save has only %d operations", n)
				}
				break
			}
		}
	}
}
