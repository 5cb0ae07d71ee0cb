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

// FuzzParse: any bytes are refused in one line, or give rows that come back from a file that is
// made of them.
func FuzzParse(f *testing.F) {
	names := []string{"a.tsv", "a.jsonl", "a.conll", "a.txt", "labelled.zip", "pairs.zip",
		"stories.txt"}
	kinds := []Kind{Labelled, Labelled, Tagged, Pairs, Labelled, Pairs, Stories}
	f.Fuzz(func(t *testing.T, which byte, file []byte) {
		at := int(which) % len(names)
		formats, err := formatsOf(names[at], kinds[at])
		if err != nil {
			t.Fatal(err)
		}
		parse := func(file []byte) ([]row, error) {
			var found record
			err := formats.parse(t.Context(), names[at], bytes.NewReader(file), &found)
			return found.ended, err
		}
		rows, err := parse(file)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("more than a line: %q", err)
		}
		for _, r := range rows {
			if len(r.texts) != len(r.others) || len(r.texts) < 1 ||
				kinds[at] != Tagged && len(r.texts) > 1 {
				t.Fatalf("%d texts and %d others", len(r.texts), len(r.others))
			}
			if text := strings.Join(append(r.texts, r.others...), ""); !utf8.ValidString(text) {
				t.Fatalf("%q is not UTF-8", text)
			}
		}
		if strings.HasSuffix(names[at], ".zip") || len(rows) == 0 {
			return
		}
		again, err := parse(rewrite(t, names[at], rows))
		if err != nil || len(again) != len(rows) {
			t.Fatalf("%v came back as %v, %v", rows, again, err)
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
		for i := range r.texts {
			switch name {
			case "a.jsonl":
				line, err := json.Marshal(map[string]string{"text": r.texts[i],
					"label": r.others[i]})
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&file, "%s\n", line)
			case "stories.txt":
				for n, sentence := range strings.Split(r.texts[i], "\n") {
					fmt.Fprintf(&file, "\n%d %s", n+1, sentence)
				}
				fmt.Fprintf(&file, "\t%s", r.others[i])
			default:
				fmt.Fprintf(&file, "%s\t%s\r\n", r.texts[i], r.others[i])
			}
		}
		if name == "a.conll" {
			file.WriteByte('\n')
		}
	}
	return bytes.TrimLeft(file.Bytes(), "\n")
}

// row is an example as it stands in a file.
type row struct{ texts, others []string }

// record keeps what a parser finds.
type record struct {
	open  row
	ended []row
}

func (r *record) text(text []byte) error {
	r.open.texts = append(r.open.texts, string(text))
	return nil
}

func (r *record) other(other []byte) error {
	r.open.others = append(r.open.others, string(other))
	return nil
}

func (r *record) end() error {
	r.ended = append(r.ended, r.open)
	r.open = row{}
	return nil
}
