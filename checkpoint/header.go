package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A safetensors file is the header's length as a little-endian uint64, the header, and the
// tensors' bytes (https://github.com/huggingface/safetensors, README, "Format").
const (
	lengthBytes     = 8
	maxHeaderBytes  = 100_000_000
	headerAlignment = 8 // so that the data begins aligned for every dtype
	metadataKey     = "__metadata__"
)

// TensorInfo describes a tensor, as the file's header does.
type TensorInfo struct {
	Name  string
	DType string // the format's name, for example F32
	Shape []int
	// Begin and End are the tensor's byte range in the data, which follows the header.
	Begin, End int64
}

// elements is the product of the shape. parseHeader has checked that it does not overflow.
func (t TensorInfo) elements() int {
	n, _ := elements(t.Shape)
	return int(n)
}

// appendHeader appends the length and the header of a file that holds the tensors. Their data
// follows in the same order, without gaps.
func appendHeader(b []byte, tensors []Tensor, metadata map[string]string) ([]byte, error) {
	b = append(b, make([]byte, lengthBytes)...)
	b = append(b, '{')
	if len(metadata) > 0 {
		m, err := json.Marshal(metadata) // in sorted order
		if err != nil {
			return nil, fmt.Errorf("encode the metadata: %w", err)
		}
		b = append(b, `"`+metadataKey+`":`...)
		b = append(b, m...)
	}
	end := int64(0)
	for i, t := range tensors {
		if i > 0 || len(metadata) > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, fmt.Errorf("encode the name of tensor %q: %w", t.Name, err)
		}
		b = append(append(b, name...), `:{"dtype":"F32","shape":[`...)
		for j, d := range t.Shape {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(d), 10)
		}
		begin := end
		end += 4 * int64(len(t.Data))
		b = append(b, `],"data_offsets":[`...)
		b = append(strconv.AppendInt(b, begin, 10), ',')
		b = append(strconv.AppendInt(b, end, 10), "]}"...)
	}
	b = append(b, '}')
	for len(b)%headerAlignment != 0 {
		b = append(b, ' ')
	}
	if n := len(b) - lengthBytes; n > maxHeaderBytes {
		return nil, fmt.Errorf("the header of %d tensors takes %s bytes, more than the %s that "+
			"safetensors allows", len(tensors), commas(int64(n)), commas(maxHeaderBytes))
	}
	return b, nil
}

// parseHeader reads the JSON header of a file with dataBytes of data after it. It
// returns the tensors in file order. They must cover the data without gaps or overlaps.
func parseHeader(header []byte, dataBytes int64) ([]TensorInfo, map[string]string, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, errors.New("the header does not begin with {")
	}
	if !utf8.Valid(header) {
		return nil, nil, errors.New("the header is not UTF-8")
	}
	p := headerParser{json.NewDecoder(bytes.NewReader(header))}
	p.dec.UseNumber()
	var infos []TensorInfo
	var metadata map[string]string
	err := p.object(func(key string) (err error) {
		if key == metadataKey {
			metadata, err = p.metadata()
			return err
		}
		info, err := p.tensor(key)
		infos = append(infos, info)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the header is not valid: %w", err)
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("the header goes on after its JSON object")
	}
	if err := checkTiling(infos, dataBytes); err != nil {
		return nil, nil, err
	}
	return infos, metadata, nil
}

// checkTiling sorts the tensors by offset. It returns an error unless they cover the data exactly.
func checkTiling(infos []TensorInfo, dataBytes int64) error {
	slices.SortStableFunc(infos, func(a, b TensorInfo) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	end := int64(0)
	for _, t := range infos {
		if t.Begin != end {
			return fmt.Errorf("tensor %q begins at byte %d of the data where %d is next: "+
				"a hole or an overlap", t.Name, t.Begin, end)
		}
		end = t.End
	}
	if end != dataBytes {
		return fmt.Errorf("the tensors take %s bytes of data, the file has %s",
			commas(end), commas(dataBytes))
	}
	return nil
}

// headerParser reads the header token by token, because json.Unmarshal accepts repeated keys, keys
// in another case, and null for any value.
type headerParser struct{ dec *json.Decoder }

// object reads an object. It calls field for every key, and field reads the value.
func (p headerParser) object(field func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for p.dec.More() {
		key, err := p.text()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("the key %q comes twice", key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

// metadata reads the free-form map of strings.
func (p headerParser) metadata() (map[string]string, error) {
	m := make(map[string]string)
	err := p.object(func(key string) (err error) {
		m[key], err = p.text()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", metadataKey, err)
	}
	return m, nil
}

// tensor reads one tensor's entry.
func (p headerParser) tensor(name string) (TensorInfo, error) {
	t := TensorInfo{Name: name}
	var offsets []int
	fields := 0
	err := p.object(func(key string) (err error) {
		fields++
		switch key {
		case "dtype":
			t.DType, err = p.text()
		case "shape":
			t.Shape, err = p.integers()
		case "data_offsets":
			offsets, err = p.integers()
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		return err
	})
	if err == nil && (fields != 3 || len(offsets) != 2) {
		err = errors.New("needs dtype, shape and two data_offsets")
	}
	if err != nil {
		return t, fmt.Errorf("tensor %q: %w", name, err)
	}
	t.Begin, t.End = int64(offsets[0]), int64(offsets[1])
	return t, t.check()
}

// check returns an error unless the tensor's byte range fits its shape and dtype.
func (t TensorInfo) check() error {
	size := dtypeBytes(t.DType)
	if size == 0 {
		return fmt.Errorf("tensor %q: unknown dtype %q", t.Name, t.DType)
	}
	n, ok := elements(t.Shape)
	if !ok {
		return fmt.Errorf("tensor %q: the shape %v is too large", t.Name, t.Shape)
	}
	if t.End < t.Begin || uint64(t.End-t.Begin)%size != 0 || uint64(t.End-t.Begin)/size != n {
		return fmt.Errorf("tensor %q: data_offsets [%d, %d] do not hold %s elements of shape %v",
			t.Name, t.Begin, t.End, t.DType, t.Shape)
	}
	return nil
}

// integers reads an array of integers that are not negative.
func (p headerParser) integers() ([]int, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []int{}
	for p.dec.More() {
		token, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%v where an integer should be", token)
		}
		n, err := strconv.ParseUint(number.String(), 10, strconv.IntSize-1)
		if err != nil {
			return nil, fmt.Errorf("%s is not an integer from 0 on", number)
		}
		list = append(list, int(n))
	}
	return list, p.delim(']')
}

// text reads a string.
func (p headerParser) text() (string, error) {
	token, err := p.dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := token.(string)
	if !ok {
		return "", fmt.Errorf("%v where a string should be", token)
	}
	return s, nil
}

// delim reads one of { } [ ].
func (p headerParser) delim(want json.Delim) error {
	token, err := p.dec.Token()
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("%v where %v should be", token, want)
	}
	return nil
}
