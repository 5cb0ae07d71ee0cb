package zipfplot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/corpus"
)

func measure(t *testing.T, ids corpus.IDs) *corpus.Stats {
	t.Helper()
	v, err := corpus.NewVocabulary([]string{corpus.Unknown, "a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	stats, err := corpus.Measure(t.Context(), ids, v, 3, "")
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func TestSaveByExtension(t *testing.T) {
	for _, ids := range []corpus.IDs{{1}, {1, 1}, {1, 2, 1, 3, 1, 2, 1, 1, 2, 3, 0, 1}} {
		stats := measure(t, ids)
		dir := t.TempDir()
		path := filepath.Join(dir, "zipf.PNG")
		if err := Save(path, "A title", stats); err != nil {
			t.Fatal(err)
		}
		drawn, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		image, err := png.Decode(bytes.NewReader(drawn))
		if err != nil || image.Bounds().Dx() < 300 {
			t.Errorf("%v: not a picture: %v", ids, err)
		}
		path = filepath.Join(dir, "zipf.svg")
		if err := Save(path, "A title", stats); err != nil {
			t.Fatal(err)
		}
		drawn, err = os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for decoder := xml.NewDecoder(bytes.NewReader(drawn)); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v: not XML: %v", ids, err)
			}
		}
		if !strings.Contains(string(drawn), "A title") ||
			strings.Contains(string(drawn), "trigrams") != (len(ids) >= 3) {
			t.Errorf("%v: the legend or the title is not right", ids)
		}
	}
}

func TestSaveRefusesOtherFormats(t *testing.T) {
	stats := measure(t, corpus.IDs{1, 2})
	for _, name := range []string{"zipf.pdf", "zipf", "png"} {
		path := filepath.Join(t.TempDir(), name)
		err := Save(path, "", stats)
		if err == nil || !strings.Contains(err.Error(), ".png or .svg") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := Save("/no/such/folder/z.svg", "", stats); err == nil {
		t.Error("a folder that does not exist is no error")
	}
}
