package corpus

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// Empty lines and documents fill blocks too.
func TestEmptyPiecesAreBounded(t *testing.T) {
	const count = 3*blockPieces + 1
	blocks, marks, documents := 0, 0, 0
	c := newCutter(Word, func() []byte { return nil }, func(b block) error {
		blocks++
		if len(b.pieces) > blockPieces {
			t.Errorf("a block of %d pieces", len(b.pieces))
		}
		return b.each(func(_ []byte, p piece) error {
			if p.mark {
				marks++
			}
			if p.document {
				documents++
			}
			return nil
		})
	})
	lines := Tokenizer{Unit: Word, Normalize: None, Ends: LineEnds}
	err := lines.cutDocument(t.Context(), strings.NewReader(strings.Repeat("\n", count)), c)
	for range count {
		err = errors.Join(err, lines.cutDocument(t.Context(), strings.NewReader(""), c))
	}
	err = errors.Join(err, c.flush())
	if err != nil || marks != count || documents != count+1 || blocks < 7 {
		t.Errorf("%d lines and %d documents in %d blocks, %v", marks, documents, blocks, err)
	}
}

// The error of a text's first wrong place is returned, also if a later one is known before it.
func TestFirstError(t *testing.T) {
	first, later, known := errors.New("first"), errors.New("later"), make(chan struct{})
	files := reading{
		func(document func(io.Reader) error) error { return document(strings.NewReader("text")) },
		func(func(io.Reader) error) error {
			defer close(known)
			return later
		},
	}
	err := scanTexts(t.Context(), split(Char, None), files, func() func(block) (int, error) {
		return func(block) (int, error) {
			<-known
			return 0, first
		}
	}, func(int) error { return nil })
	if !errors.Is(err, first) {
		t.Errorf("%v; want %v", err, first)
	}
}

// Objects that are read ahead are copies: one that waits for those before it does not hold its
// transfer up, which would be ended.
func TestObjectsReadAheadAreCopies(t *testing.T) {
	files, err := openTexts(t.Context(), "mem://bucket/texts/", DefaultField,
		func(ctx context.Context, _ string) (*blob.Bucket, error) {
			bucket := memblob.OpenBucket(nil)
			return bucket, errors.Join(bucket.WriteAll(ctx, "texts/a.txt", []byte("one"), nil),
				bucket.WriteAll(ctx, "texts/b.txt", []byte("two"), nil))
		})
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()
	var got []string
	err = files.passes(t.Context(), t.TempDir(), []func(reading) error{func(read reading) error {
		for _, file := range read {
			if err := file(func(text io.Reader) error {
				if _, ok := text.(seekable); !ok {
					t.Errorf("%T: the transfer itself is read", text)
				}
				all, err := io.ReadAll(text)
				got = append(got, string(all))
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil || strings.Join(got, " ") != "one two" {
		t.Errorf("%q, %v", got, err)
	}
}

// A checkpoint can have the names of all files.
func TestNamesAreUTF8(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "caf\xe9.txt"), []byte("one"), 0o600); err != nil {
		t.Skipf("the file system has no such names: %v", err)
	}
	cfg := Config{Source: folder, Tokenizer: split(Word, None), CacheDir: t.TempDir()}
	for range 2 { // made, and from the cache
		if name := open(t, cfg).Files()[0].Name; !utf8.ValidString(name) ||
			filepath.Base(name) != "caf\uFFFD.txt" {
			t.Errorf("%q", name)
		}
	}
}

// Damaged ends of documents are known to be, and the file is made anew.
func TestDamagedEnds(t *testing.T) {
	cfg := Config{Source: textFiles(t, map[string]string{"a.txt": "one", "b.txt": "two"}),
		Tokenizer: split(Word, None), CacheDir: t.TempDir()}
	c := open(t, cfg)
	c.file.endsSum++
	var passing *PassingError
	if _, err := shuffle(c.file, 1); !errors.As(err, &passing) {
		t.Error(err)
	}
	if left := tokenFiles(t, cfg.CacheDir); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}
