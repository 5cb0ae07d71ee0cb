package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// testFaults makes each operation of a save fail in turn, as a full or broken disk would. The
// earlier checkpoint must stay, the failed one must not appear, the error must say where and why,
// and the next save must succeed.
func testFaults(t *testing.T, s storage) {
	ctx := t.Context()
	for _, cause := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		for _, step := range []int64{50, 60} { // saved again, and new
			seen := map[Op]int{}
			for n := 0; ; n++ {
				_, err := s.later(t).Save(ctx, snapshot(50, 1))
				check(t, err)
				check(t, s.store(t).Remove(ctx, 60))
				var failed Op
				var where string
				store, count := s.store(t), 0
				fault := func(op Op, of int64, path string) error {
					if of != step {
						t.Errorf("%s of step %d, not of %d", op, of, step)
					}
					if count++; count == n+1 {
						failed, where = op, path
						return cause
					}
					return nil
				}
				setFault(store, fault)
				_, err = store.Save(ctx, snapshot(step, 2))
				if failed == "" {
					check(t, err)
					break
				}
				seen[failed]++
				wantError(t, err, "save checkpoint ", string(failed)+" "+where, cause.Error(),
					"older checkpoints are untouched: ")
				if !errors.Is(err, cause) {
					t.Errorf("%v is not %v", err, cause)
				}
				wantAfterFault(t, s, step, failed == OpSync && where == s.location)
				_, err = store.Save(ctx, snapshot(step, 3)) // the same store, without the fault
				check(t, err)
				c, err := s.store(t).Load(ctx, step)
				check(t, err)
				wantHolds(t, c, snapshot(step, 3))
			}
			least := map[Op]int{OpCreate: 3, OpWrite: 4, OpSync: 3, OpRename: 1}
			for op, want := range least {
				if seen[op] < want {
					t.Errorf("%d operations %q of step %d failed; want %d", seen[op], op, step,
						want)
				}
			}
		}
	}
}

// setFault sets the faults of a store's place.
func setFault(store *Store, fault faults) {
	switch p := store.place.(type) {
	case *folder:
		p.fault = fault
	case *bucket:
		p.fault = fault
	}
}

// wantAfterFault checks the folder after a failed save. late means that only the last sync failed;
// then the new checkpoint may be there.
func wantAfterFault(t *testing.T, s storage, step int64, late bool) {
	t.Helper()
	store := s.store(t)
	steps, err := store.Steps(t.Context())
	check(t, err)
	want := []int64{50}
	if late && step != 50 {
		want = append(want, step)
	}
	if !slices.Equal(steps, want) {
		t.Errorf("steps %d; want %d", steps, want)
	}
	c, err := store.Load(t.Context(), 50)
	check(t, err)
	if late && step == 50 {
		wantHolds(t, c, snapshot(50, 2))
	} else {
		wantHolds(t, c, snapshot(50, 1))
	}
	for _, key := range s.keys(t) {
		if strings.Contains(key, "."+stepFolder(step)) {
			t.Errorf("a draft is left: %s", key)
		}
	}
}

// testTwoWriters lets two stores save different content for the same step, in interleavings drawn
// from a seed, while a third reads. The listed checkpoint must always be one of the two, whole.
func testTwoWriters(t *testing.T, s storage) {
	ctx := t.Context()
	for round := range 20 {
		check(t, s.store(t).Remove(ctx, 50))
		if round%2 == 1 { // with a checkpoint to replace
			_, err := s.store(t).Save(ctx, snapshot(50, 9))
			check(t, err)
		}
		turn := newTurns(uint64(round))
		var writers sync.WaitGroup
		for variant := range 2 {
			store := s.store(t)
			setFault(store, func(Op, int64, string) error { turn.wait(variant); return nil })
			writers.Go(func() {
				defer turn.leave(variant)
				if _, err := store.Save(ctx, snapshot(50, float32(variant+1))); err != nil {
					t.Errorf("round %d, writer %d: %v", round, variant, err)
				}
			})
		}
		writers.Wait()
		c, err := s.store(t).Load(ctx, 50)
		check(t, err)
		check(t, c.Verify(ctx))
		if loss := c.Metrics["loss"]; loss != 1 && loss != 2 {
			t.Errorf("round %d: the checkpoint is variant %v", round, loss)
		} else {
			wantHolds(t, c, snapshot(50, float32(loss)))
		}
	}
}

// turns lets two writers work one operation at a time, in an order drawn from a seed. A writer has
// its turn from the end of one wait to the next.
type turns struct {
	mu    sync.Mutex
	moved *sync.Cond
	seed  uint64
	next  int
	left  [2]bool
}

func newTurns(seed uint64) *turns {
	t := &turns{seed: seed*0x9e3779b97f4a7c15 + 1}
	t.moved = sync.NewCond(&t.mu)
	return t
}

func (t *turns) wait(who int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next == who {
		t.seed ^= t.seed << 13
		t.seed ^= t.seed >> 7
		t.seed ^= t.seed << 17
		t.next = int(t.seed >> 60 & 1)
		t.moved.Broadcast()
	}
	for t.next != who && !t.left[1-who] {
		t.moved.Wait()
	}
}

func (t *turns) leave(who int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left[who] = true
	t.moved.Broadcast()
}

// testSaveOnce: SaveOnce keeps a sound checkpoint and replaces a damaged one.
func testSaveOnce(t *testing.T, s storage) {
	ctx := t.Context()
	for _, variant := range []float32{1, 2} {
		where, err := s.store(t).SaveOnce(ctx, snapshot(50, variant))
		check(t, err)
		if where != s.at("/step-00000050") {
			t.Errorf("saved to %s", where)
		}
	}
	wantVariant := func(want float32) {
		t.Helper()
		c, err := s.store(t).Load(ctx, 50)
		check(t, err)
		wantHolds(t, c, snapshot(50, want))
	}
	wantVariant(1)
	s.damage(t, "step-00000050", "model.safetensors", func(b []byte) []byte {
		b[len(b)-1] ^= 1 // the size is unchanged, so only reading shows the damage
		return b
	})
	_, err := s.store(t).SaveOnce(ctx, snapshot(50, 3))
	check(t, err)
	wantVariant(3)
	_, err = s.storeOf(t, "other", "sha256:22").SaveOnce(ctx, snapshot(50, 4))
	wantError(t, err, "save checkpoint "+s.at("/step-00000050"), "belongs to job \"opticks\"")
	wantVariant(3)
}

// TestFaultIsConfigured passes a Fault to both kinds of place.
func TestFaultIsConfigured(t *testing.T) {
	for name, s := range map[string]storage{"folder": folderStorage(t), "bucket": memStorage(t)} {
		store, err := Open(t.Context(), s.at(""), Config{Job: "a", Identity: "b",
			OpenBucket: s.open, Fault: func(op Op, step int64, path string) error {
				return fmt.Errorf("no %s in step %d: %w", op, step, context.DeadlineExceeded)
			}})
		check(t, err)
		_, err = store.Save(t.Context(), snapshot(7, 1))
		wantError(t, err, "no create in step 7")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
