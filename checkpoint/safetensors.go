package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"unicode/utf8"
)

// encode returns the bytes of a safetensors file in pieces. On a little-endian host the pieces are
// the tensors' own memory, so they are valid until the tensors change. Tensors keep the caller's
// order, so equal input gives equal bytes.
func encode(tensors []Tensor, metadata map[string]string) (iter.Seq[[]byte], error) {
	if err := checkTensors(tensors); err != nil {
		return nil, err
	}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, fmt.Errorf("metadata %q: %q is not UTF-8", key, value)
		}
	}
	header, err := appendHeader(nil, tensors, metadata)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(header, uint64(len(header)-lengthBytes))
	return func(yield func([]byte) bool) {
		for piece := range slices.Chunk(header, pieceBytes) {
			if !yield(piece) {
				return
			}
		}
		for _, t := range tensors {
			for x := range slices.Chunk(t.Data, pieceBytes/4) {
				piece := floatMemory(x)
				if !hostIsLittleEndian() {
					piece = littleEndianFloats(x)
				}
				if !yield(piece) {
					return
				}
			}
		}
	}, nil
}

// checkTensors returns an error if a safetensors file cannot hold the tensors.
func checkTensors(tensors []Tensor) error {
	seen := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		switch n, ok := elements(t.Shape); {
		case t.Name == "" || t.Name == metadataKey || !utf8.ValidString(t.Name):
			return fmt.Errorf("%q cannot name a tensor", t.Name)
		case seen[t.Name]:
			return fmt.Errorf("tensor %q comes twice", t.Name)
		case !ok || n != uint64(len(t.Data)):
			return fmt.Errorf("tensor %q has shape %v and %d elements", t.Name, t.Shape,
				len(t.Data))
		}
		seen[t.Name] = true
	}
	return nil
}

// WriteSafetensors writes tensors in the given order as a safetensors file. The metadata is
// optional and free-form. Equal arguments give equal bytes.
func WriteSafetensors(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	pieces, err := encode(tensors, metadata)
	if err != nil {
		return err
	}
	for p := range pieces {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// ReadSafetensors reads a safetensors file of size bytes. It returns the tensors in file order and
// the metadata. BF16 is widened; I64 and U64 are converted where float32 holds them exactly.
func ReadSafetensors(r io.Reader, size int64) ([]Tensor, map[string]string, error) {
	s := &source{r: r}
	infos, metadata, err := s.header(size)
	if err != nil {
		return nil, nil, err
	}
	tensors, err := allocate(infos)
	if err != nil {
		return nil, nil, err
	}
	for i, info := range infos {
		if err := s.tensor(info, tensors[i].Data); err != nil {
			return nil, nil, err
		}
	}
	return tensors, metadata, nil
}

// allocate makes the tensors that a header lists.
func allocate(infos []TensorInfo) ([]Tensor, error) {
	tensors := make([]Tensor, len(infos))
	for i, info := range infos {
		if err := toFloats(nil, nil, info.DType); err != nil {
			return nil, fmt.Errorf("tensor %q %w", info.Name, err)
		}
		tensors[i] = Tensor{info.Name, info.Shape, make([]float32, info.elements())}
	}
	return tensors, nil
}

// source reads a safetensors file once, from beginning to end.
type source struct {
	r io.Reader
	n int64 // bytes read
	// digest, if set, hashes all bytes.
	digest *digest
	// stopped, if set, returns an error to end the reading early.
	stopped func() error
	// buffers are used in turn. There are enough that the digest has finished with one before it is
	// used again: the digest holds up to digestQueue pieces and the one that it hashes.
	buffers [digestQueue + 2][]byte
	turn    int
}

// read fills p. p must not change until the digest has hashed it.
func (s *source) read(p []byte) error {
	if s.stopped != nil {
		if err := s.stopped(); err != nil {
			return &readError{err}
		}
	}
	n, err := io.ReadFull(s.r, p)
	s.n += int64(n)
	if err != nil {
		return &readError{err}
	}
	if s.digest != nil {
		s.digest.add(p)
	}
	return nil
}

// scratch reads n bytes, at most pieceBytes. The result is valid until its buffer's next turn.
func (s *source) scratch(n int) ([]byte, error) {
	s.turn = (s.turn + 1) % len(s.buffers)
	if s.buffers[s.turn] == nil {
		s.buffers[s.turn] = make([]byte, pieceBytes)
	}
	piece := s.buffers[s.turn][:n]
	return piece, s.read(piece)
}

// readError marks an error of storage, as opposed to invalid content.
type readError struct{ err error }

func (e *readError) Error() string {
	if errors.Is(e.err, io.EOF) || errors.Is(e.err, io.ErrUnexpectedEOF) {
		return "the file ends before its data"
	}
	return e.err.Error()
}

func (e *readError) Unwrap() error { return e.err }

// header reads the length and the header. size is the file's size in bytes.
func (s *source) header(size int64) ([]TensorInfo, map[string]string, error) {
	if size < lengthBytes {
		return nil, nil, fmt.Errorf("%d bytes are too few for a safetensors file", size)
	}
	length := make([]byte, lengthBytes)
	if err := s.read(length); err != nil {
		return nil, nil, err
	}
	n := binary.LittleEndian.Uint64(length)
	if n > maxHeaderBytes || int64(n) > size-lengthBytes {
		return nil, nil, fmt.Errorf("the header's length is %d in a file of %s bytes (limit %s)",
			n, commas(size), commas(maxHeaderBytes))
	}
	header := make([]byte, n)
	if err := s.read(header); err != nil {
		return nil, nil, err
	}
	return parseHeader(header, size-lengthBytes-int64(n))
}

// tensors reads the whole file. plan gives the destination of each tensor; nil skips it.
func (s *source) tensors(size int64, plan func([]TensorInfo) ([][]float32, error)) error {
	infos, _, err := s.header(size)
	if err != nil {
		return err
	}
	data, err := plan(infos)
	if err != nil {
		return err
	}
	for i, info := range infos {
		if data[i] == nil {
			err = s.skip(info.End - info.Begin)
		} else {
			err = s.tensor(info, data[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tensor reads the next tensor into dst, which has the tensor's number of elements.
func (s *source) tensor(info TensorInfo, dst []float32) error {
	size := int(dtypeBytes(info.DType))
	for x := range slices.Chunk(dst, pieceBytes/size) {
		if info.DType == "F32" && hostIsLittleEndian() {
			if err := s.read(floatMemory(x)); err != nil {
				return err
			}
			continue
		}
		piece, err := s.scratch(size * len(x))
		if err != nil {
			return err
		}
		if err := toFloats(x, piece, info.DType); err != nil {
			return fmt.Errorf("tensor %q %w", info.Name, err)
		}
	}
	return nil
}

// skip reads n bytes only to hash them.
func (s *source) skip(n int64) error {
	for n > 0 {
		piece, err := s.scratch(int(min(n, pieceBytes)))
		if err != nil {
			return err
		}
		n -= int64(len(piece))
	}
	return nil
}
