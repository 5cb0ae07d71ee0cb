package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestTail: a log that grows while it is read, in pieces that end anywhere.
func TestTail(t *testing.T) {
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "a.jsonl"))
	check(t, err)
	defer func() { check(t, out.Close()) }()
	text := `{"ring":{"run":1,"generation":2,"from":41,"digest":8,"world":3,"rank":1,"lanes":6,` +
		`"bptt":4,"tokens":99,"seed":1,"sampling":"sequential"}}` + "\n" +
		`{"read":{"generation":2,"step":42,"first":2,"offsets":[8,9],"crc":5}}` + "\n"
	want := []Entry{{RingLine, "a.jsonl", 2, 41, 3, 8}, {ReadLine, "a.jsonl", 2, 42, 0, 0}}
	for step := int64(42); step < 60; step++ {
		text += fmt.Sprintf(`{"commit":{"generation":2,"step":%d,"digest":9}}`+"\n", step)
		want = append(want, Entry{CommitLine, "a.jsonl", 2, step, 0, 9})
	}
	logs := NewTail(dir)
	defer logs.Close()
	var got []Entry
	for piece := range slices.Chunk([]byte(text), 7) {
		_, err := out.Write(piece)
		check(t, err)
		lines, err := logs.Next()
		check(t, err)
		got = append(got, lines...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	_, err = out.WriteString("nonsense\n")
	check(t, err)
	if lines, err := logs.Next(); err == nil {
		t.Errorf("nonsense is read as %+v", lines)
	}
}

// TestTailDrop: a log that was dropped is not read again, and one that is new is.
func TestTailDrop(t *testing.T) {
	dir := t.TempDir()
	commit := []byte(`{"commit":{"generation":2,"step":1,"digest":9}}` + "\n")
	logs := NewTail(dir)
	defer logs.Close()
	for _, name := range []string{"a.jsonl", "b.jsonl"} {
		check(t, os.WriteFile(filepath.Join(dir, name), commit, 0o600))
		var got []Entry
		for range tailListing {
			lines, err := logs.Next()
			check(t, err)
			got = append(got, lines...)
		}
		if len(got) != 1 || got[0].Log != name {
			t.Errorf("after %s: %+v", name, got)
		}
		logs.Drop(func(log string) bool { return log == "a.jsonl" })
		file, err := os.OpenFile(filepath.Join(dir, "a.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
		check(t, err)
		_, err = file.Write(commit)
		check(t, err)
		check(t, file.Close())
	}
}
