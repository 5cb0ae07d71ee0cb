package examples

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxLineBytes = 16 << 20
	// maxUnzippedBytes bounds what a small archive can make of itself.
	maxUnzippedBytes = 4 << 30
)

// row is an example as it stands in the file. Its bytes are valid until yield returns.
type row struct {
	line  int    // where it starts, from 1
	text  []byte // of Tagged: its lines, each "token TAB label LF"
	other []byte // the label, or the target text
}

// A parser calls yield with the rows that it finds. A row has at most maxLength tokens if the format
// says where a token ends.
type parser func(in *lines, maxLength int, yield func(row) error) error

// formats are the parsers of a kind, by the ends of files' names.
type formats map[string]parser

func formatsOf(source string, kind Kind) (formats, error) {
	known := map[Kind]formats{
		Labelled: {".tsv": labelledTSV, ".jsonl": labelledJSON},
		Tagged:   {".conll": tagged},
		Pairs:    {".tsv": pairsTSV, ".txt": pairsTSV},
	}[kind]
	end := extension(source)
	if end == ".zip" {
		return known, nil
	}
	parse, ok := known[end]
	if !ok {
		return nil, fmt.Errorf("corpus %s: the name does not end in %s, or .zip: give a file of "+
			"%s examples, and name it by its format", source, known, kind)
	}
	return formats{end: parse}, nil
}

// String lists the ends.
func (f formats) String() string {
	var ends []string
	for end := range f {
		ends = append(ends, end)
	}
	slices.Sort(ends)
	return strings.Join(ends, ", ")
}

// extension returns the end of the name of a file or an object.
func extension(source string) string {
	if where, err := url.Parse(source); err == nil && strings.Contains(source, "://") {
		source = where.Path
	}
	return strings.ToLower(path.Ext(source))
}

// parse reads a file that has one of the formats, or an archive of one.
func (f formats) parse(
	ctx context.Context, source string, r io.Reader, maxLength int, yield func(row) error,
) error {
	if extension(source) == ".zip" {
		return f.unzip(ctx, r, maxUnzippedBytes, maxLength, yield)
	}
	return f[extension(source)](newLines(ctx, r), maxLength, yield)
}

// unzip parses the one file of an archive that has one of the formats, of at most limit bytes. r is
// an io.ReaderAt and io.Seeker.
func (f formats) unzip(
	ctx context.Context, r io.Reader, limit uint64, maxLength int, yield func(row) error,
) error {
	at := r.(interface {
		io.ReaderAt
		io.Seeker
	})
	size, err := at.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	archive, err := zip.NewReader(at, size)
	if err != nil {
		return fmt.Errorf("%w: give a zip archive, or the file itself", err)
	}
	var names []string
	var found *zip.File
	for _, entry := range archive.File {
		name := path.Base(entry.Name)
		if !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "_") &&
			f[extension(name)] != nil && !entry.FileInfo().IsDir() {
			names, found = append(names, entry.Name), entry
		}
	}
	if len(names) != 1 {
		return fmt.Errorf("the archive has %d files of %v (%s), not one: give the file itself",
			len(names), f, few(names))
	}
	if found.UncompressedSize64 > limit {
		return fmt.Errorf("%s has %d bytes, more than the %d that are unpacked from an archive: "+
			"unpack it, and give the file", found.Name, found.UncompressedSize64, limit)
	}
	// The reader fails at the first byte beyond UncompressedSize64.
	text, err := found.Open()
	if err == nil {
		defer text.Close()
		err = f[extension(found.Name)](newLines(ctx, text), maxLength, yield)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", found.Name, err)
	}
	return nil
}

// lines reads a text by lines, which end in LF or CR LF. A byte-order mark at the start is skipped.
type lines struct {
	ctx    context.Context
	scan   *bufio.Scanner
	number int // of the current line, from 1
}

func newLines(ctx context.Context, r io.Reader) *lines {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLineBytes)
	return &lines{ctx: ctx, scan: scan}
}

// next returns the next line, which is UTF-8 and valid until the next call, or io.EOF.
func (l *lines) next() ([]byte, error) {
	l.number++
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	if !l.scan.Scan() {
		switch err := l.scan.Err(); {
		case err == nil:
			return nil, io.EOF
		case errors.Is(err, bufio.ErrTooLong):
			return nil, fmt.Errorf("line %d is longer than %d bytes: split it", l.number,
				maxLineBytes)
		default:
			return nil, fmt.Errorf("read line %d: %w", l.number, err)
		}
	}
	line := l.scan.Bytes()
	if l.number == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if !utf8.Valid(line) {
		return nil, fmt.Errorf("line %d is not UTF-8: convert the file to UTF-8, for example "+
			"with iconv", l.number)
	}
	return line, nil
}

// each calls use with every line.
func (l *lines) each(use func(line []byte) error) error {
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := use(line); err != nil {
			return err
		}
	}
}

func labelledTSV(in *lines, _ int, yield func(row) error) error {
	label, text := 0, 1
	return in.each(func(line []byte) error {
		columns := bytes.Split(line, []byte("\t"))
		if len(columns) != 2 {
			return fmt.Errorf("line %d has %d columns, not 2: write label TAB text", in.number,
				len(columns))
		}
		if in.number == 1 {
			switch string(line) {
			case "text\tlabel":
				label, text = 1, 0
				return nil
			case "label\ttext":
				return nil
			}
		}
		return yield(row{in.number, columns[text], columns[label]})
	})
}

func pairsTSV(in *lines, _ int, yield func(row) error) error {
	return in.each(func(line []byte) error {
		columns := bytes.SplitN(line, []byte("\t"), 3)
		if len(columns) < 2 {
			return fmt.Errorf("line %d has 1 column, not 2: write source TAB target", in.number)
		}
		return yield(row{in.number, columns[0], columns[1]})
	})
}

func labelledJSON(in *lines, _ int, yield func(row) error) error {
	return in.each(func(line []byte) error {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(line, &object); err != nil {
			return fmt.Errorf("line %d is not a JSON object: %w", in.number, err)
		}
		label, err := stringField(object, "label")
		if err != nil {
			return fmt.Errorf("line %d: %w", in.number, err)
		}
		text, err := stringField(object, "text")
		if err != nil {
			return fmt.Errorf("line %d: %w", in.number, err)
		}
		return yield(row{in.number, []byte(text), []byte(label)})
	})
}

func stringField(object map[string]json.RawMessage, name string) (string, error) {
	value, ok := object[name]
	if !ok {
		return "", fmt.Errorf("the field %q is missing", name)
	}
	var text *string
	if err := json.Unmarshal(value, &text); err != nil || text == nil {
		return "", fmt.Errorf("the field %q is %.40q, not a string: put it in quotes", name, value)
	}
	return *text, nil
}

func tagged(in *lines, maxLength int, yield func(row) error) error {
	width := 0 // columns of the first line
	sentence, count := row{}, 0
	finish := func() error {
		if count == 0 {
			return nil
		}
		err := yield(sentence)
		sentence.text, count = sentence.text[:0], 0
		return err
	}
	err := in.each(func(line []byte) error {
		columns := bytes.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
		if len(columns) == 0 || string(columns[0]) == "-DOCSTART-" {
			return finish()
		}
		if width == 0 {
			width = len(columns)
		}
		if len(columns) != width || width < 2 {
			return fmt.Errorf("line %d has %d columns, not %d: write a token, its label last, and "+
				"an empty line after a sentence", in.number, len(columns), max(width, 2))
		}
		if count == maxLength {
			return fmt.Errorf("line %d is token %d of its sentence: raise --max-length, or end "+
				"sentences with an empty line", in.number, count+1)
		}
		if count == 0 {
			sentence.line = in.number
		}
		for _, part := range [][]byte{columns[0], {'\t'}, columns[width-1], {'\n'}} {
			sentence.text = append(sentence.text, part...)
		}
		count++
		return nil
	})
	if err != nil {
		return err
	}
	return finish()
}
