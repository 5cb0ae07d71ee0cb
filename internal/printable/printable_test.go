package printable

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// hostile writes to the clipboard, sets colours and the title, moves up a line, goes back in its
// line, and turns the direction of letters; in 7 and in 8 bits.
const hostile = "\x1b]52;c;Y3VybA==\a\x1b[31m\x1b]0;title\x1b\\\x1b[1A\rover\b\u009b31m" +
	"\u202eabc\x7f"

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"plain, 水 and\n\ta tab 🙂": "plain, 水 and\n\ta tab 🙂",
		"\ufffd":                  "\ufffd",
		"a\x9bb\xff":              `a\x9bb\xff`,
		hostile: `\u001b]52;c;Y3VybA==\u0007\u001b[31m\u001b]0;title\u001b\\u001b[1A\u000dover` +
			`\u0008\u009b31m\u202eabc\u007f`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		for cut := range len(text) + 1 { // in two writes
			var b bytes.Buffer
			w := &Writer{Writer: &b}
			for _, part := range []string{text[:cut], text[cut:]} {
				if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
					t.Fatalf("%q: wrote %d of %d, %v", part, n, len(part), err)
				}
			}
			if got := b.String() + string(w.rest); got != want && !strings.HasSuffix(text, "\xff") {
				t.Errorf("%q, cut at %d: %q, want %q", text, cut, got, want)
			}
		}
	}
}

// TestJSON: what a program reads as JSON is the same with a Writer and without.
func TestJSON(t *testing.T) {
	var plain, safe bytes.Buffer
	for _, w := range []*json.Encoder{json.NewEncoder(&plain),
		json.NewEncoder(&Writer{Writer: &safe})} {
		if err := w.Encode(map[string]string{"text": hostile + "水"}); err != nil {
			t.Fatal(err)
		}
	}
	var want, got map[string]string
	if err := json.Unmarshal(plain.Bytes(), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(safe.Bytes(), &got); err != nil || got["text"] != want["text"] {
		t.Errorf("%q, %v; want %q", got["text"], err, want["text"])
	}
}
