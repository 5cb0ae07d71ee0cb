package corpus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"os"
	"unsafe"
)

// The layout of a token file; all integers are little-endian:
//
//	[0, 8)    "RONDOTOK"
//	[8, 12)   version
//	[12, 16)  width of an id in bytes: 2 if all ids are below 65536, else 4
//	[16, 24)  number of ids
//	[24, 28)  length L of the header
//	[28, 60)  SHA-256 of the ids' bytes, identifies the text
//	[60, 64)  CRC-32C of the ids' bytes, detects damage quickly
//	[64, 68)  CRC-32C of the bytes [0, 64) and of the header
//	[68, 68+L) the header, JSON: the identity (source and tokenization) and a Header
//	[68+L, …) the ids
const (
	tokenFileMagic   = "RONDOTOK"
	tokenFileVersion = 1
	preludeBytes     = 68
	maxHeaderBytes   = 1 << 30
)

// castagnoli is the CRC polynomial for which processors have an instruction.
//
//nolint:gochecknoglobals // a table that nothing changes
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errCorrupt says that a token file is damaged and must be rebuilt.
var errCorrupt = errors.New("damaged token file")

// Header says what the ids of a token file are.
type Header struct {
	Vocabulary *Vocabulary `json:"vocabulary"`
	// Limit is above every id of a file that holds other numbers beside tokens. 0: the vocabulary's
	// length.
	Limit int `json:"limit,omitempty"`
	// Extra is what another package says of its file.
	Extra json.RawMessage `json:"extra,omitempty"`
}

// limit is above every id.
func (h Header) limit() int { return max(h.Limit, h.Vocabulary.Len()) }

// header is the JSON part of a token file.
type header struct {
	Identity identity `json:"identity"`
	Header
}

// prelude is the fixed part of a token file.
type prelude struct {
	width  uint32
	count  int64
	header uint32
	digest [sha256.Size]byte
	sum    uint32 // CRC-32C of the ids
}

// encode returns the prelude's bytes. They include the checksum over the prelude and the header.
func (p prelude) encode(header []byte) []byte {
	b := make([]byte, 0, preludeBytes)
	b = append(b, tokenFileMagic...)
	b = binary.LittleEndian.AppendUint32(b, tokenFileVersion)
	b = binary.LittleEndian.AppendUint32(b, p.width)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.count))
	b = binary.LittleEndian.AppendUint32(b, p.header)
	b = append(b, p.digest[:]...)
	b = binary.LittleEndian.AppendUint32(b, p.sum)
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, header)
	return binary.LittleEndian.AppendUint32(b, sum)
}

// TokenWriter writes the ids of a token file.
type TokenWriter struct {
	prelude
	dst     io.WriteSeeker
	text    []byte // the header
	hash    hash.Hash
	pending []byte // ids not yet written
}

func newTokenWriter(dst io.WriteSeeker, id identity, h Header) (*TokenWriter, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // a tokenizer.json keeps its bytes
	if err := e.Encode(header{id, h}); err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	if text.Len() > maxHeaderBytes {
		return nil, fmt.Errorf("the vocabulary takes %d bytes, more than %d: "+
			"raise --min-frequency", text.Len(), maxHeaderBytes)
	}
	w := &TokenWriter{
		prelude: prelude{width: 2, header: uint32(text.Len())},
		dst:     dst,
		text:    text.Bytes(),
		hash:    sha256.New(),
		pending: make([]byte, 0, blockBytes),
	}
	if h.limit() > math.MaxUint16+1 {
		w.width = 4
	}
	// The prelude is known only at the end. Until then it is zero, and no reader accepts that.
	if _, err := dst.Write(append(make([]byte, preludeBytes), w.text...)); err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return w, nil
}

// Put appends an id, which must be below the header's limit.
func (w *TokenWriter) Put(id int32) error {
	if w.width == 2 {
		w.pending = binary.LittleEndian.AppendUint16(w.pending, uint16(id))
	} else {
		w.pending = binary.LittleEndian.AppendUint32(w.pending, uint32(id))
	}
	w.count++
	if len(w.pending) < cap(w.pending) {
		return nil
	}
	return w.flush()
}

func (w *TokenWriter) flush() error {
	w.hash.Write(w.pending)
	w.sum = crc32.Update(w.sum, castagnoli, w.pending)
	if _, err := w.dst.Write(w.pending); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	w.pending = w.pending[:0]
	return nil
}

// Finish writes what is pending. A file without it is not accepted.
func (w *TokenWriter) Finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	w.hash.Sum(w.digest[:0])
	if _, err := w.dst.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if _, err := w.dst.Write(w.encode(w.text)); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	return nil
}

// TokenFile is an open token file. Its methods may be called concurrently.
type TokenFile struct {
	prelude
	head  Header
	name  string
	ids   io.ReaderAt // all ids
	close func() error
}

// Header returns what the ids are.
func (t *TokenFile) Header() Header { return t.head }

// Digest is the SHA-256 of the ids.
func (t *TokenFile) Digest() [sha256.Size]byte { return t.digest }

// Close releases the file.
func (t *TokenFile) Close() error { return t.close() }

// openTokenFile opens a token file and verifies its whole content. The error wraps errCorrupt if
// the content is wrong, but not if reading fails.
func openTokenFile(ctx context.Context, path string) (*TokenFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, err
	}
	t, err := readTokenFile(ctx, file, info.Size())
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.name, t.close = path, file.Close
	return t, nil
}

// readTokenFile reads and verifies a token file of the given size.
func readTokenFile(ctx context.Context, r io.ReaderAt, size int64) (*TokenFile, error) {
	var fixed [preludeBytes]byte
	if size < preludeBytes {
		return nil, fmt.Errorf("%w: %d bytes", errCorrupt, size)
	}
	if _, err := r.ReadAt(fixed[:], 0); err != nil {
		return nil, err
	}
	p := prelude{
		width:  binary.LittleEndian.Uint32(fixed[12:]),
		count:  int64(binary.LittleEndian.Uint64(fixed[16:])),
		header: binary.LittleEndian.Uint32(fixed[24:]),
		digest: [sha256.Size]byte(fixed[28:60]),
		sum:    binary.LittleEndian.Uint32(fixed[60:]),
	}
	start := preludeBytes + int64(p.header)
	switch {
	case string(fixed[:8]) != tokenFileMagic:
		return nil, fmt.Errorf("%w: not a token file", errCorrupt)
	case binary.LittleEndian.Uint32(fixed[8:]) != tokenFileVersion:
		return nil, fmt.Errorf("%w: it has another version", errCorrupt)
	case p.width != 2 && p.width != 4, p.header > maxHeaderBytes,
		p.count < 0, start > size, p.count > (size-start)/int64(p.width),
		p.count*int64(p.width) != size-start:
		return nil, fmt.Errorf("%w: %d bytes do not match its header", errCorrupt, size)
	}
	text := make([]byte, p.header)
	if _, err := r.ReadAt(text, preludeBytes); err != nil {
		return nil, err
	}
	if !bytes.Equal(p.encode(text), fixed[:]) {
		return nil, fmt.Errorf("%w: the header has another checksum", errCorrupt)
	}
	var h header
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("%w: the header: %w", errCorrupt, err)
	}
	if h.Vocabulary == nil {
		return nil, fmt.Errorf("%w: the header has no vocabulary", errCorrupt)
	}
	t := &TokenFile{
		prelude: p,
		head:    h.Header,
		ids:     io.NewSectionReader(r, start, size-start),
	}
	if err := t.verify(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// verify reads all ids. It checks their checksum, and that each is in the vocabulary.
func (t *TokenFile) verify(ctx context.Context) error {
	var sum uint32
	r := io.NewSectionReader(t.ids, 0, t.count*int64(t.width))
	block := make([]byte, min(blockBytes, r.Size()))
	var greatest uint32
	for left := r.Size(); left > 0; left -= int64(len(block)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		block = block[:min(int64(len(block)), left)]
		if _, err := io.ReadFull(r, block); err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, block)
		greatest = max(greatest, t.greatest(block))
	}
	if sum != t.sum {
		return fmt.Errorf("%w: the ids have another checksum", errCorrupt)
	}
	if t.count > 0 && int64(greatest) >= int64(t.head.limit()) {
		return fmt.Errorf("%w: id %d is not below %d", errCorrupt, greatest, t.head.limit())
	}
	return nil
}

// greatest returns the greatest id of a block.
func (t *TokenFile) greatest(block []byte) uint32 {
	var most uint32
	if t.width == 2 {
		for ; len(block) >= 2; block = block[2:] {
			most = max(most, uint32(binary.LittleEndian.Uint16(block)))
		}
		return most
	}
	for ; len(block) >= 4; block = block[4:] {
		most = max(most, binary.LittleEndian.Uint32(block))
	}
	return most
}

// Len returns the number of tokens.
func (t *TokenFile) Len() int64 { return t.count }

// ReadTokens reads a range of the file. It does not allocate and may be called concurrently.
func (t *TokenFile) ReadTokens(dst []int32, off int64) error {
	checkRange(int64(len(dst)), off, t.count)
	if len(dst) == 0 {
		return nil
	}
	// The ids are read into the end of dst's memory and widened in place from its start. Writing id
	// i never overwrites ids that are not widened yet.
	width := int(t.width)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 4*len(dst))
	packed := memory[(4-width)*len(dst):]
	if n, err := t.ids.ReadAt(packed, off*int64(width)); n < len(packed) {
		return fmt.Errorf("read tokens [%d, %d) of %s: %w", off, off+int64(len(dst)), t.name, err)
	}
	if width == 2 {
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(packed[2*i:]))
		}
		return nil
	}
	for i := range dst {
		dst[i] = int32(binary.LittleEndian.Uint32(packed[4*i:]))
	}
	return nil
}
