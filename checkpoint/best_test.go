package checkpoint

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// scored returns a snapshot with a validation loss.
func scored(step int64, loss float64) Snapshot {
	s := snapshot(step, 0)
	s.Metrics = maps.Clone(s.Metrics)
	if s.Metrics == nil {
		s.Metrics = map[string]float64{}
	}
	s.Metrics[ValidationLoss] = loss
	return s
}

// testBestOfOneText: after a job has changed its evaluation text, Best compares only checkpoints of
// the new text.
func testBestOfOneText(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	save := func(step int64, loss, text float64) {
		t.Helper()
		snap := scored(step, loss)
		if text != 0 {
			snap.Metrics[ValidationText] = text
		}
		_, err := store.Save(ctx, snap)
		check(t, err)
	}
	wantBest := func(want int64) {
		t.Helper()
		if c, _, err := store.Best(ctx); err != nil || c.Step != want {
			t.Errorf("best %+v, %v; want step %d", c, err, want)
		}
	}
	save(1, 2, 0) // an older version's: its text counts as the same
	save(2, 3, 7)
	wantBest(1)
	save(3, 1.5, 7)
	_, err := store.Save(ctx, snapshot(4, 0)) // not evaluated yet
	check(t, err)
	wantBest(3)
	save(5, 9, 8)
	save(6, 10, 8)
	check(t, store.Remove(ctx, 1))
	wantBest(5)
	check(t, store.Retain(ctx, 1))
	if steps, err := store.Steps(ctx); err != nil || !slices.Equal(steps, []int64{5, 6}) {
		t.Errorf("kept the steps %v, %v", steps, err)
	}
}

func testBest(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	wantWhy := func(step int64, want string) {
		t.Helper()
		_, c, why, err := ResolveBest(ctx, s.at(""), Config{OpenBucket: s.open})
		if err != nil || c.Step != step || why != want {
			t.Errorf("%+v, %q, %v; want step %d, %q", c, why, err, step, want)
		}
	}
	wantSteps := func(want ...int64) {
		t.Helper()
		if steps, err := store.Steps(ctx); err != nil || !slices.Equal(steps, want) {
			t.Errorf("steps %v, %v; want %v", steps, err, want)
		}
	}
	for step := range int64(3) {
		_, err := store.Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	_, _, err := store.Best(ctx)
	if !errors.Is(err, ErrNone) {
		t.Errorf("nothing was evaluated: %v", err)
	}
	wantWhy(2, "step 2: the newest; none was evaluated")
	var where string
	for step, loss := range map[int64]float64{3: 2, 4: 1.4634, 5: math.NaN(), 6: 1.5, 7: 1.4634} {
		path, err := store.Save(ctx, scored(step, loss))
		check(t, err)
		if step == 6 {
			where = path
		}
	}
	_, err = store.Save(ctx, snapshot(8, 0))
	check(t, err)
	wantWhy(4, "step 4: lowest validation loss 1.463")
	if _, c, why, err := ResolveBest(ctx, where, Config{OpenBucket: s.open}); err != nil ||
		c.Step != 6 || why != "" {
		t.Errorf("a step's own folder: %+v, %q, %v", c, why, err)
	}
	check(t, store.Retain(ctx, 2))
	wantSteps(4, 7, 8) // the best, and the newest two
	check(t, store.Retain(ctx, 1))
	wantSteps(4, 8)
	// A worse one does not displace it; a better one does.
	_, err = store.Save(ctx, scored(9, 1.6))
	check(t, err)
	check(t, store.retain(ctx, 1, 9))
	wantSteps(4, 9)
	_, err = store.Save(ctx, scored(10, 1.2))
	check(t, err)
	check(t, store.retain(ctx, 1, 10))
	wantSteps(10)
	wantWhy(10, "step 10: lowest validation loss 1.200")
	_, err = store.Save(ctx, scored(11, 1.3))
	check(t, err)
	s.damage(t, "step-00000010", "manifest.json", func([]byte) []byte { return []byte("{") })
	wantWhy(11, "step 11: lowest validation loss 1.300; passed over as damaged: step [10]")
	check(t, store.Retain(ctx, 1))
	wantSteps(11)
	check(t, store.Remove(ctx, 11))
	_, _, _, err = ResolveBest(ctx, s.at(""), Config{OpenBucket: s.open})
	if !errors.Is(err, ErrNone) {
		t.Errorf("an empty folder: %v", err)
	}
}

// testSoundForUse: what ResolveBest opens has no flipped bit, whether it is the best or the newest.
func testSoundForUse(t *testing.T, s storage) {
	ctx := t.Context()
	flip := func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
	resolve := func(want int64, words ...string) {
		t.Helper()
		_, c, why, err := ResolveBest(ctx, s.at(""), Config{OpenBucket: s.open})
		if err != nil {
			wantError(t, err, words...)
			return
		}
		if c.Step != want || !strings.Contains(why, words[0]) {
			t.Errorf("step %d, %q; want %d, %q", c.Step, why, want, words[0])
		}
	}
	for _, step := range []int64{1, 2} {
		_, err := s.store(t).Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	s.damage(t, "step-00000002", "model.safetensors", flip)
	resolve(1, "none was evaluated; passed over as damaged: step [2]")
	for step, loss := range map[int64]float64{3: 1.5, 4: 1.25, 5: 2} {
		_, err := s.store(t).Save(ctx, scored(step, loss))
		check(t, err)
	}
	resolve(4, "lowest validation loss 1.250")
	s.damage(t, "step-00000004", "model.safetensors", flip)
	resolve(3, "lowest validation loss 1.500; passed over as damaged: step [4]")
}
