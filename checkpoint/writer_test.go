package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// gated is a place whose saves wait for the test's permission to commit.
type gated struct {
	place
	begun chan string
	pass  chan error
}

func (g *gated) begin(ctx context.Context, folder string, claim int64) (draft, error) {
	g.begun <- folder
	select {
	case err := <-g.pass:
		if err != nil {
			return nil, err
		}
		return g.place.begin(ctx, folder, claim)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deaf is a place whose begin ignores its context.
type deaf struct {
	place
	release chan struct{}
}

func (d *deaf) begin(context.Context, string, int64) (draft, error) {
	<-d.release
	return nil, errors.New("released")
}

func newGated(t *testing.T, cfg WriterConfig) (*Store, *gated, *Writer) {
	t.Helper()
	store, place := localStore(t, t.TempDir())
	g := &gated{place, make(chan string, 10), make(chan error)}
	store.place = g
	w, err := NewWriter(store, cfg)
	check(t, err)
	return store, g, w
}

func TestWriter(t *testing.T) {
	root := t.TempDir()
	store, _ := localStore(t, root)
	var results []Result
	w, err := NewWriter(store, WriterConfig{
		Keep: 2, Done: func(r Result) { results = append(results, r) },
	})
	check(t, err)
	for step := range int64(5) {
		snap := snapshot(step, 1)
		check(t, w.Submit(t.Context(), snap))
		for _, f := range snap.Files { // the caller may change the snapshot at once
			for _, x := range f.Tensors {
				clear(x.Data)
				clear(x.Shape)
			}
			clear(f.Tensors)
		}
		clear(snap.Files)
		clear(snap.Spec)
		clear(snap.Training)
		clear(snap.Vocabulary)
		clear(snap.Metrics)
	}
	check(t, w.Close(t.Context()))
	check(t, w.Close(t.Context())) // a second time
	if err := w.Submit(t.Context(), snapshot(9, 1)); !errors.Is(err, ErrWriterClosed) {
		t.Errorf("Submit after Close: %v", err)
	}
	for i, r := range results {
		if r.Step != int64(i) || r.Err != nil || r.RetainErr != nil || r.Took <= 0 ||
			r.Path != fmt.Sprintf("%s/step-%08d", root, i) {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	steps, err := store.Steps(t.Context())
	if err != nil || !slices.Equal(steps, []int64{3, 4}) || len(results) != 5 {
		t.Errorf("%d results, steps %v, %v", len(results), steps, err)
	}
	for _, step := range steps {
		c, err := store.Load(t.Context(), step)
		check(t, err)
		wantHolds(t, c, snapshot(step, 1))
	}
}

// TestWriterBlocks holds one save back. One more snapshot may wait; the third Submit blocks until
// its deadline or until there is room.
func TestWriterBlocks(t *testing.T) {
	store, g, w := newGated(t, WriterConfig{})
	check(t, w.Submit(t.Context(), snapshot(1, 0)))
	<-g.begun
	check(t, w.Submit(t.Context(), snapshot(2, 0)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := w.Submit(ctx, snapshot(3, 0))
	wantError(t, err, "checkpoint of step 3 waits for the ones before it")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v is not the deadline's", err)
	}
	third := make(chan error)
	go func() { third <- w.Submit(t.Context(), snapshot(3, 0)) }()
	for range 3 {
		g.pass <- nil
	}
	check(t, <-third)
	check(t, w.Close(t.Context()))
	steps, err := store.Steps(t.Context())
	if err != nil || !slices.Equal(steps, []int64{1, 2, 3}) {
		t.Errorf("steps %v, %v", steps, err)
	}
}

// TestWriterFails: the Writer goes on after a failed save, and Close returns the last save's error.
func TestWriterFails(t *testing.T) {
	failure := errors.New("no luck")
	var failed []int64
	store, g, w := newGated(t, WriterConfig{Done: func(r Result) {
		if errors.Is(r.Err, failure) {
			failed = append(failed, r.Step)
		}
	}})
	for step, err := range []error{failure, nil, failure} {
		check(t, w.Submit(t.Context(), snapshot(int64(step), 0)))
		g.pass <- err
	}
	wantError(t, w.Close(t.Context()), "step-00000002", "no luck")
	steps, err := store.Steps(t.Context())
	if err != nil || !slices.Equal(steps, []int64{1}) || !slices.Equal(failed, []int64{0, 2}) {
		t.Errorf("steps %v, %v; failed %v", steps, err, failed)
	}
}

func TestWriterTimeout(t *testing.T) {
	_, _, w := newGated(t, WriterConfig{Timeout: time.Millisecond})
	check(t, w.Submit(t.Context(), snapshot(1, 0)))
	if err := w.Close(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v is not the deadline's", err)
	}
}

// TestWriterCloseDeadline: when Close's context ends, unsaved snapshots are given up with an error.
func TestWriterCloseDeadline(t *testing.T) {
	store, g, w := newGated(t, WriterConfig{})
	check(t, w.Submit(t.Context(), snapshot(1, 0)))
	check(t, w.Submit(t.Context(), snapshot(2, 0)))
	<-g.begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, w.Close(ctx), "the last checkpoint was not saved in time")
	if steps, err := store.Steps(t.Context()); err != nil || len(steps) > 0 {
		t.Errorf("steps %v, %v", steps, err)
	}
}

// TestWriterCloseDeaf closes a Writer whose storage does not answer.
func TestWriterCloseDeaf(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store, place := localStore(t, root)
		d := &deaf{place, make(chan struct{})}
		store.place = d
		w, err := NewWriter(store, WriterConfig{})
		check(t, err)
		check(t, w.Submit(t.Context(), snapshot(1, 0)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantError(t, w.Close(ctx), "storage does not answer")
		if took := time.Since(start); took != time.Second+closeGrace {
			t.Errorf("Close took %v", took)
		}
		close(d.release)
		<-w.done
	})
}

// TestWriterSubmitAfterClose: Close wakes a waiting Submit.
func TestWriterSubmitAfterClose(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store, place := localStore(t, root)
		d := &deaf{place, make(chan struct{})}
		store.place = d
		w, err := NewWriter(store, WriterConfig{})
		check(t, err)
		for step := range int64(writerSlots) {
			check(t, w.Submit(t.Context(), snapshot(step, 0)))
		}
		waiting := make(chan error)
		go func() { waiting <- w.Submit(t.Context(), snapshot(9, 0)) }()
		synctest.Wait() // Submit waits for a slot
		closed := make(chan error)
		go func() { closed <- w.Close(t.Context()) }()
		if err := <-waiting; !errors.Is(err, ErrWriterClosed) {
			t.Errorf("the waiting Submit: %v", err)
		}
		close(d.release)
		wantError(t, <-closed, "released")
	})
}

// TestWriterMemory: a copy reuses the memory of the last one.
func TestWriterMemory(t *testing.T) {
	h := new(snapshotCopy)
	h.copy(snapshot(1, 0))
	first := &h.memory[0]
	h.copy(snapshot(2, 0))
	if &h.memory[0] != first {
		t.Error("a snapshot of the same size took new memory")
	}
	if got := h.snap.Files[1].Tensors[0].Data; !slices.Equal(got,
		snapshot(2, 0).Files[1].Tensors[0].Data) {
		t.Errorf("copy %v", got)
	}
}

func TestNewWriterRefuses(t *testing.T) {
	reader, err := Open(t.Context(), t.TempDir(), Config{})
	check(t, err)
	_, err = NewWriter(reader, WriterConfig{})
	wantError(t, err, "without a job")
	store, _ := localStore(t, t.TempDir())
	_, err = NewWriter(store, WriterConfig{Keep: -1})
	wantError(t, err, "keep -1")
}

// TestNoSecondCopy: a save allocates only a small part of the data's size.
func TestNoSecondCopy(t *testing.T) {
	const floats = 16 << 20 // 64 MiB
	data := make([]float32, floats)
	for i := range data {
		data[i] = float32(i)
	}
	tensors := []Tensor{{"w", []int{floats}, data}}
	store, _ := localStore(t, t.TempDir())
	snap := Snapshot{Step: 1, Files: []File{{"model.safetensors", tensors}}}
	_, err := store.Save(t.Context(), snap)
	check(t, err)
	c, err := store.Latest(t.Context())
	check(t, err)
	for name, f := range map[string]func() error{
		"save":      func() error { _, err := store.Save(t.Context(), snap); return err },
		"read into": func() error { return c.ReadInto(t.Context(), "model.safetensors", tensors) },
		"verify":    func() error { return c.Verify(t.Context()) },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := f()
		runtime.ReadMemStats(&after)
		check(t, err)
		if n := after.TotalAlloc - before.TotalAlloc; n > floats {
			t.Errorf("%s allocates %d bytes for %d bytes of data", name, n, 4*floats)
		}
	}
}
