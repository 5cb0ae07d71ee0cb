package corpus

import (
	"bytes"
	"cmp"
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
	"sync"
	"sync/atomic"
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
//	[60, 64)  CRC-32C of the blocks' checksums, at the end
//	[64, 72)  number D of documents; 0: unknown
//	[72, 76)  CRC-32C of the documents' ends
//	[76, 80)  CRC-32C of the bytes [0, 76) and of the header
//	[80, 80+L) the header, JSON: the identity (source and tokenization) and a Header
//	[80+L, …) the ids; then for each block of 256 KiB of them its CRC-32C; then for each document
//	          the number of ids up to its end, in 8 bytes
const (
	tokenFileMagic   = "RONDOTOK"
	tokenFileVersion = 2
	preludeBytes     = 80
	maxHeaderBytes   = 1 << 30
	// maxDocuments bounds the memory for the ends of documents. Of more, none are kept.
	maxDocuments = 1 << 24
	// maxEager is the size up to which all ids are verified when a file is opened. Those of a
	// larger file are verified block by block, each when it is first read.
	maxEager = 64 << 20
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
	sum    uint32 // CRC-32C of the blocks' checksums
	// documents is the number of their ends, and endsSum the CRC-32C of these.
	documents int64
	endsSum   uint32
}

// idBytes is the size of the ids.
func (p prelude) idBytes() int64 { return p.count * int64(p.width) }

// blocks is the number of checksums of ids.
func (p prelude) blocks() int64 { return (p.idBytes() + blockBytes - 1) / blockBytes }

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
	b = binary.LittleEndian.AppendUint64(b, uint64(p.documents))
	b = binary.LittleEndian.AppendUint32(b, p.endsSum)
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, header)
	return binary.LittleEndian.AppendUint32(b, sum)
}

// TokenWriter writes the ids of a token file.
type TokenWriter struct {
	prelude
	vocabulary *Vocabulary
	dst        io.WriteSeeker
	text       []byte // the header
	hash       hash.Hash
	pending    []byte // ids not yet written: a block
	sums       []byte // the blocks' checksums
	ends       documentEnds
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
		prelude:    prelude{width: 2, header: uint32(text.Len())},
		vocabulary: h.Vocabulary,
		dst:        dst,
		text:       text.Bytes(),
		hash:       sha256.New(),
		pending:    make([]byte, 0, blockBytes),
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
	w.pending = appendID(w.pending, w.width, id)
	w.count++
	if len(w.pending) < cap(w.pending) {
		return nil
	}
	return w.flush()
}

func appendID(to []byte, width uint32, id int32) []byte {
	if width == 2 {
		return binary.LittleEndian.AppendUint16(to, uint16(id))
	}
	return binary.LittleEndian.AppendUint32(to, uint32(id))
}

// pack appends ids of a width.
func pack(packed []byte, width uint32, ids []int32) []byte {
	for _, id := range ids {
		packed = appendID(packed, width, id)
	}
	return packed
}

// putPacked appends ids that have the file's width.
func (w *TokenWriter) putPacked(ids []byte) error {
	w.count += int64(len(ids) / int(w.width))
	for len(ids) > 0 {
		n := min(len(ids), cap(w.pending)-len(w.pending))
		w.pending, ids = append(w.pending, ids[:n]...), ids[n:]
		if len(w.pending) == cap(w.pending) {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// documentEnds are the numbers of ids up to the end of each document.
type documentEnds struct {
	count  int64
	packed []byte
}

// add adds the ends of a block, before which there are so many ids.
func (d *documentEnds) add(before int64, ends []int) {
	for _, end := range ends {
		if d.count++; d.count <= maxDocuments {
			d.packed = binary.LittleEndian.AppendUint64(d.packed, uint64(before+int64(end)))
		}
	}
}

// flush writes a block.
func (w *TokenWriter) flush() error {
	if len(w.pending) == 0 {
		return nil
	}
	w.hash.Write(w.pending)
	w.sums = binary.LittleEndian.AppendUint32(w.sums, crc32.Checksum(w.pending, castagnoli))
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
	if w.ends.count > maxDocuments {
		w.ends = documentEnds{}
	}
	w.documents = w.ends.count
	w.sum = crc32.Checksum(w.sums, castagnoli)
	w.endsSum = crc32.Checksum(w.ends.packed, castagnoli)
	if _, err := w.dst.Write(append(w.sums, w.ends.packed...)); err != nil {
		return fmt.Errorf("token file: %w", err)
	}
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
	rest  io.ReaderAt // the ends of documents
	close func() error

	sums     []uint32        // of the blocks
	verified []atomic.Uint32 // a bit for each block
	checking sync.Mutex      // holds block
	block    []byte
}

// Header returns what the ids are.
func (t *TokenFile) Header() Header { return t.head }

// Digest is the SHA-256 of the ids.
func (t *TokenFile) Digest() [sha256.Size]byte { return t.digest }

// Close releases the file.
func (t *TokenFile) Close() error { return t.close() }

// openTokenFile opens a token file and verifies its header, and the ids of one that is not large.
// The error wraps errCorrupt if the content is wrong, but not if reading fails.
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

// readHeader reads a token file's prelude and header, and checks them against the file's size.
func readHeader(r io.ReaderAt, size int64) (p prelude, h header, err error) {
	var fixed [preludeBytes]byte
	if size < preludeBytes {
		return p, h, fmt.Errorf("%w: %d bytes", errCorrupt, size)
	}
	if _, err := r.ReadAt(fixed[:], 0); err != nil {
		return p, h, err
	}
	p = prelude{
		width:     binary.LittleEndian.Uint32(fixed[12:]),
		count:     int64(binary.LittleEndian.Uint64(fixed[16:])),
		header:    binary.LittleEndian.Uint32(fixed[24:]),
		digest:    [sha256.Size]byte(fixed[28:60]),
		sum:       binary.LittleEndian.Uint32(fixed[60:]),
		documents: int64(binary.LittleEndian.Uint64(fixed[64:])),
		endsSum:   binary.LittleEndian.Uint32(fixed[72:]),
	}
	start := preludeBytes + int64(p.header)
	switch {
	case string(fixed[:8]) != tokenFileMagic:
		return p, h, fmt.Errorf("%w: not a token file", errCorrupt)
	case binary.LittleEndian.Uint32(fixed[8:]) != tokenFileVersion:
		return p, h, fmt.Errorf("%w: it has another version", errCorrupt)
	case p.width != 2 && p.width != 4, p.header > maxHeaderBytes,
		p.documents < 0 || p.documents > maxDocuments,
		p.count < 0, start > size, p.count > (size-start)/int64(p.width),
		p.idBytes()+4*p.blocks()+8*p.documents != size-start:
		return p, h, fmt.Errorf("%w: %d bytes do not match its header", errCorrupt, size)
	}
	text := make([]byte, p.header)
	if _, err := r.ReadAt(text, preludeBytes); err != nil {
		return p, h, err
	}
	if !bytes.Equal(p.encode(text), fixed[:]) {
		return p, h, fmt.Errorf("%w: the header has another checksum", errCorrupt)
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return p, h, fmt.Errorf("%w: the header: %w", errCorrupt, err)
	}
	if h.Vocabulary == nil {
		return p, h, fmt.Errorf("%w: the header has no vocabulary", errCorrupt)
	}
	return p, h, nil
}

// readTokenFile reads a token file of the given size and verifies it, as openTokenFile does.
func readTokenFile(ctx context.Context, r io.ReaderAt, size int64) (*TokenFile, error) {
	p, h, err := readHeader(r, size)
	if err != nil {
		return nil, err
	}
	start := preludeBytes + int64(p.header)
	end := start + p.idBytes()
	t := &TokenFile{
		prelude:  p,
		head:     h.Header,
		ids:      io.NewSectionReader(r, start, p.idBytes()),
		rest:     io.NewSectionReader(r, end+4*p.blocks(), 8*p.documents),
		sums:     make([]uint32, p.blocks()),
		verified: make([]atomic.Uint32, (p.blocks()+31)/32),
		block:    make([]byte, min(blockBytes, p.idBytes())),
	}
	sums := make([]byte, 4*len(t.sums))
	if _, err := r.ReadAt(sums, end); err != nil && len(sums) > 0 {
		return nil, err
	}
	if crc32.Checksum(sums, castagnoli) != p.sum {
		return nil, fmt.Errorf("%w: the blocks' checksums have another checksum", errCorrupt)
	}
	for i := range t.sums {
		t.sums[i] = binary.LittleEndian.Uint32(sums[4*i:])
	}
	for i := int64(0); i < p.blocks() && p.idBytes() <= maxEager; i++ {
		if err := cmp.Or(ctx.Err(), t.verify(i)); err != nil {
			return nil, err
		}
	}
	if p.documents <= maxEager/8 {
		if _, err := t.documentEnds(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// documentEnds reads the number of ids up to the end of each document; nil: they are unknown.
func (t *TokenFile) documentEnds() ([]int64, error) {
	packed := make([]byte, 8*t.documents)
	if n, err := t.rest.ReadAt(packed, 0); n < len(packed) {
		return nil, err
	}
	if crc32.Checksum(packed, castagnoli) != t.endsSum {
		return nil, fmt.Errorf("%w: the ends of documents have another checksum", errCorrupt)
	}
	var ends []int64
	for before := int64(0); len(packed) > 0; packed = packed[8:] {
		end := int64(binary.LittleEndian.Uint64(packed))
		if end < before || end > t.count {
			return nil, fmt.Errorf("%w: a document ends at id %d", errCorrupt, end)
		}
		ends, before = append(ends, end), end
	}
	return ends, nil
}

// verify checks a block's checksum, and that each of its ids is below the limit, unless it has
// before.
func (t *TokenFile) verify(block int64) error {
	word, bit := &t.verified[block/32], uint32(1)<<(block%32)
	if word.Load()&bit != 0 {
		return nil
	}
	t.checking.Lock()
	defer t.checking.Unlock()
	from := block * blockBytes
	ids := t.block[:min(blockBytes, t.idBytes()-from)]
	if n, err := t.ids.ReadAt(ids, from); n < len(ids) {
		return err
	}
	if crc32.Checksum(ids, castagnoli) != t.sums[block] {
		return fmt.Errorf("%w: the ids have another checksum", errCorrupt)
	}
	if greatest := t.greatest(ids); int64(greatest) >= int64(t.head.limit()) {
		return fmt.Errorf("%w: id %d is not below %d", errCorrupt, greatest, t.head.limit())
	}
	word.Or(bit)
	return nil
}

// damaged removes the name of a file that is damaged, as err says, so that the next process to open
// it makes it anew. Other errors are returned as they are.
func (t *TokenFile) damaged(err error) error {
	if !errors.Is(err, errCorrupt) {
		return err
	}
	os.Remove(t.name)
	return &PassingError{fmt.Errorf("%w: it is made anew at the next start", err)}
}

// verifyRange verifies the blocks that have the tokens [from, to).
func (t *TokenFile) verifyRange(from, to int64) error {
	width := int64(t.width)
	for block := from * width / blockBytes; block*blockBytes < to*width; block++ {
		if err := t.verify(block); err != nil {
			return t.damaged(err)
		}
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
	if err := t.verifyRange(off, off+int64(len(dst))); err != nil {
		return fmt.Errorf("read tokens [%d, %d) of %s: %w", off, off+int64(len(dst)), t.name, err)
	}
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
