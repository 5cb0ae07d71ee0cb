package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/checkpoint"
	"rondo/corpus"
	"rondo/job/jobspec"
)

// A job whose checkpoints are all damaged does not start anew without being told.
func TestFindNewestOfDamaged(t *testing.T) {
	folder := t.TempDir()
	store, err := checkpoint.Open(t.Context(), folder, checkpoint.Config{Job: "a", Identity: "b"})
	if err != nil {
		t.Fatal(err)
	}
	c := &Checkpoints{Store: store}
	if found, err := c.FindNewest(t.Context()); found != nil || err != nil {
		t.Errorf("an empty folder: %v, %v", found, err)
	}
	for step := range int64(2) {
		weights := []checkpoint.Tensor{{Name: "w", Shape: []int{2}, Data: []float32{1, 2}}}
		path, err := store.Save(t.Context(), checkpoint.Snapshot{Step: step,
			Files: []checkpoint.File{{Name: ModelFile, Tensors: weights}}})
		if err != nil {
			t.Fatal(err)
		}
		model := filepath.Join(path, ModelFile)
		text, err := os.ReadFile(model)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)-1] ^= 1
		if err := os.WriteFile(model, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := c.FindNewest(t.Context())
	if found != nil || err == nil || !strings.Contains(err.Error(), "was altered") ||
		!strings.Contains(err.Error(), "to start anew, give another --checkpoint-dir") {
		t.Errorf("%v, %v", found, err)
	}
}

// A job on a changed corpus is told which file has changed.
func TestChangedCorpusIsNamed(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := jobspec.Default()
	spec.Corpus, spec.CheckpointDir = t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(spec.Corpus, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *corpus.Corpus {
		t.Helper()
		text, err := OpenCorpus(t.Context(), spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = text.Close() })
		return text
	}
	write("a.txt", "abab")
	write("b.txt", "baba")
	text := open()
	store, err := checkpoint.Open(t.Context(), spec.CheckpointDir, checkpoint.Config{Job: spec.Job,
		Identity: jobspec.Identity(spec, text.Fingerprint())})
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := SpecText(WithFiles(spec, text))
	if err == nil {
		_, err = store.Save(t.Context(), checkpoint.Snapshot{Step: 1, Spec: recorded,
			Vocabulary: text.Vocabulary().Tokens(), Files: []checkpoint.File{{Name: ModelFile,
				Tensors: []checkpoint.Tensor{{Name: "w", Shape: []int{1}, Data: []float32{1}}}}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCheckpoints(t.Context(), spec, text, nil); err != nil {
		t.Errorf("the same corpus: %v", err)
	}
	write("b.txt", "babaab")
	_, err = OpenCheckpoints(t.Context(), spec, open(), nil)
	if err == nil || !strings.Contains(err.Error(), "b.txt has 4 bytes instead of 6") {
		t.Errorf("a changed file: %v", err)
	}
	write("b.txt", "baba")
	write("c.txt", "ab")
	_, err = OpenCheckpoints(t.Context(), spec, open(), nil)
	if err == nil || !strings.Contains(err.Error(), "there are 2 files instead of 3: not ") {
		t.Errorf("a new file: %v", err)
	}
}
