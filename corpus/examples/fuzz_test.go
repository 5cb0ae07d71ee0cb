package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzParse: any bytes are refused in one line, or give rows that come back from a file that is made
// of them.
func FuzzParse(f *testing.F) {
	names := []string{"a.tsv", "a.jsonl", "a.conll", "a.txt", "labelled.zip", "pairs.zip"}
	kinds := []Kind{Labelled, Labelled, Tagged, Pairs, Labelled, Pairs}
	const maxLength = 5
	f.Fuzz(func(t *testing.T, which byte, file []byte) {
		at := int(which) % len(names)
		formats, err := formatsOf(names[at], kinds[at])
		if err != nil {
			t.Fatal(err)
		}
		parse := func(name string, file []byte) (rows []row, err error) {
			err = formats.parse(t.Context(), name, bytes.NewReader(file), maxLength,
				func(r row) error {
					rows = append(rows, row{r.line, bytes.Clone(r.text), bytes.Clone(r.other)})
					return nil
				})
			return rows, err
		}
		rows, err := parse(names[at], file)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("more than a line: %q", err)
		}
		for i, r := range rows {
			if r.line < 1 || i > 0 && r.line <= rows[i-1].line {
				t.Fatalf("row %d is on line %d", i, r.line)
			}
			if !utf8.Valid(r.text) || !utf8.Valid(r.other) {
				t.Fatalf("line %d: %q, %q is not UTF-8", r.line, r.text, r.other)
			}
			if kinds[at] == Tagged && bytes.Count(r.text, []byte("\n")) > maxLength {
				t.Fatalf("line %d: %q is longer than %d", r.line, r.text, maxLength)
			}
		}
		if strings.HasSuffix(names[at], ".zip") || len(rows) == 0 {
			return
		}
		again, err := parse(names[at], rewrite(t, names[at], rows))
		if err != nil || len(again) != len(rows) {
			t.Fatalf("%v came back as %v, %v", rows, again, err)
		}
		for i := range rows {
			rows[i].line = again[i].line
		}
		if !reflect.DeepEqual(rows, again) {
			t.Fatalf("%v came back as %v", rows, again)
		}
	})
}

// rewrite makes a file of rows.
func rewrite(t *testing.T, name string, rows []row) []byte {
	t.Helper()
	var file bytes.Buffer
	switch name {
	case "a.tsv":
		file.WriteString("text\tlabel\r\n")
	case "a.txt":
		file.WriteString("\ufeff")
	}
	for _, r := range rows {
		switch name {
		case "a.jsonl":
			line, err := json.Marshal(map[string]string{"text": string(r.text),
				"label": string(r.other)})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&file, "%s\n", line)
		case "a.conll":
			fmt.Fprintf(&file, "%s\n", r.text)
		default:
			fmt.Fprintf(&file, "%s\t%s\r\n", r.text, r.other)
		}
	}
	return file.Bytes()
}
