package job

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/checkpoint"
	"rondo/job/jobspec"
	"rondo/task"
)

// mutant is a checkpoint of one step whose files are changed on purpose.
type mutant struct {
	rng             *rand.Rand
	manifest, model []byte
}

// hostile returns a value that a manifest may claim.
func (m *mutant) hostile() any {
	return []any{0, -1, 1, 2, 3, 1 << 20, 1 << 31, -1 << 40, int64(math.MaxInt64), 0.5, 1e300,
		-1e300, "", "NaN", "x", strings.Repeat("y", 1<<16), nil, true, []any{}, map[string]any{},
		[]any{1, []any{2}}}[m.rng.IntN(21)]
}

// claim changes a random value in a tree of JSON, and returns the tree.
func (m *mutant) claim(tree any) any {
	switch t := tree.(type) {
	case map[string]any:
		if keys := slices.Sorted(maps.Keys(t)); len(keys) > 0 && m.rng.IntN(12) > 0 {
			key := keys[m.rng.IntN(len(keys))]
			if m.rng.IntN(10) == 0 {
				delete(t, key)
			} else {
				t[key] = m.claim(t[key])
			}
			return t
		}
	case []any:
		if len(t) > 0 && m.rng.IntN(12) > 0 {
			i := m.rng.IntN(len(t))
			t[i] = m.claim(t[i])
			return t
		}
	}
	return m.hostile()
}

// flip changes some of the first bytes.
func (m *mutant) flip(b []byte, within int) {
	for range 1 + m.rng.IntN(4) {
		if within = min(within, len(b)); within > 0 {
			b[m.rng.IntN(within)] ^= byte(1 << m.rng.IntN(8))
		}
	}
}

// mutate changes one of the files.
func (m *mutant) mutate(t *testing.T) {
	t.Helper()
	header := 8
	if len(m.model) > 8 {
		header += int(binary.LittleEndian.Uint64(m.model))
	}
	switch m.rng.IntN(10) {
	case 0:
		m.flip(m.manifest, len(m.manifest))
	case 1:
		m.flip(m.model, header)
	case 2:
		m.flip(m.model, len(m.model))
	case 3:
		m.model = m.model[:m.rng.IntN(len(m.model))]
	case 4:
		m.model = append(m.model, make([]byte, m.rng.IntN(1<<12))...)
	case 5:
		binary.LittleEndian.PutUint64(m.model, m.rng.Uint64()>>m.rng.IntN(64))
	case 6: // shapes and places of tensors
		var tree any
		if err := json.Unmarshal(m.model[8:header], &tree); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(m.claim(tree))
		if err != nil {
			t.Fatal(err)
		}
		m.model = slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text,
			m.model[header:])
	default: // the job's specification, mostly
		var tree map[string]any
		if err := json.Unmarshal(m.manifest, &tree); err != nil {
			t.Fatal(err)
		}
		for range 1 + m.rng.IntN(2) {
			if m.rng.IntN(4) > 0 {
				tree["spec"] = m.claim(tree["spec"])
			} else {
				m.claim(tree)
			}
		}
		var err error
		if m.manifest, err = json.Marshal(tree); err != nil {
			t.Fatal(err)
		}
	}
}

// seal makes the manifest's hashes those of the files, as whoever changes them can. It leaves a
// manifest alone that cannot be read.
func (m *mutant) seal(t *testing.T) {
	t.Helper()
	var manifest checkpoint.Manifest
	if json.Unmarshal(m.manifest, &manifest) != nil {
		return
	}
	hash := func(b []byte) string {
		sum := sha256.Sum256(b)
		return hex.EncodeToString(sum[:])
	}
	for i := range manifest.Files {
		manifest.Files[i].Size, manifest.Files[i].SHA256 = int64(len(m.model)), hash(m.model)
	}
	manifest.SHA256 = ""
	text, err := json.Marshal(manifest)
	if err != nil {
		return
	}
	manifest.SHA256 = hash(text)
	if m.manifest, err = json.Marshal(manifest); err != nil {
		t.Fatal(err)
	}
}

// use loads the checkpoint and evaluates it, as `rondo eval` does, and returns the memory that this
// allocates.
func (m *mutant) use(t *testing.T, folder, text string) (allocated uint64, err error) {
	t.Helper()
	for name, content := range map[string][]byte{"manifest.json": m.manifest, ModelFile: m.model} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer func() {
		runtime.ReadMemStats(&after)
		allocated = after.TotalAlloc - before.TotalAlloc
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
			t.Error(err)
		}
	}()
	trained, err := LoadTrained(t.Context(), folder, Use{Device: "cpu", Threads: 1},
		task.Names()...)
	if err != nil {
		return 0, err
	}
	defer trained.Close()
	_, err = trained.Evaluate(t.Context(), text, Search{})
	return 0, err
}

// TestMutatedCheckpoints: whatever somebody writes into a checkpoint, with hashes that are right,
// is used or refused within seconds, without a panic, and for little memory.
func TestMutatedCheckpoints(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const moment, extra = 5 * time.Second, 64 << 20
	mutants := 10_000
	switch {
	case testing.Short():
		mutants = 150
	case os.Getenv("RONDO_TEST_LONG") == "":
		mutants = 1_500
	}
	seed := uint64(time.Now().UnixNano())
	folder := t.TempDir()
	text := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("ab ba ", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	var bases []mutant
	for _, cell := range []string{"lstm", "gru"} {
		spec := jobspec.Textbook()
		spec.Cell, spec.Hidden, spec.Tokenizer = cell, 8, "char"
		saved := t.TempDir()
		_ = saveUntrained(t, saved, spec, []string{"<unk>", " ", "a", "b"}).Close()
		found, err := filepath.Glob(filepath.Join(saved, "*", "manifest.json"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%q, %v", found, err)
		}
		var base mutant
		for name, to := range map[string]*[]byte{"manifest.json": &base.manifest,
			ModelFile: &base.model} {
			if *to, err = os.ReadFile(filepath.Join(filepath.Dir(found[0]), name)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := base.use(t, folder, text); err != nil {
			t.Fatalf("unchanged: %v", err)
		}
		bases = append(bases, base)
	}
	used := 0
	for i := range mutants {
		m := bases[i%len(bases)]
		m.rng = rand.New(rand.NewPCG(seed, uint64(i)))
		m.manifest, m.model = bytes.Clone(m.manifest), bytes.Clone(m.model)
		m.mutate(t)
		if m.rng.IntN(10) > 0 {
			m.seal(t)
		}
		began := time.Now()
		allocated, err := m.use(t, folder, text)
		if took := time.Since(began); took > moment {
			t.Errorf("mutant %d took %v", i, took)
		}
		if most := uint64(2*(len(m.manifest)+len(m.model)) + extra); allocated > most {
			t.Errorf("mutant %d: %d MiB: %v", i, allocated>>20, err)
		}
		if err == nil {
			used++
		}
		if t.Failed() {
			t.Fatalf("seed %d, mutant %d: %v\n%.4000s", seed, i, err, m.manifest)
		}
	}
	t.Logf("%d mutants, %d of them used", mutants, used)
	if used == 0 || used == mutants {
		t.Errorf("%d of %d mutants are used", used, mutants)
	}
}
