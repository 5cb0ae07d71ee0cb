package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"
)

// storage is an empty place of one kind, with direct access to its files that bypasses the Store.
type storage struct {
	location string
	query    string // suffix of a location
	open     func(context.Context, string) (*blob.Bucket, error)
	read     func(t *testing.T, key string) []byte
	write    func(t *testing.T, key string, b []byte)
	remove   func(t *testing.T, key string)
	keys     func(t *testing.T) []string
}

// TestConformance runs the suite on every kind of place.
func TestConformance(t *testing.T) {
	makers := map[string]func(*testing.T) storage{
		"folder":  folderStorage,
		"memblob": memStorage,
		"fileblob": func(t *testing.T) storage {
			b, err := fileblob.OpenBucket(t.TempDir(), &fileblob.Options{NoTempDir: true})
			if err != nil {
				t.Fatal(err)
			}
			return bucketStorage(t, b)
		},
	}
	suite := map[string]func(*testing.T, storage){
		"round trip":        testRoundTrip,
		"empty":             testEmpty,
		"steps":             testSteps,
		"saved again":       testSavedAgain,
		"crash":             testCrash,
		"faults":            testFaults,
		"two writers":       testTwoWriters,
		"save once":         testSaveOnce,
		"damage":            testDamage,
		"latest valid":      testLatestValid,
		"retain":            testRetain,
		"best":              testBest,
		"best of one text":  testBestOfOneText,
		"remove after":      testRemoveAfter,
		"other job":         testOtherJob,
		"newer format":      testNewerFormat,
		"resolve":           testResolve,
		"shapes":            testShapes,
		"cancelled":         testCancelled,
		"nothing half done": testNothingHalfDone,
		"claim":             testClaim,
		"claim lost":        testClaimLost,
		"two runs":          testTwoRuns,
		"once of two runs":  testSaveOnceOfTwoRuns,
		"sound for use":     testSoundForUse,
	}
	for kind, create := range makers {
		for name, run := range suite {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel() // most of the time goes to writing through to the disk
				run(t, create(t))
			})
		}
	}
}

func memStorage(t *testing.T) storage { return bucketStorage(t, memblob.OpenBucket(nil)) }

func folderStorage(t *testing.T) storage {
	root := filepath.Join(t.TempDir(), "not", "made", "yet")
	return storage{
		location: root,
		read: func(t *testing.T, key string) []byte {
			b, err := os.ReadFile(filepath.Join(root, key))
			check(t, err)
			return b
		},
		write: func(t *testing.T, key string, b []byte) {
			check(t, os.MkdirAll(filepath.Dir(filepath.Join(root, key)), 0o777))
			check(t, os.WriteFile(filepath.Join(root, key), b, 0o666))
		},
		remove: func(t *testing.T, key string) { check(t, os.Remove(filepath.Join(root, key))) },
		keys: func(t *testing.T) (keys []string) {
			err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
				if p == root && errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err == nil && !e.IsDir() {
					p, err = filepath.Rel(root, p)
					keys = append(keys, filepath.ToSlash(p))
				}
				return err
			})
			check(t, err)
			return keys
		},
	}
}

// bucketStorage keeps everything under a prefix, beside a foreign object.
func bucketStorage(t *testing.T, b *blob.Bucket) storage {
	ctx := t.Context()
	check(t, b.WriteAll(ctx, "runs/ab", []byte("not ours"), nil))
	t.Cleanup(func() {
		kept, err := b.ReadAll(context.Background(), "runs/ab")
		if gcerrors.Code(err) == gcerrors.FailedPrecondition {
			return // closed by a Resolve that failed
		}
		if string(kept) != "not ours" {
			t.Errorf("a foreign object is %q, %v", kept, err)
		}
		check(t, b.Close())
	})
	const prefix = "runs/a/"
	return storage{
		location: "test://bucket/runs/a",
		query:    "?region=x",
		open: func(_ context.Context, url string) (*blob.Bucket, error) {
			if url != "test://bucket?region=x" {
				return nil, fmt.Errorf("asked to open %s", url)
			}
			return b, nil
		},
		read: func(t *testing.T, key string) []byte {
			content, err := b.ReadAll(ctx, whereIs(t, b, prefix+key))
			check(t, err)
			return content
		},
		write: func(t *testing.T, key string, content []byte) {
			check(t, b.WriteAll(ctx, whereIs(t, b, prefix+key), content, nil))
		},
		remove: func(t *testing.T, key string) {
			check(t, b.Delete(ctx, whereIs(t, b, prefix+key)))
		},
		keys: func(t *testing.T) (keys []string) {
			objects := b.List(&blob.ListOptions{Prefix: prefix})
			for {
				o, err := objects.Next(ctx)
				if errors.Is(err, io.EOF) {
					return keys
				}
				check(t, err)
				keys = append(keys, strings.TrimPrefix(o.Key, prefix))
			}
		},
	}
}

// plainKeys removes the attempt sub-folders of a bucket's saves from keys.
func plainKeys(keys []string) []string {
	for i, key := range keys {
		if e := strings.Split(key, "/"); len(e) > 2 && strings.HasPrefix(e[1], attemptPrefix) {
			keys[i] = path.Join(e[0], e[2])
		}
	}
	slices.Sort(keys)
	return keys
}

// whereIs returns the key of a step's file as the step's manifest records it.
func whereIs(t *testing.T, b *blob.Bucket, key string) string {
	t.Helper()
	folder, file := path.Split(key)
	text, err := b.ReadAll(t.Context(), folder+manifestName)
	if err != nil {
		return key
	}
	m, err := parseManifest(text)
	if err != nil {
		return key
	}
	for _, f := range m.Files {
		if f.Name == file {
			return folder + f.path()
		}
	}
	return key
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError fails unless err contains all of the words.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v, want one with %q", err, word)
		}
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has several lines", err)
	}
}

// at returns the location of a folder.
func (s storage) at(folder string) string { return s.location + folder + s.query }

// store opens the storage as a job. The bucket under it stays open for the next store.
func (s storage) store(t *testing.T) *Store { return s.storeOf(t, "opticks", "sha256:11") }

// later opens the storage at a time when any earlier writer counts as dead.
func (s storage) later(t *testing.T) *Store {
	store := s.store(t)
	if b, ok := store.place.(*bucket); ok {
		b.now = func() time.Time { return time.Now().Add(staleAfter + time.Minute) }
	}
	return store
}

func (s storage) storeOf(t *testing.T, job, identity string) *Store {
	t.Helper()
	store, err := Open(t.Context(), s.at(""), Config{
		Job: job, Identity: identity, OpenBucket: s.open,
		Now: func() time.Time { return time.Unix(1_700_000_000, 5) },
	})
	check(t, err)
	return store
}

// snapshot makes a snapshot whose numbers all depend on step and variant.
func snapshot(step int64, variant float32) Snapshot {
	floats := func(n int, scale float32) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = scale * (float32(step) + float32(i)/8 + 1000*variant)
		}
		return x
	}
	return Snapshot{
		Step: step, Epoch: step / 10, Digest: math.MaxUint64 - uint64(step),
		Files: []File{
			{"model.safetensors", []Tensor{
				{"rnn.weight_ih_l0", []int{4, 3}, floats(12, 1)},
				{"rnn.bias_ih_l0", []int{4}, floats(4, 2)},
			}},
			{"optimizer.safetensors", []Tensor{{"momentum", []int{16}, floats(16, -1)}}},
			{"lanes.safetensors", []Tensor{{"h", []int{2, 1, 4}, floats(8, 0.5)}}},
		},
		Spec:       json.RawMessage(`{"name":"opticks","corpus":"a<b"}`),
		Training:   json.RawMessage(`{"schedule":{"best":1.5}}`),
		Tokenizer:  json.RawMessage(`{"vocab":{"<unk>":0,"\u003c":1}}`),
		Vocabulary: []string{"<unk>", " ", "e", "\u00e9"},
		Metrics:    map[string]float64{"loss": float64(variant), "gone": math.Inf(1)},
	}
}

// wantHolds compares the full content of a checkpoint with the saved snapshot.
func wantHolds(t *testing.T, c *Checkpoint, want Snapshot) {
	t.Helper()
	check(t, c.Verify(t.Context()))
	if len(c.Files) != len(want.Files) {
		t.Errorf("%d files, want %d", len(c.Files), len(want.Files))
	}
	for _, f := range want.Files {
		dst := make([]Tensor, len(f.Tensors))
		for i, w := range f.Tensors {
			dst[i] = Tensor{w.Name, w.Shape, make([]float32, len(w.Data))}
		}
		check(t, c.ReadInto(t.Context(), f.Name, dst))
		all, err := c.ReadAll(t.Context(), f.Name)
		check(t, err)
		if !reflect.DeepEqual(dst, f.Tensors) || !reflect.DeepEqual(all, f.Tensors) {
			t.Errorf("%s holds %v and %v, want %v", f.Name, dst, all, f.Tensors)
		}
	}
	got := Snapshot{c.Step, c.Epoch, c.Digest, want.Files, c.Spec, c.Training, c.Tokenizer,
		c.Vocabulary, c.Outputs, c.Metrics}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("manifest of %+v, want %+v", got, want)
	}
}

func testRoundTrip(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	want := snapshot(50, 1)
	where, err := store.Save(ctx, want)
	check(t, err)
	if where != s.at("/step-00000050") {
		t.Errorf("saved to %s", where)
	}
	wantKeys := []string{"lanes.safetensors", "manifest.json", "model.safetensors",
		"optimizer.safetensors"}
	for i := range wantKeys {
		wantKeys[i] = "step-00000050/" + wantKeys[i]
	}
	keys := plainKeys(s.keys(t))
	if !slices.Equal(keys, wantKeys) {
		t.Errorf("files %q, want %q", keys, wantKeys)
	}
	c, err := s.store(t).Load(ctx, 50)
	check(t, err)
	wantHolds(t, c, want)
	if c.Job != "opticks" || c.Identity != "sha256:11" || c.Path != where ||
		c.Format != FormatVersion || !c.Created.Equal(time.Unix(1_700_000_000, 5)) {
		t.Errorf("manifest %+v at %s", c.Manifest, c.Path)
	}
	infos, err := c.Tensors(ctx, "model.safetensors")
	if err != nil || len(infos) != 2 || infos[0].Name != "rnn.weight_ih_l0" ||
		!slices.Equal(infos[0].Shape, []int{4, 3}) || infos[0].DType != "F32" {
		t.Errorf("tensors %v, %v", infos, err)
	}
	if err := strictCheck(s.read(t, "step-00000050/model.safetensors")); err != nil {
		t.Error(err)
	}
	before := make(map[string][]byte)
	for _, key := range keys {
		before[key] = s.read(t, key)
	}
	check(t, store.Remove(ctx, 50))
	_, err = store.Save(ctx, want)
	check(t, err)
	for key, b := range before {
		// A bucket's manifest records other paths when it is saved again.
		moved := s.open != nil && path.Base(key) == manifestName
		if !moved && !bytes.Equal(b, s.read(t, key)) {
			t.Errorf("%s differs when the same snapshot is saved again", key)
		}
	}
}

func testEmpty(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	steps, err := store.Steps(ctx)
	if err != nil || len(steps) != 0 {
		t.Errorf("steps %v, %v", steps, err)
	}
	_, latest := store.Latest(ctx)
	_, valid := store.LatestValid(ctx)
	_, load := store.Load(ctx, 3)
	verify := store.Verify(ctx, 3)
	check(t, store.Retain(ctx, 1))
	check(t, store.Remove(ctx, 3))
	_, _, resolve := Resolve(ctx, s.at(""), Config{OpenBucket: s.open})
	for _, err := range []error{latest, valid, load, verify, resolve} {
		if !errors.Is(err, ErrNone) {
			t.Errorf("error %v is not ErrNone", err)
		}
		wantError(t, err, s.at(""))
	}
}

func testSteps(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for _, step := range []int64{100, 0, 123_456_789, 20} {
		_, err := store.Save(ctx, snapshot(step, 0))
		check(t, err)
	}
	manifest := s.read(t, "step-00000020/manifest.json")
	for _, key := range []string{"step-00000007/model.safetensors", "step-7/manifest.json",
		"step-000000070/manifest.json", "step--0000070/manifest.json", "other/manifest.json",
		"step-00000009/deep/manifest.json", "step-0000001x/manifest.json"} {
		s.write(t, key, manifest)
	}
	steps, err := store.Steps(ctx)
	if err != nil || !slices.Equal(steps, []int64{0, 20, 100, 123_456_789}) {
		t.Errorf("steps %v, %v", steps, err)
	}
	c, err := store.Latest(ctx)
	check(t, err)
	wantHolds(t, c, snapshot(123_456_789, 0))
	_, err = store.Load(ctx, 7)
	wantError(t, err, "no checkpoint of step 7", "there are [0 20 100 123456789]")
	s.write(t, "step-00000007/manifest.json", manifest)
	_, err = store.Load(ctx, 7)
	wantError(t, err, "manifest.json in "+s.at("/step-00000007")+" is of step 20")
}

func testSavedAgain(t *testing.T, s storage) {
	store, ctx := s.store(t), t.Context()
	for _, variant := range []float32{0, 1, 2} {
		_, err := store.Save(ctx, snapshot(50, variant))
		check(t, err)
		c, err := store.Latest(ctx)
		check(t, err)
		wantHolds(t, c, snapshot(50, variant))
		if keys := s.keys(t); len(keys) != 4 {
			t.Errorf("files %q", keys)
		}
	}
	small := snapshot(50, 9)
	small.Files = small.Files[:1]
	_, err := store.Save(ctx, small)
	check(t, err)
	c, err := store.Latest(ctx)
	check(t, err)
	wantHolds(t, c, small)
	if keys := s.keys(t); len(keys) != 2 {
		t.Errorf("files %q", keys)
	}
}
