package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// file makes a safetensors file from a header's JSON and zeros.
func file(header string, dataBytes int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, dataBytes)...)
}

// entry makes the JSON of one tensor in a header.
func entry(name, dtype, shape, offsets string) string {
	return fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":%s}`, name, dtype, shape,
		offsets)
}

func TestReadSafetensorsRefuses(t *testing.T) {
	good := entry("a", "F32", "[2,3]", "[0,24]")
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"nothing", nil, "0 bytes are too few"},
		{"short", make([]byte, 7), "7 bytes are too few"},
		{"header longer than the file", file("{}", 0)[:9], "the header's length is 2"},
		{"header over the limit", append([]byte{1, 0xe1, 0xf5, 5, 0, 0, 0, 0}, "{}"...),
			"limit 100,000,000"},
		{"header of 2^64-1", bytes.Repeat([]byte{255}, 64), "length is 18446744073709551615"},
		{"empty header", file("", 0), "does not begin with {"},
		{"leading space", file(" {}", 0), "does not begin with {"},
		{"array", file("[]", 0), "does not begin with {"},
		{"no end", file("{", 0), "the header is not valid"},
		{"not UTF-8", file("{\"\xff\":1}", 0), "not UTF-8"},
		{"after the end", file("{} x", 0), "goes on"},
		{"two objects", file("{}{}", 0), "goes on"},
		{"data without tensors", file("{}", 4), "the tensors take 0 bytes of data, the file has 4"},
		{"more data", file("{"+good+"}", 28), "take 24 bytes of data, the file has 28"},
		{"less data", file("{"+good+"}", 20), "take 24 bytes of data, the file has 20"},
		{"hole at the start", file("{"+entry("a", "F32", "[1]", "[4,8]")+"}", 8),
			"begins at byte 4"},
		{"hole", file("{"+good+","+entry("b", "F32", "[1]", "[28,32]")+"}", 32),
			`tensor "b" begins at byte 28 of the data where 24 is next`},
		{"overlap", file("{"+good+","+entry("b", "F32", "[2]", "[20,28]")+"}", 28),
			`tensor "b" begins at byte 20`},
		{"shape and range differ", file("{"+entry("a", "F32", "[2,2]", "[0,24]")+"}", 24),
			"do not hold F32 elements of shape [2 2]"},
		{"range backwards", file("{"+entry("a", "F32", "[1]", "[8,4]")+"}", 8), "[8, 4]"},
		{"range no multiple", file("{"+entry("a", "F32", "[1]", "[0,5]")+"}", 5), "[0, 5]"},
		{"product overflows",
			file("{"+entry("a", "F32", "[4294967296,4294967296]", "[0,0]")+"}", 0),
			"too large"},
		{"negative", file("{"+entry("a", "F32", "[-1]", "[0,4]")+"}", 4), "-1 is not an integer"},
		{"fraction", file("{"+entry("a", "F32", "[1.0]", "[0,4]")+"}", 4), "1.0 is not an integer"},
		{"null in shape", file("{"+entry("a", "F32", "[null]", "[0,4]")+"}", 4),
			"where an integer"},
		{"null shape", file("{"+entry("a", "F32", "null", "[0,4]")+"}", 4), "where [ should be"},
		{"one offset", file("{"+entry("a", "F32", "[1]", "[4]")+"}", 4), "two data_offsets"},
		{"unknown dtype", file("{"+entry("a", "F31", "[1]", "[0,4]")+"}", 4),
			`unknown dtype "F31"`},
		{"dtype we cannot convert", file("{"+entry("a", "F64", "[1]", "[0,8]")+"}", 8),
			"is F64; only"},
		{"tensor twice", file("{"+good+","+good+"}", 24), `"a" comes twice`},
		{"field twice",
			file(`{"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4),
			`"dtype" comes twice`},
		{"field missing", file(`{"a":{"dtype":"F32","shape":[]}}`, 0), "needs dtype"},
		{"field in capitals", file(`{"a":{"DTYPE":"F32","shape":[],"data_offsets":[0,4]}}`, 4),
			`unknown field "DTYPE"`},
		{"metadata of numbers", file(`{"__metadata__":{"a":1}}`, 0), "where a string should be"},
		{"metadata twice", file(`{"__metadata__":{"a":"","a":""}}`, 0), `"a" comes twice`},
		{"tensor is null", file(`{"a":null}`, 0), "where { should be"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := ReadSafetensors(bytes.NewReader(test.file), int64(len(test.file)))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestGolden reads a file that Hugging Face's implementation wrote (testdata/golden.py).
func TestGolden(t *testing.T) {
	b, err := os.ReadFile("testdata/golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if err := strictCheck(b); err != nil {
		t.Errorf("the test's own checker refuses it: %v", err)
	}
	tensors, metadata, err := ReadSafetensors(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if len(metadata) != 2 || metadata["format"] != "pt" || metadata["maker"] != "safetensors" {
		t.Errorf("metadata %v", metadata)
	}
	want := map[string]Tensor{
		"rnn.weight_ih_l0": {Shape: []int{2, 3}, Data: []float32{0.5, -1.25, 3, 1e-38,
			float32(math.Inf(1)), float32(math.Copysign(0, -1))}},
		"rnn.bias \u00e9\"\\": {Shape: []int{1}, Data: []float32{7}},
		"scalar":              {Shape: []int{}, Data: []float32{-2}},
		"empty":               {Shape: []int{4, 0}},
		"half":                {Shape: []int{3}, Data: []float32{1, -2, 0.25}},
		"count":               {Shape: []int{2}, Data: []float32{-3, 1 << 40}},
		"position":            {Shape: []int{1}, Data: []float32{1 << 63}},
	}
	for _, got := range tensors {
		w, ok := want[got.Name]
		if !ok || !slices.Equal(got.Shape, w.Shape) || !equalBits(got.Data, w.Data) {
			t.Errorf("tensor %q: %v %v, want %v %v", got.Name, got.Shape, got.Data, w.Shape, w.Data)
		}
		delete(want, got.Name)
	}
	if len(want) > 0 {
		t.Errorf("tensors missing: %v", want)
	}
}

// equalBits compares floats by their bits, so NaN equals itself and 0 differs from -0.
func equalBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y)
	})
}

func sampleTensors() []Tensor {
	nan := math.Float32frombits(0x7fc12345)
	big := make([]float32, pieceBytes/4+77) // more than one piece
	for i := range big {
		big[i] = float32(i) * 0.5
	}
	return []Tensor{
		{"rnn.weight_ih_l0", []int{2, 3}, []float32{1, -2, nan, 4, 5, float32(math.Inf(-1))}},
		{"<unk> \u00e9\"\\\n", []int{1}, []float32{math.SmallestNonzeroFloat32}},
		{"scalar", nil, []float32{42}},
		{"empty", []int{0, 5}, nil},
		{"big", []int{len(big)}, big},
	}
}

func TestWriteSafetensors(t *testing.T) {
	tensors := sampleTensors()
	for _, metadata := range []map[string]string{nil, {"format": "pt", "a<b": "c\u2028"}} {
		var first, second bytes.Buffer
		if err := WriteSafetensors(&first, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		if err := WriteSafetensors(&second, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Error("equal tensors gave different bytes")
		}
		if err := strictCheck(first.Bytes()); err != nil {
			t.Errorf("the file breaks the format's rules: %v", err)
		}
		got, gotMetadata, err := ReadSafetensors(&first, int64(first.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(gotMetadata) != fmt.Sprint(metadata) {
			t.Errorf("metadata %v, want %v", gotMetadata, metadata)
		}
		for i, w := range tensors {
			if got[i].Name != w.Name || !slices.Equal(got[i].Shape, w.Shape) ||
				!equalBits(got[i].Data, w.Data) {
				t.Errorf("tensor %d is %q %v, want %q %v", i, got[i].Name, got[i].Shape, w.Name,
					w.Shape)
			}
		}
	}
}

// TestBytesOnFile pins the bytes, so that other readers and later versions can read the files.
func TestBytesOnFile(t *testing.T) {
	var b bytes.Buffer
	err := WriteSafetensors(&b, []Tensor{{"w1", []int{1, 2}, []float32{1, -2}}}, nil)
	want := "\x40\x00\x00\x00\x00\x00\x00\x00" +
		`{"w1":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}       ` +
		"\x00\x00\x80\x3f\x00\x00\x00\xc0"
	if err != nil || b.String() != want {
		t.Errorf("%q, %v, want %q", b.String(), err, want)
	}
}

func TestWriteSafetensorsRefuses(t *testing.T) {
	one := []float32{1}
	tests := []struct {
		name    string
		tensors []Tensor
		want    string
	}{
		{"no name", []Tensor{{"", nil, one}}, "cannot name a tensor"},
		{"metadata's name", []Tensor{{"__metadata__", nil, one}}, "cannot name a tensor"},
		{"name not UTF-8", []Tensor{{"\xff", nil, one}}, "cannot name a tensor"},
		{"twice", []Tensor{{"a", nil, one}, {"a", nil, one}}, `"a" comes twice`},
		{"shape", []Tensor{{"a", []int{2}, one}}, "shape [2] and 1 elements"},
		{"negative", []Tensor{{"a", []int{-1, -1}, one}}, "shape [-1 -1]"},
		{"overflow", []Tensor{{"a", []int{1 << 62, 1 << 62}, nil}}, "and 0 elements"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := WriteSafetensors(io.Discard, test.tensors, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	if err := WriteSafetensors(io.Discard, nil, map[string]string{"a": "\xff"}); err == nil {
		t.Error("metadata that is not UTF-8 was written")
	}
}

// TestByteOrder checks the big-endian host's conversion against this host's memory.
func TestByteOrder(t *testing.T) {
	x := []float32{1, -2.5, float32(math.Inf(1)), math.Float32frombits(0x7fc12345), 0}
	b := littleEndianFloats(x)
	if hostIsLittleEndian() && !bytes.Equal(b, floatMemory(x)) {
		t.Errorf("% x, the memory is % x", b, floatMemory(x))
	}
	back := make([]float32, len(x))
	if err := toFloats(back, b, "F32"); err != nil || !equalBits(x, back) {
		t.Errorf("%v, %v, want %v", back, err, x)
	}
}

func TestIntegersMustBeExact(t *testing.T) {
	tests := []struct {
		dtype string
		value uint64
		want  float32
		exact bool
	}{
		{"I64", 0, 0, true},
		{"I64", 1 << 24, 1 << 24, true},
		{"I64", 1<<24 + 1, 0, false},
		{"I64", uint64(math.MaxUint64), -1, true},
		{"U64", uint64(math.MaxUint64), 0, false},
		{"I64", 1 << 63, -1 << 63, true},
		{"U64", 1 << 63, 1 << 63, true},
		{"U64", 1<<24 - 1, 1<<24 - 1, true},
	}
	for _, test := range tests {
		got := make([]float32, 1)
		err := toFloats(got, binary.LittleEndian.AppendUint64(nil, test.value), test.dtype)
		if (err == nil) != test.exact || err == nil && got[0] != test.want {
			t.Errorf("%s %#x: %v, %v, want %v", test.dtype, test.value, got, err, test.want)
		}
	}
}

// strictCheck checks a file against the format's rules. It is written independently of the package,
// on a generic JSON value.
func strictCheck(b []byte) error {
	if len(b) < 8 {
		return errors.New("shorter than its length field")
	}
	n := binary.LittleEndian.Uint64(b)
	if n > 100_000_000 || n > uint64(len(b)-8) {
		return fmt.Errorf("header of %d bytes", n)
	}
	header, data := b[8:8+n], b[8+n:]
	if n%8 != 0 {
		return fmt.Errorf("data begins at byte %d, which is not aligned", 8+n)
	}
	if header[0] != '{' {
		return errors.New("header does not begin with {")
	}
	if trimmed := bytes.TrimRight(header, " "); trimmed[len(trimmed)-1] != '}' {
		return errors.New("header is padded with something other than spaces")
	}
	var entries map[string]map[string]any
	if err := json.Unmarshal(header, &entries); err != nil {
		return err
	}
	owner := make([]string, len(data)) // the tensor that owns each byte
	for name, e := range entries {
		if name == "__metadata__" {
			for key, value := range e {
				if _, ok := value.(string); !ok {
					return fmt.Errorf("metadata %q is not a string", key)
				}
			}
			continue
		}
		if err := claim(owner, name, e); err != nil {
			return err
		}
	}
	if i := slices.Index(owner, ""); i >= 0 {
		return fmt.Errorf("byte %d of the data is no tensor's", i)
	}
	return nil
}

// claim marks the bytes of one tensor in owner.
func claim(owner []string, name string, e map[string]any) error {
	size := map[any]float64{"F32": 4, "BF16": 2, "I64": 8, "U64": 8}[e["dtype"]]
	if len(e) != 3 || size == 0 {
		return fmt.Errorf("tensor %q is %v", name, e)
	}
	for _, d := range e["shape"].([]any) {
		size *= d.(float64)
	}
	offsets := e["data_offsets"].([]any)
	begin, end := offsets[0].(float64), offsets[1].(float64)
	if len(offsets) != 2 || end-begin != size || end > float64(len(owner)) {
		return fmt.Errorf("tensor %q has offsets %v and %v bytes", name, offsets, size)
	}
	for i := int(begin); i < int(end); i++ {
		if owner[i] != "" {
			return fmt.Errorf("byte %d is in both %q and %q", i, owner[i], name)
		}
		owner[i] = name
	}
	return nil
}

// FuzzHeader parses arbitrary headers. An accepted one must be valid JSON, and its tensors must
// tile the data.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{}`), int64(0))
	f.Add([]byte(`{"__metadata__":{"a":"b"}}  `), int64(0))
	f.Add([]byte("{"+entry("a", "F32", "[2,3]", "[0,24]")+","+
		entry("b", "I64", "[]", "[24,32]")+"}"), int64(32))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[1,],"data_offsets":[0,4]}}`), int64(4))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}{`), int64(0))
	if golden, err := os.ReadFile("testdata/golden.safetensors"); err == nil {
		n := binary.LittleEndian.Uint64(golden)
		f.Add(golden[8:8+n], int64(len(golden))-8-int64(n))
	}
	f.Fuzz(func(t *testing.T, header []byte, dataBytes int64) {
		infos, _, err := parseHeader(header, dataBytes)
		if err != nil {
			if infos != nil {
				t.Errorf("tensors %v beside the error %v", infos, err)
			}
			return
		}
		if !json.Valid(header) {
			t.Errorf("accepted %q, which is not JSON", header)
		}
		end := int64(0)
		for _, info := range infos {
			n := int64(dtypeBytes(info.DType)) * int64(info.elements())
			if info.Begin != end || info.End != end+n {
				t.Errorf("%+v after byte %d takes %d bytes", info, end, n)
			}
			end = info.End
		}
		if end != dataBytes {
			t.Errorf("the tensors end at %d of %d bytes", end, dataBytes)
		}
	})
}

// FuzzReadSafetensors reads arbitrary files. An accepted one must survive a write and a read.
func FuzzReadSafetensors(f *testing.F) {
	f.Add(file("{"+entry("a", "F32", "[1]", "[0,4]")+"}", 4))
	f.Add(file("{"+entry("a", "BF16", "[2]", "[0,4]")+"}", 4))
	f.Add(file("{"+entry("a", "U64", "[2,0]", "[0,0]")+"}", 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		tensors, metadata, err := ReadSafetensors(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := WriteSafetensors(&again, tensors, metadata); err != nil {
			if slices.ContainsFunc(tensors, func(x Tensor) bool { return x.Name == "" }) {
				return // readable, but not a name that this package writes
			}
			t.Fatal(err)
		}
		back, _, err := ReadSafetensors(&again, int64(again.Len()))
		if err != nil || len(back) != len(tensors) {
			t.Fatalf("%d tensors, %v, want %d", len(back), err, len(tensors))
		}
		for i := range tensors {
			if back[i].Name != tensors[i].Name || !equalBits(back[i].Data, tensors[i].Data) {
				t.Errorf("%v, want %v", back[i], tensors[i])
			}
		}
	})
}
