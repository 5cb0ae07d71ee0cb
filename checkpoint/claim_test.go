package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gocloud.dev/blob"
)

// Submissions of two runs, a second apart.
const (
	firstRun  = int64(1_700_000_000_000_000_000)
	secondRun = firstRun + 1e9
)

// owned opens the storage for a process of a run.
func (s storage) owned(t *testing.T, run int64, process int) *Store {
	t.Helper()
	store := s.store(t)
	store.cfg.Owner = &Owner{Run: run, Host: "host-a", Process: process}
	store.claims.owner = store.cfg.Owner
	if _, ok := store.place.(*folder); ok {
		t.Cleanup(func() { check(t, store.Close()) })
	}
	return store
}

// wantOwned fails unless err says that the process owns the folder.
func wantOwned(t *testing.T, err error, process int, sameRun bool) {
	t.Helper()
	var owned *OwnedError
	if !errors.As(err, &owned) || owned.Owner.Process != process || owned.SameRun != sameRun {
		t.Errorf("error %v, want that of owner %d, same run %v", err, process, sameRun)
	}
}

// testClaim: one process at a time owns the folder, and the others are told its name.
func testClaim(t *testing.T, s storage) {
	ctx := t.Context()
	first := s.owned(t, firstRun, 11)
	check(t, first.Refused(ctx))
	_, err := first.Save(ctx, snapshot(10, 1))
	check(t, err)
	check(t, first.Claim(ctx)) // nothing to do

	// Another process of the run takes over, for example after rank 0 has died.
	next := s.owned(t, firstRun, 12)
	check(t, next.Claim(ctx))
	_, err = next.Save(ctx, snapshot(20, 2))
	check(t, err)
	for _, step := range []int64{20, 30} { // it may add to the run's checkpoints
		where, err := first.Save(ctx, snapshot(step, 1))
		check(t, err)
		if want := s.at("/" + stepFolder(step)); where != want {
			t.Errorf("saved to %s, not %s", where, want)
		}
	}
	for step, variant := range map[int64]float32{20: 2, 30: 1} {
		c, err := next.Load(ctx, step)
		check(t, err)
		wantHolds(t, c, snapshot(step, variant))
	}
	wantError(t, first.Retain(ctx, 1), s.at(""), `process 12 on host "host-a"`)
	wantOwned(t, first.Retain(ctx, 1), 12, true)
	wantOwned(t, first.Remove(ctx, 10), 12, true)
	check(t, first.Claim(ctx)) // it is the run's writer once more
	_, err = first.Save(ctx, snapshot(20, 1))
	check(t, err)
	if keys := s.keys(t); len(slices.DeleteFunc(keys, func(key string) bool {
		return !strings.HasPrefix(key, claimPrefix)
	})) > 1 {
		t.Errorf("old claims are left: %q", keys)
	}

	for _, store := range []*Store{first, next} {
		if local, ok := store.place.(*folder); ok { // their processes die
			check(t, local.close())
		}
	}
	later := s.owned(t, secondRun, 21)
	check(t, later.Refused(ctx))
	check(t, later.Claim(ctx))
	earlier := s.owned(t, firstRun, 13)
	wantOwned(t, earlier.Refused(ctx), 21, false)
	wantOwned(t, earlier.Claim(ctx), 21, false)
	_, err = earlier.Save(ctx, snapshot(30, 1))
	wantOwned(t, err, 21, false)
	wantError(t, err, "written by another run", "choose another folder, or stop that run first")
}

// testClaimLost: neither a copy without the owners' files, nor an empty one, makes a claim that was
// made before.
func testClaimLost(t *testing.T, s storage) {
	ctx := t.Context()
	for process := range 3 {
		check(t, s.owned(t, firstRun, process).Claim(ctx))
	}
	store := s.owned(t, firstRun, 3)
	_, err := store.Save(ctx, snapshot(10, 1))
	check(t, err)
	for _, key := range s.keys(t) {
		if strings.HasPrefix(key, claimPrefix) {
			s.remove(t, key)
		}
	}
	copied := s.owned(t, secondRun, 4)
	check(t, copied.Claim(ctx))
	if claim := copied.claims.newest.Load(); claim != 5 {
		t.Errorf("claim %d after a checkpoint of claim 4", claim)
	}
	s.write(t, claimName(6), nil)
	_, err = copied.Save(ctx, snapshot(20, 1))
	wantOwned(t, err, 0, false)
	fresh := s.owned(t, secondRun, 5)
	_, err = fresh.Save(ctx, snapshot(20, 2))
	check(t, err)
	c, err := fresh.Latest(ctx)
	check(t, err)
	wantHolds(t, c, snapshot(20, 2))
	if c.Claim != 7 {
		t.Errorf("claim %d after an empty owner's file of claim 6", c.Claim)
	}
}

// testSaveOnceOfTwoRuns: a checkpoint of another run with the same step is not this run's.
func testSaveOnceOfTwoRuns(t *testing.T, s storage) {
	ctx := t.Context()
	for _, c := range []struct {
		run           int64
		saved, wanted float32
	}{{firstRun, 1, 1}, {firstRun, 2, 1}, {secondRun, 3, 3}, {secondRun, 4, 3}} {
		store := s.owned(t, c.run, int(c.saved))
		_, err := store.SaveOnce(ctx, snapshot(10, c.saved))
		check(t, err)
		found, err := store.Load(ctx, 10)
		check(t, err)
		wantHolds(t, found, snapshot(10, c.wanted))
		if local, ok := store.place.(*folder); ok { // its process ends
			check(t, local.close())
		}
	}
}

// refusing is a store that answers conditional writes in its own way.
type refusing struct {
	objects
	code  string
	times int
}

func (r *refusing) WriteAll(
	ctx context.Context, key string, p []byte, opts *blob.WriterOptions,
) error {
	if opts.IfNotExist && r.times > 0 {
		r.times--
		return fmt.Errorf("writing %s: %w", key, refusal(r.code))
	}
	return r.objects.WriteAll(ctx, key, p, opts)
}

type refusal string

func (r refusal) Error() string     { return string(r) }
func (r refusal) ErrorCode() string { return string(r) }

// TestClaimWithoutConditions: a folder can be claimed in a store that knows no conditional writes,
// or says that another one is being made.
func TestClaimWithoutConditions(t *testing.T) {
	for _, c := range []struct {
		code  string
		times int
		sound bool
	}{{"NotImplemented", 100, true}, {"ConditionalRequestConflict", 1, true}, {"Odd", 1, false}} {
		s := memStorage(t)
		store := s.owned(t, firstRun, 1)
		place := store.place.(*bucket)
		place.b = &refusing{place.b, c.code, c.times}
		if err := store.Claim(t.Context()); (err == nil) != c.sound {
			t.Errorf("%s: %v", c.code, err)
		}
	}
}

// TestClaimHeld: a later run on the same machine is refused while the owner lives.
func TestClaimHeld(t *testing.T) {
	s := storage{location: filepath.Join(t.TempDir(), "run")}
	first, second := s.owned(t, firstRun, 11), s.owned(t, secondRun, 21)
	check(t, first.Claim(t.Context()))
	wantOwned(t, second.Refused(t.Context()), 11, false)
	released := make(chan error)
	go func() { released <- first.place.close() }() // as its death would, at any moment
	check(t, second.Claim(t.Context()))
	check(t, <-released)
}

// paused calls wait before each storage operation of a store.
func paused(store *Store, wait func()) {
	setFault(store, func(Op, int64, string) error { wait(); return nil })
	switch p := store.place.(type) {
	case *folder:
		exchange := p.exchange
		p.exchange = func(a, b string) error { wait(); return exchange(a, b) }
	case *bucket:
		p.b = &pausedObjects{p.b, wait}
	}
	store.place = &pausedPlace{store.place, wait}
	store.claims.place = store.place
}

type pausedPlace struct {
	place
	wait func()
}

func (p *pausedPlace) list(ctx context.Context) (complete, partial []string, err error) {
	p.wait()
	return p.place.list(ctx)
}

func (p *pausedPlace) remove(ctx context.Context, folder string, claim int64) error {
	p.wait()
	return p.place.remove(ctx, folder, claim)
}

func (p *pausedPlace) listClaims(ctx context.Context) ([]string, error) {
	p.wait()
	return p.place.listClaims(ctx)
}

func (p *pausedPlace) createClaim(ctx context.Context, name string, text []byte) error {
	p.wait()
	return p.place.createClaim(ctx, name, text)
}

// claimHeld: both processes live all the time, on machines of their own.
func (p *pausedPlace) claimHeld(context.Context, string) (bool, error) { return false, nil }

type pausedObjects struct {
	objects
	wait func()
}

func (o *pausedObjects) WriteAll(
	ctx context.Context, key string, p []byte, opts *blob.WriterOptions,
) error {
	o.wait()
	return o.objects.WriteAll(ctx, key, p, opts)
}

func (o *pausedObjects) Delete(ctx context.Context, key string) error {
	o.wait()
	return o.objects.Delete(ctx, key)
}

// testTwoRuns lets a run save and delete, and a later run go back to step 10 in the same folder and
// make its own steps 20 and 30. One of the two is paused before each of its storage operations in
// turn, and the other then does all of its work. What the later run has saved must stay.
func testTwoRuns(t *testing.T, s storage) {
	ctx := t.Context()
	save := func(store *Store, step int64, variant float32) error {
		_, err := store.Save(ctx, snapshot(step, variant))
		return err
	}
	works := []func(*Store){
		func(first *Store) {
			for _, err := range []error{
				first.Remove(ctx, 20), save(first, 20, 1), save(first, 30, 1),
				first.retain(ctx, 1, 30), first.RemoveAfter(ctx, 10),
			} {
				var owned *OwnedError
				if err != nil && !errors.As(err, &owned) && !errors.Is(err, errLaterClaim) {
					t.Errorf("first run: %v", err)
				}
			}
		},
		func(second *Store) {
			check(t, second.RemoveAfter(ctx, 10))
			check(t, save(second, 20, 2))
			check(t, save(second, 30, 2))
		},
	}
	for late := range works { // the one that is paused
		pauses := 0
		for done := false; !done; pauses++ {
			for _, key := range s.keys(t) {
				s.remove(t, key)
			}
			stores := []*Store{s.owned(t, firstRun, 11), s.owned(t, secondRun, 21)}
			for _, step := range []int64{10, 20} {
				check(t, save(stores[0], step, 1))
			}
			operations := 0
			paused(stores[late], func() {
				if operations++; operations == pauses+1 {
					works[1-late](stores[1-late])
				}
			})
			paused(stores[1-late], func() {})
			works[late](stores[late])
			if done = operations <= pauses; done {
				works[1-late](stores[1-late])
			}
			reader := s.store(t)
			for _, step := range []int64{20, 30} {
				c, err := reader.Load(ctx, step)
				if err != nil {
					t.Fatalf("run %d, paused before operation %d: %v", late, pauses, err)
				}
				wantHolds(t, c, snapshot(step, 2))
			}
		}
		if pauses < 20 {
			t.Errorf("run %d has only %d operations", late, pauses)
		}
	}
}

// TestClaimBeingWritten: a writer that meets the file of a new owner before its content, or between
// two new owners, waits for it.
func TestClaimBeingWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s := storage{location: dir}
	first := s.owned(t, firstRun, 11)
	check(t, first.Claim(t.Context()))
	path := filepath.Join(dir, claimName(2))
	check(t, os.WriteFile(path, nil, 0o600))
	refused := make(chan error, 1)
	go func() { refused <- first.claims.hold(t.Context()) }()
	text, err := json.Marshal(Owner{Run: firstRun, Host: "host-a", Process: 12})
	check(t, err)
	check(t, os.WriteFile(path, text, 0o600))
	wantOwned(t, <-refused, 12, true)
	// It may take the folder back.
	check(t, first.Claim(t.Context()))
}
