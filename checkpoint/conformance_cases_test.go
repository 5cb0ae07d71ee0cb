package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
)

// damageCases alter a saved checkpoint's files.
var damageCases = []struct {
	name   string
	change func(b []byte) []byte // nil removes the file
	file   string
	want   string
}{
	{"truncated", func(b []byte) []byte { return b[:len(b)-10] }, "model.safetensors",
		"is truncated: 206 bytes, the manifest says 216"},
	{"longer", func(b []byte) []byte { return append(b, 0) }, "lanes.safetensors", "was altered: "},
	{"empty", func([]byte) []byte { return []byte{} }, "optimizer.safetensors", "0 bytes, the man"},
	{"data", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, "model.safetensors",
		"was altered: SHA-256 "},
	{"header", func(b []byte) []byte { b[8] = '['; return b }, "optimizer.safetensors",
		"was altered: SHA-256 "},
	{"name in header", func(b []byte) []byte { b[10]++; return b }, "optimizer.safetensors",
		"was altered: SHA-256 "},
	{"missing", nil, "lanes.safetensors", "is missing"},
	{"manifest empty", func([]byte) []byte { return []byte{} }, "manifest.json", "is not valid"},
	{"manifest cut", func(b []byte) []byte { return b[:len(b)/2] }, "manifest.json", "not valid"},
	{"manifest altered", func(b []byte) []byte {
		return []byte(strings.Replace(string(b), "opticks", "opticky", 1))
	}, "manifest.json", "was altered: its SHA-256 is "},
	{"vocabulary altered", func(b []byte) []byte {
		return []byte(strings.Replace(string(b), `"e"`, `"f"`, 1))
	}, "manifest.json", "was altered: its SHA-256 is "},
	{"manifest with more", func(b []byte) []byte {
		return []byte(strings.Replace(string(b), `"job"`, `"x":1,"job"`, 1))
	}, "manifest.json", `unknown field "x"`},
	{"manifest twice", func(b []byte) []byte { return append(b, b...) }, "manifest.json",
		"is not valid JSON"},
	{"format 0", func(b []byte) []byte {
		return []byte(strings.Replace(string(b), `"format": 2`, `"format": 0`, 1))
	}, "manifest.json", "has format version 0"},
}

func testDamage(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for _, test := range damageCases {
		t.Run(test.name, func(t *testing.T) {
			_, err := store.Save(ctx, snapshot(40, 0))
			check(t, err)
			_, err = store.Save(ctx, snapshot(50, 0))
			check(t, err)
			s.damage(t, "step-00000050", test.file, test.change)
			err = store.Verify(ctx, 50)
			wantError(t, err, test.file+" in "+s.at("/step-00000050"), test.want)
			var damage *DamageError
			if !errors.As(err, &damage) || damage.File != test.file {
				t.Errorf("error %#v is no *DamageError of %s", err, test.file)
			}
			c, err := store.Latest(ctx)
			check(t, err)
			if c.Step == 50 { // only reading shows the damage
				_, err = c.ReadAll(ctx, test.file)
				wantError(t, err, test.want)
			} else {
				wantError(t, c.Skipped[0].Err, test.want)
			}
			check(t, store.Verify(ctx, 40))
			check(t, store.Remove(ctx, 50))
		})
	}
}

// damage changes a file of a saved checkpoint. A nil change removes it.
func (s storage) damage(t *testing.T, folder, file string, change func([]byte) []byte) {
	key := path.Join(folder, file)
	if change == nil {
		s.remove(t, key)
		return
	}
	s.write(t, key, change(s.read(t, key)))
}

func testLatestValid(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for step := range int64(4) {
		_, err := store.Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	flip := func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
	s.damage(t, "step-00000003", "model.safetensors", nil)
	s.damage(t, "step-00000002", "lanes.safetensors", flip)
	c, err := store.Latest(ctx) // does not read the files
	if err != nil || c.Step != 2 || len(c.Skipped) != 1 || c.Skipped[0].Step != 3 {
		t.Errorf("latest %+v, %v", c, err)
	}
	c, err = store.LatestValid(ctx)
	check(t, err)
	wantHolds(t, c, snapshot(1, 0))
	if skipped := c.Skipped; len(skipped) != 2 || skipped[0].Step != 3 || skipped[1].Step != 2 ||
		skipped[0].Err.File != "model.safetensors" || skipped[1].Err.File != "lanes.safetensors" {
		t.Errorf("skipped %v", skipped)
	}
	s.damage(t, "step-00000001", "manifest.json", flip)
	s.damage(t, "step-00000000", "model.safetensors", flip)
	_, err = store.LatestValid(ctx)
	wantError(t, err, "no checkpoint in "+s.at("")+" is sound", "model.safetensors")
	var damage *DamageError
	if errors.Is(err, ErrNone) || !errors.As(err, &damage) {
		t.Error(err)
	}
}

func testRetain(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for step := range int64(6) {
		_, err := store.Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	_, err := store.Save(ctx, snapshot(1, 1)) // in a bucket, the files now have other paths
	check(t, err)
	wantError(t, store.Retain(ctx, 0), "at least 1")
	wantSteps := func(want ...int64) {
		t.Helper()
		steps, err := store.Steps(ctx)
		if err != nil || !slices.Equal(steps, want) {
			t.Errorf("steps %v, %v, want %v", steps, err, want)
		}
		if keys := s.keys(t); len(keys) > 4*len(want) {
			t.Errorf("files left: %q", keys)
		}
	}
	check(t, store.Retain(ctx, 5))
	wantSteps(1, 2, 3, 4, 5)
	check(t, store.retain(ctx, 3, 1))
	wantSteps(1, 3, 4, 5)
	// Two damaged ones do not count, and stay while they are newer than the two that are kept.
	s.damage(t, "step-00000005", "model.safetensors", nil)
	s.damage(t, "step-00000004", "manifest.json", func([]byte) []byte { return []byte("{") })
	check(t, store.Retain(ctx, 2))
	wantSteps(1, 3, 4, 5)
	check(t, store.Retain(ctx, 1))
	wantSteps(3, 4, 5)
	_, err = store.Save(ctx, snapshot(6, 0))
	check(t, err)
	check(t, store.Retain(ctx, 1))
	wantSteps(6)
	// A later Store reads the files once: an altered byte is damage, too.
	for step := range int64(3) {
		_, err := store.Save(ctx, snapshot(7+step, 0))
		check(t, err)
	}
	files := slices.DeleteFunc(s.keys(t), func(key string) bool {
		return !strings.HasPrefix(key, "step-00000009/") || path.Base(key) != "model.safetensors"
	})
	altered := s.read(t, files[0])
	altered[len(altered)-1] ^= 1
	s.write(t, files[0], altered)
	check(t, s.store(t).Retain(ctx, 1))
	wantSteps(8, 9)
	check(t, store.Remove(ctx, 8))
	check(t, store.Remove(ctx, 9))
	_, err = store.Save(ctx, snapshot(6, 0))
	check(t, err)
	// In a bucket, Retain deletes files that dead writers left before the newest step. In a local
	// folder it keeps them: drafts have hidden names, so a step folder without a manifest is
	// foreign.
	s.write(t, "step-00000002/model.safetensors", []byte("x"))
	s.write(t, "step-00000009/model.safetensors", []byte("x"))
	check(t, store.Retain(ctx, 1))
	wantLeft := []string{"step-00000006/lanes.safetensors", "step-00000009/model.safetensors"}
	if s.open == nil {
		wantLeft = append([]string{"step-00000002/model.safetensors"}, wantLeft...)
	}
	if keys := slices.DeleteFunc(plainKeys(s.keys(t)), func(key string) bool {
		return path.Dir(key) == "step-00000006" && path.Base(key) != "lanes.safetensors"
	}); !slices.Equal(keys, wantLeft) {
		t.Errorf("files left: %q, want %q", keys, wantLeft)
	}
	check(t, store.Verify(ctx, 6))
}

func testRemoveAfter(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for step := range int64(4) {
		_, err := store.Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	check(t, store.RemoveAfter(ctx, 1))
	if steps, err := store.Steps(ctx); err != nil || !slices.Equal(steps, []int64{0, 1}) {
		t.Errorf("steps %v, %v", steps, err)
	}
	check(t, store.RemoveAfter(ctx, -1))
	if keys := s.keys(t); len(keys) > 0 {
		t.Errorf("files left: %q", keys)
	}
}

func testOtherJob(t *testing.T, s storage) {
	mine, other, ctx := s.store(t), s.storeOf(t, "macbeth", "sha256:22"), t.Context()
	_, err := mine.Save(ctx, snapshot(1, 0))
	check(t, err)
	_, err = mine.Save(ctx, snapshot(2, 0))
	check(t, err)
	s.damage(t, "step-00000002", "manifest.json", func([]byte) []byte { return nil })
	before := s.keys(t)
	_, save := other.Save(ctx, snapshot(5, 0))
	_, load := other.Load(ctx, 1)
	for _, err := range []error{save, load, other.Retain(ctx, 1), other.RemoveAfter(ctx, 0),
		other.Remove(ctx, 1)} {
		wantError(t, err, `belongs to job "opticks" (identity sha256:11)`,
			`not to "macbeth" (identity sha256:22)`)
	}
	if keys := s.keys(t); !slices.Equal(keys, before) {
		t.Errorf("files %q, before %q", keys, before)
	}
	anyone, err := Open(ctx, s.at(""), Config{OpenBucket: s.open})
	check(t, err)
	c, err := anyone.Load(ctx, 1)
	check(t, err)
	wantHolds(t, c, snapshot(1, 0))
	_, err = anyone.Save(ctx, snapshot(7, 0))
	wantError(t, err, "without a job")
}

func testNewerFormat(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for step := range int64(2) {
		_, err := store.Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	s.write(t, "step-00000001/manifest.json", []byte(`{"format": 3, "shards": []}`))
	fresh := s.store(t)
	_, latest := fresh.Latest(ctx)
	_, valid := fresh.LatestValid(ctx)
	_, save := fresh.Save(ctx, snapshot(3, 0))
	for _, err := range []error{latest, valid, save, fresh.Retain(ctx, 1)} {
		wantError(t, err, "format version 3", "up to version 2", "newer program", "step-00000001")
	}
}

func testResolve(t *testing.T, s storage) {
	ctx := t.Context()
	for step := range int64(3) {
		_, err := s.store(t).Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	where, err := s.store(t).Save(ctx, snapshot(1, 7)) // saved again
	check(t, err)
	for _, key := range s.keys(t) { // a copy under a name that the user chose
		if rest, ok := strings.CutPrefix(key, "step-00000001/"); ok {
			s.write(t, "best/"+rest, s.read(t, key))
		}
	}
	for location, want := range map[string]Snapshot{
		s.at(""):                snapshot(2, 0),
		s.at("/"):               snapshot(2, 0),
		where:                   snapshot(1, 7),
		s.at("/step-00000001/"): snapshot(1, 7),
		s.at("/best"):           snapshot(1, 7),
	} {
		_, c, err := Resolve(ctx, location, Config{OpenBucket: s.open})
		check(t, err)
		wantHolds(t, c, want)
		if want.Step == 1 && c.Path != strings.Replace(location, "/?", "?", 1) &&
			c.Path != strings.TrimSuffix(location, "/") {
			t.Errorf("path %s of %s", c.Path, location)
		}
	}
	_, _, err = Resolve(ctx, where, Config{Job: "x", Identity: "y", OpenBucket: s.open})
	wantError(t, err, `belongs to job "opticks"`)
}

func testShapes(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	_, err := store.Save(ctx, snapshot(1, 0))
	check(t, err)
	c, err := store.Latest(ctx)
	check(t, err)
	weight := Tensor{"rnn.weight_ih_l0", []int{4, 3}, make([]float32, 12)}
	bias := Tensor{"rnn.bias_ih_l0", []int{4}, make([]float32, 4)}
	turned := Tensor{weight.Name, []int{3, 4}, weight.Data}
	missing := Tensor{"rnn.weight_hh_l0", []int{4, 4}, make([]float32, 16)}
	const file = "model.safetensors"
	for _, test := range []struct {
		dst  []Tensor
		want string
	}{
		{[]Tensor{turned, bias}, `"rnn.weight_ih_l0" has shape [4 3], and [3 4]`},
		{[]Tensor{weight, bias, missing}, `there is no tensor "rnn.weight_hh_l0" [4 4]`},
		{[]Tensor{weight}, `there is a tensor "rnn.bias_ih_l0" [4], which is not wanted`},
		{[]Tensor{{weight.Name, weight.Shape, make([]float32, 5)}, bias}, "(5 elements)"},
	} {
		wantError(t, c.ReadInto(ctx, file, test.dst), file+" in "+c.Path, test.want)
	}
	check(t, c.ReadInto(ctx, file, []Tensor{bias, weight})) // in any order
	check(t, c.ReadSubset(ctx, file, []Tensor{bias}))
	if want := snapshot(1, 0).Files[0].Tensors[1].Data; !slices.Equal(bias.Data, want) {
		t.Errorf("bias %v, want %v", bias.Data, want)
	}
	wantError(t, c.ReadSubset(ctx, file, []Tensor{missing}), "there is no tensor")
	wantError(t, c.ReadInto(ctx, "other.safetensors", nil), "has no file other.safetensors")
}

func testCancelled(t *testing.T, s storage) {
	store := s.store(t)
	_, err := store.Save(t.Context(), snapshot(1, 0))
	check(t, err)
	c, err := store.Latest(t.Context())
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, save := store.Save(ctx, snapshot(1, 1))
	_, read := c.ReadAll(ctx, "model.safetensors")
	for _, err := range []error{save, read} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v is not that of the context", err)
		}
	}
	c, err = store.Latest(t.Context())
	check(t, err)
	wantHolds(t, c, snapshot(1, 0))
	if keys := s.keys(t); len(keys) != 4 {
		t.Errorf("files %q", keys)
	}
}

// testNothingHalfDone saves invalid snapshots. Save must write nothing.
func testNothingHalfDone(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	_, err := store.Save(ctx, snapshot(1, 0))
	check(t, err)
	for _, test := range []struct {
		want   string
		change func(*Snapshot)
	}{
		{"step -1", func(n *Snapshot) { n.Step = -1 }},
		{`"../x.safetensors"`, func(n *Snapshot) { n.Files[1].Name = "../x.safetensors" }},
		{`"manifest.json"`, func(n *Snapshot) { n.Files[1].Name = "manifest.json" }},
		{`"model.safetensors"`, func(n *Snapshot) { n.Files[1].Name = n.Files[0].Name }},
		{"momentum", func(n *Snapshot) { n.Files[1].Tensors[0].Shape = []int{3} }},
		{"65 files", func(n *Snapshot) { n.Files = make([]File, 65) }},
		{"the spec is not JSON", func(n *Snapshot) { n.Spec = json.RawMessage("{") }},
		{"token 1", func(n *Snapshot) { n.Vocabulary[1] = "\xff" }},
	} {
		bad := snapshot(1, 1)
		test.change(&bad)
		_, err := store.Save(ctx, bad)
		wantError(t, err, test.want, "save checkpoint "+s.location+"/step-")
	}
	c, err := store.Latest(ctx)
	check(t, err)
	wantHolds(t, c, snapshot(1, 0))
	if keys := s.keys(t); len(keys) != 4 {
		t.Errorf("files %q", keys)
	}
}
