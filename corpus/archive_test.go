package corpus

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// archive returns a zip archive of files with this content.
func archive(t *testing.T, content string, names ...string) []byte {
	t.Helper()
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	for _, name := range names {
		member, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(member, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// unzip returns the content that ReadZip finds among .txt files.
func unzip(file []byte, limit uint64) (content string, err error) {
	err = ReadZip(bytes.NewReader(file), []string{".txt"}, limit,
		func(_ string, r io.Reader) error {
			all, err := io.ReadAll(r)
			content = string(all)
			return err
		})
	return content, err
}

// An archive may claim fewer bytes than it has, or have more than is unpacked.
func TestArchivesAreUnpackedWithinALimit(t *testing.T) {
	content := strings.Repeat("a\tx\n", 1<<16)
	whole := archive(t, content, "a.txt")
	if got, err := unzip(whole, uint64(len(content))); err != nil || got != content {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := unzip(whole, uint64(len(content))-1); err == nil || got != "" ||
		!strings.Contains(err.Error(), "unpack") {
		t.Errorf("beyond the limit: %d bytes, %v", len(got), err)
	}
	r, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	header := r.File[0].FileHeader
	header.UncompressedSize64 = 4000
	raw, err := r.File[0].OpenRaw()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	member, err := w.CreateRaw(&header)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(member, raw); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got, err := unzip(file.Bytes(), 1<<30); err == nil || len(got) > len(content)/2 {
		t.Errorf("an archive that claims 4000 bytes: %d bytes, %v", len(got), err)
	}
}

// A zipped text has the tokens of the text, in a file and in a bucket, which is read once if the
// vocabulary is given.
func TestZippedText(t *testing.T) {
	const text = "a rose is a rose\n"
	words := Config{Source: textFile(t, text),
		Tokenizer: Tokenizer{Unit: Word, Normalize: None},
		CacheDir:  t.TempDir()}
	plain := open(t, words)
	zipped := archive(t, text, "_about.txt", "in/rose.txt", "readme.md")
	path := filepath.Join(t.TempDir(), "rose.zip")
	if err := os.WriteFile(path, zipped, 0o600); err != nil {
		t.Fatal(err)
	}
	bucket := memblob.OpenBucket(nil)
	if err := bucket.WriteAll(t.Context(), "rose.zip", zipped, nil); err != nil {
		t.Fatal(err)
	}
	words.OpenBucket = func(context.Context, string) (*blob.Bucket, error) {
		return blob.PrefixedBucket(bucket, ""), nil
	}
	for _, source := range []string{path, "s3://texts/rose.zip"} {
		for _, given := range []*Vocabulary{nil, plain.Vocabulary()} {
			cfg := words
			cfg.Source, cfg.Vocabulary = source, given
			if c := open(t, cfg); c.Fingerprint() != plain.Fingerprint() {
				t.Errorf("%s, given vocabulary %v: %d tokens", source, given != nil,
					c.Tokens().Len())
			}
		}
	}
	lines := words
	lines.Source = filepath.Join(t.TempDir(), "lines.zip")
	if err := os.WriteFile(lines.Source, archive(t, "{\"text\": \"a rose is\", \"by\": \"x\"}\n"+
		"{\"text\": \"a rose\", \"by\": \"y\"}\n", "rose.jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := open(t, lines); c.Fingerprint() != plain.Fingerprint() {
		t.Errorf("zipped lines: %d tokens", c.Tokens().Len())
	}
	lines.TextField = "by"
	if got := tokensOf(t, lines); got != "x y" {
		t.Errorf("another field of zipped lines: %q", got)
	}
	for name, file := range map[string][]byte{
		"0 files":     archive(t, text, "a.md"),
		"2 files":     archive(t, text, "a.txt", "b.txt"),
		"zip archive": []byte(text),
		"is empty":    archive(t, "", "a.txt"),
	} {
		cfg := words
		cfg.Source = filepath.Join(t.TempDir(), "wrong.zip")
		if err := os.WriteFile(cfg.Source, file, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), cfg)
		if err == nil || !strings.Contains(fmt.Sprint(err), name) ||
			!strings.Contains(err.Error(), cfg.Source) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
