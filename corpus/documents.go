package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	// DefaultField is the field of a JSON line, or the column, that holds the text (--text-field).
	DefaultField = "text"

	maxJSONLine   = 64 << 20
	maxZstdWindow = 128 << 20 // of zstd --ultra
)

// A reading is the files of a corpus. Each calls document with the text of each of its documents in
// turn. The reader is valid until document returns. Different files may be read at the same time.
type reading []func(document func(text io.Reader) error) error

// readDocuments unpacks a file by its name, and calls document with each document in it: each line
// of .jsonl, each row of .parquet, or the file as a whole. A .zip has one such file.
func readDocuments(
	name, field string, packed io.Reader, document func(text io.Reader) error,
) error {
	text := packed
	end := strings.ToLower(path.Ext(name))
	switch end {
	case ".zip":
		return ReadZip(packed, []string{".txt", ".jsonl"}, MaxUnzipped,
			func(name string, member io.Reader) error {
				return readDocuments(name, field, member, document)
			})
	case ".parquet":
		return readParquet(packed, field, document)
	case ".gz":
		unpacked, err := gzip.NewReader(bufio.NewReaderSize(packed, blockBytes))
		if err != nil {
			return fmt.Errorf("it is not gzip: %w", err)
		}
		text = uncut{unpacked}
	case ".zst":
		unpacked, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return fmt.Errorf("it is not zstd: %w", err)
		}
		defer unpacked.Close()
		text = uncut{unpacked}
	}
	if text != packed {
		inner := strings.ToLower(path.Ext(name[:len(name)-len(end)]))
		if inner == ".parquet" || inner == ".zip" {
			return fmt.Errorf("a %s within %s is not read: unpack it", inner, end)
		}
		end = inner
	}
	if end == ".jsonl" {
		return readJSONLines(text, field, document)
	}
	return document(text)
}

// uncut reports a compressed text without its end as an error. Readers of blocks take
// io.ErrUnexpectedEOF for a text that ends within a block.
type uncut struct{ io.Reader }

func (u uncut) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the compressed text has no end: copy it whole")
	}
	return n, err
}

// readJSONLines calls document with a field of the object in each line.
func readJSONLines(text io.Reader, field string, document func(text io.Reader) error) error {
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, 0, blockBytes), maxJSONLine)
	number := 0
	for lines.Scan() {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		value, err := jsonText(lines.Bytes(), field)
		if err == nil {
			err = document(strings.NewReader(value))
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d is longer than %d MiB: divide the document", number+1,
			maxJSONLine>>20)
	}
	return lines.Err()
}

// jsonText returns the string in a field of a JSON object.
func jsonText(line []byte, field string) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return "", fmt.Errorf("it is no JSON object: %w", err)
	}
	raw, ok := fields[field]
	if !ok {
		return "", fmt.Errorf("the object has no field %q: name the text's by --text-field", field)
	}
	var value string
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", fmt.Errorf("the field %q is not a string: name another by --text-field", field)
	}
	return value, nil
}
