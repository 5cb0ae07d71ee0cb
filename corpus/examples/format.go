package examples

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"rondo/corpus"
)

const maxLineBytes = 16 << 20

// rows takes the examples that a parser finds. Its errors stop the parser, which names the line.
type rows interface {
	// text takes the text, or the next token of a text that stands in tokens.
	text(text []byte) error
	// other takes the label of the text or of the token, or the target text.
	other(other []byte) error
	// end ends the example.
	end() error
}

type parser func(ctx context.Context, r io.Reader, to rows) error

// formats are the parsers of a kind, by the ends of files' names.
type formats map[string]parser

// formatsOfKind are those that a kind has; nil: there is no such kind.
func formatsOfKind(kind Kind) formats {
	return map[Kind]formats{
		Labelled:  {".tsv": labelledTSV, ".jsonl": labelledJSON},
		Tagged:    {".conll": tagged},
		Pairs:     {".tsv": pairsTSV("source TAB target"), ".txt": pairsTSV("source TAB target")},
		Described: {".tsv": pairsTSV("row TAB text")},
		Stories:   {".txt": stories},
		Trees:     {".txt": trees, ".ptb": trees},
	}[kind]
}

func formatsOf(source string, kind Kind) (formats, error) {
	known := formatsOfKind(kind)
	end := corpus.Extension(source)
	if end == ".zip" {
		return known, nil
	}
	parse, ok := known[end]
	if !ok {
		return nil, &corpus.FormatError{Source: source, Reads: known.ends()}
	}
	return formats{end: parse}, nil
}

func (f formats) ends() []string { return slices.Sorted(maps.Keys(f)) }

// parse reads a file that has one of the formats, or an archive of one.
func (f formats) parse(ctx context.Context, source string, r io.Reader, to rows) error {
	if corpus.Extension(source) != ".zip" {
		return f[corpus.Extension(source)](ctx, r, to)
	}
	return corpus.ReadZip(r, f.ends(), corpus.MaxUnzipped,
		func(name string, content io.Reader) error {
			return f[corpus.Extension(name)](ctx, content, to)
		})
}

// eachLine calls use with every line of a text and its number, from 1. Lines are UTF-8 and end in
// LF or CR LF. A byte-order mark at the start is skipped. Errors name the line.
func eachLine(
	ctx context.Context, r io.Reader, use func(number int, line []byte) error,
) error {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, maxLineBytes)
	number := 1
	for ; scan.Scan(); number++ {
		line := scan.Bytes()
		if number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		err := ctx.Err()
		if err == nil && !utf8.Valid(line) {
			err = errors.New("invalid UTF-8: convert the file to UTF-8, for example with iconv")
		}
		if err == nil {
			err = use(number, line)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	err := scan.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("longer than %d bytes: split it", maxLineBytes)
	}
	if err != nil {
		return fmt.Errorf("line %d: %w", number, err)
	}
	return nil
}

// eachRow is eachLine for formats with an example in each line: an empty one is an error.
func eachRow(
	ctx context.Context, r io.Reader, use func(number int, line []byte) error,
) error {
	return eachLine(ctx, r, func(number int, line []byte) error {
		if len(bytes.TrimSpace(line)) == 0 {
			return errors.New("it is empty: remove it")
		}
		return use(number, line)
	})
}

// give hands rows an example.
func give(to rows, text, other []byte) error {
	if err := to.text(text); err != nil {
		return err
	}
	if err := to.other(other); err != nil {
		return err
	}
	return to.end()
}

func labelledTSV(ctx context.Context, r io.Reader, to rows) error {
	label, text := 0, 1
	return eachRow(ctx, r, func(number int, line []byte) error {
		columns := bytes.Split(line, []byte("\t"))
		if len(columns) != 2 {
			return fmt.Errorf("2 columns expected, label TAB text; found %d", len(columns))
		}
		if number == 1 && string(line) == "text\tlabel" {
			label, text = 1, 0
			return nil
		}
		if number == 1 && string(line) == "label\ttext" {
			return nil
		}
		return give(to, columns[text], columns[label])
	})
}

// pairsTSV parses lines of these two columns.
func pairsTSV(names string) parser {
	return func(ctx context.Context, r io.Reader, to rows) error {
		return eachRow(ctx, r, func(_ int, line []byte) error {
			columns := bytes.SplitN(line, []byte("\t"), 3)
			if len(columns) < 2 {
				return fmt.Errorf("2 columns expected, %s; found 1", names)
			}
			return give(to, columns[0], columns[1])
		})
	}
}

func labelledJSON(ctx context.Context, r io.Reader, to rows) error {
	return eachRow(ctx, r, func(_ int, line []byte) error {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(line, &object); err != nil {
			return fmt.Errorf("not a JSON object: %w", err)
		}
		var fields [2][]byte
		for i, name := range []string{"text", "label"} {
			value, ok := object[name]
			if !ok {
				return fmt.Errorf("the field %q is missing", name)
			}
			var text *string
			if err := json.Unmarshal(value, &text); err != nil || text == nil {
				return fmt.Errorf("the field %q is %.40q, not a string: put it in quotes", name,
					value)
			}
			fields[i] = []byte(*text)
		}
		return give(to, fields[0], fields[1])
	})
}

func tagged(ctx context.Context, r io.Reader, to rows) error {
	width := 0 // columns of the first line
	begun := false
	finish := func() error {
		if !begun {
			return nil
		}
		begun = false
		return to.end()
	}
	err := eachLine(ctx, r, func(_ int, line []byte) error {
		columns := bytes.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
		if len(columns) == 0 || string(columns[0]) == "-DOCSTART-" {
			return finish()
		}
		if width == 0 {
			width = len(columns)
		}
		if len(columns) != width || width < 2 {
			return fmt.Errorf("%d columns expected, a token first and its label last; found %d",
				max(width, 2), len(columns))
		}
		begun = true
		if err := to.text(columns[0]); err != nil {
			return err
		}
		return to.other(columns[width-1])
	})
	if err != nil {
		return err
	}
	return finish()
}

// stories parses the format of the bAbI tasks. It gives the sentences of an example a line each.
func stories(ctx context.Context, r io.Reader, to rows) error {
	var story []byte
	last := 0
	return eachLine(ctx, r, func(_ int, line []byte) error {
		head, rest, _ := bytes.Cut(line, []byte(" "))
		number, err := strconv.Atoi(string(head))
		if err != nil || number < 1 || number > 1 && number <= last {
			return fmt.Errorf("%.40q: expected a number above %d, or 1 for another story, a space "+
				"and a sentence", line, last)
		}
		if last = number; number == 1 {
			story = story[:0]
		}
		columns := bytes.Split(rest, []byte("\t"))
		sentence := Sentence(columns[0])
		if len(columns) == 1 {
			story = append(append(story, sentence...), '\n')
			return nil
		}
		return give(to, append(story, sentence...), columns[1])
	})
}

// Sentence is a sentence or a question without spaces around it and the marks at its end.
func Sentence(text []byte) []byte {
	return bytes.TrimRightFunc(bytes.TrimSpace(text), func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(".?!", r)
	})
}
