package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A survey has a row for each checkpoint. It names the damaged ones, and of a checkpoint's own
// folder it has the one row.
func TestSurvey(t *testing.T) {
	dir := t.TempDir()
	survey := func(location string, verify bool) (rows []Row, err error) {
		err = Survey(t.Context(), location, Config{}, verify, func(r Row) error {
			rows = append(rows, r)
			return nil
		})
		return rows, err
	}
	store, _ := localStore(t, dir)
	if _, err := survey(dir, false); !errors.Is(err, ErrNone) {
		t.Errorf("an empty folder: %v", err)
	}
	for step := int64(1); step <= 2; step++ {
		_, err := store.Save(t.Context(), snapshot(step, 1))
		check(t, err)
	}
	second := filepath.Join(dir, "step-00000002")
	files, err := filepath.Glob(filepath.Join(second, "*.safetensors"))
	check(t, err)
	text, err := os.ReadFile(files[0])
	check(t, err)
	text[len(text)-1] ^= 1
	check(t, os.WriteFile(files[0], text, 0o600))
	for verify, problem := range map[bool]bool{false: false, true: true} {
		rows, err := survey(dir, verify)
		check(t, err)
		if len(rows) != 2 || rows[0].Step != 1 || rows[0].Bytes == 0 || rows[0].Problem != "" ||
			rows[1].Step != 2 || rows[1].Problem != "" != problem {
			t.Errorf("verify %t: %+v", verify, rows)
		}
	}
	if rows, err := survey(filepath.Join(dir, "step-00000001"), true); err != nil ||
		len(rows) != 1 || rows[0].Step != 1 {
		t.Errorf("the first one's own folder: %+v, %v", rows, err)
	}
	if _, err := survey(second, true); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("the damaged one's own folder: %v", err)
	}
	check(t, os.Truncate(files[0], 3))
	if _, err := survey(second, false); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("a truncated one's own folder: %v", err)
	}
	check(t, os.Remove(filepath.Join(second, "manifest.json")))
	if rows, err := survey(dir, true); err != nil || len(rows) != 1 {
		t.Errorf("without its manifest: %+v, %v", rows, err)
	}
}
