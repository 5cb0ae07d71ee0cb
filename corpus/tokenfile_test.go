package corpus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// memoryFile is an io.WriteSeeker in memory.
type memoryFile struct {
	bytes []byte
	at    int
}

func (m *memoryFile) Write(p []byte) (int, error) {
	if grow := m.at + len(p) - len(m.bytes); grow > 0 {
		m.bytes = append(m.bytes, make([]byte, grow)...)
	}
	m.at += copy(m.bytes[m.at:], p)
	return len(p), nil
}

func (m *memoryFile) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart {
		return 0, errors.New("only from the start")
	}
	m.at = int(offset)
	return offset, nil
}

// encodedTokens returns a token file's bytes.
func encodedTokens(t testing.TB, ids []int32, vocabulary int) []byte {
	t.Helper()
	var file memoryFile
	if err := writeTokens(&file, ids, vocabulary); err != nil {
		t.Fatal(err)
	}
	return file.bytes
}

func TestTokenFileRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, vocabulary := range []int{1, 300, 1 << 16, 1<<16 + 1} {
		ids := make([]int32, 3000)
		for i := range ids {
			ids[i] = int32(random.IntN(vocabulary))
		}
		ids[7] = int32(vocabulary - 1)
		file := encodedTokens(t, ids, vocabulary)
		got, err := readTokenFile(t.Context(), bytes.NewReader(file), int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		if want := uint32(2 + 2*(vocabulary>>16)&^1); vocabulary <= 1<<16 && got.width != 2 ||
			vocabulary > 1<<16 && got.width != 4 {
			t.Errorf("vocabulary %d: width %d; want %d", vocabulary, got.width, want)
		}
		var wait sync.WaitGroup
		for worker := range uint64(2) {
			wait.Go(func() {
				random := rand.New(rand.NewPCG(worker, 3))
				for range 300 {
					from := random.IntN(len(ids) + 1)
					dst := make([]int32, random.IntN(len(ids)-from+1))
					if err := got.ReadTokens(dst, int64(from)); err != nil {
						t.Error(err)
					}
					if !slices.Equal(dst, ids[from:from+len(dst)]) {
						t.Errorf("vocabulary %d: tokens [%d, %d) differ", vocabulary, from,
							from+len(dst))
					}
				}
			})
		}
		wait.Wait()
	}
}

func TestReadingBeyondTheEndPanics(t *testing.T) {
	ids := IDs{1, 2, 3}
	for name, read := range map[string]func(){
		"IDs":      func() { _ = ids.ReadTokens(make([]int32, 2), 2) },
		"negative": func() { _ = ids.ReadTokens(make([]int32, 1), -1) },
		"slice":    func() { _ = Slice(ids, 0, 2).ReadTokens(make([]int32, 3), 0) },
		"bounds":   func() { Slice(ids, 2, 4) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			read()
		}()
	}
}

func TestAFileTruncatedInUseIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, encodedTokens(t, make([]int32, 100), 3), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := openTokenFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := os.Truncate(path, 150); err != nil {
		t.Fatal(err)
	}
	if err := file.ReadTokens(make([]int32, 100), 0); !errors.Is(err, io.EOF) {
		t.Errorf("%v; want the end of the file", err)
	}
}

func TestAnIdBeyondTheVocabularyIsDamage(t *testing.T) {
	for _, vocabulary := range []int{3, 1<<16 + 1} {
		file := encodedTokens(t, []int32{0, int32(vocabulary)}, vocabulary)
		_, err := readTokenFile(t.Context(), bytes.NewReader(file), int64(len(file)))
		if !errors.Is(err, errCorrupt) {
			t.Errorf("vocabulary %d: %v", vocabulary, err)
		}
	}
}

// A file may hold other numbers beside tokens, below its limit.
func TestALimitBeyondTheVocabulary(t *testing.T) {
	v, err := NewVocabulary([]string{Unknown})
	if err != nil {
		t.Fatal(err)
	}
	for limit, width := range map[int]uint32{10: 2, 1 << 16: 2, 1<<16 + 1: 4} {
		var file memoryFile
		w, err := newTokenWriter(&file, identity{}, Header{Vocabulary: v, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Put(int32(limit-1)), w.Finish()); err != nil {
			t.Fatal(err)
		}
		got, err := readTokenFile(t.Context(), bytes.NewReader(file.bytes), int64(len(file.bytes)))
		if err != nil || got.width != width || all(t, got)[0] != int32(limit-1) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	var file memoryFile
	w, err := newTokenWriter(&file, identity{}, Header{Vocabulary: v, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Put(10), w.Finish()); err != nil {
		t.Fatal(err)
	}
	_, err = readTokenFile(t.Context(), bytes.NewReader(file.bytes), int64(len(file.bytes)))
	if !errors.Is(err, errCorrupt) {
		t.Errorf("an id of the limit: %v", err)
	}
}

// FuzzTokenFile: any bytes are refused, or give tokens of their vocabulary. It tries the bytes as
// they are, and with valid checksums.
func FuzzTokenFile(f *testing.F) {
	good := encodedTokens(f, []int32{0, 1, 2, 1}, 3)
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(good[:preludeBytes])
	f.Add([]byte(tokenFileMagic))
	f.Add(encodedTokens(f, []int32{3}, 3))
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, file := range [][]byte{file, signed(file)} {
			got, err := readTokenFile(context.Background(), bytes.NewReader(file),
				int64(len(file)))
			if err != nil {
				if !errors.Is(err, errCorrupt) {
					t.Fatalf("bytes that are there cannot be read: %v", err)
				}
				continue
			}
			for _, id := range all(t, got) {
				if id < 0 || int(id) >= got.head.limit() {
					t.Fatalf("id %d is not below %d", id, got.head.limit())
				}
			}
		}
	})
}

// signed returns a copy of the bytes with the magic, version and checksums of a token file, if
// there is room for them.
func signed(file []byte) []byte {
	if len(file) < preludeBytes {
		return file
	}
	file = slices.Clone(file)
	length := binary.LittleEndian.Uint32(file[24:])
	if int64(length) > int64(len(file)-preludeBytes) {
		return file
	}
	header, rest := file[preludeBytes:preludeBytes+length], file[preludeBytes+length:]
	p := prelude{
		width:     binary.LittleEndian.Uint32(file[12:]),
		count:     int64(binary.LittleEndian.Uint64(file[16:])),
		header:    length,
		digest:    [sha256.Size]byte(file[28:60]),
		documents: int64(binary.LittleEndian.Uint64(file[64:])),
	}
	if p.width > 0 && p.count >= 0 && p.count <= int64(len(rest))/int64(p.width) &&
		p.idBytes()+4*p.blocks() <= int64(len(rest)) {
		ids, sums := rest[:p.idBytes()], rest[p.idBytes():p.idBytes()+4*p.blocks()]
		for i := range int(p.blocks()) {
			block := ids[i*blockBytes : min(len(ids), (i+1)*blockBytes)]
			binary.LittleEndian.PutUint32(sums[4*i:], crc32.Checksum(block, castagnoli))
		}
		p.sum = crc32.Checksum(sums, castagnoli)
	}
	copy(file, p.encode(header))
	return file
}
