package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/checkpoint"
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
