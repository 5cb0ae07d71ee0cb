// Package printable writes text of unknown origin for people: a terminal must not take it for
// commands. JSON passes as equal JSON. The package imports nothing of this module.
package printable

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Text returns a text with its control characters as \u001b and the like, except line feeds and
// tabs. So does it with those that reorder a line, and with bytes that are no UTF-8 (\x9b).
func Text(text string) string {
	if strings.IndexFunc(text, unprintable) < 0 {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case !unprintable(r):
			b.WriteRune(r)
		case r != utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x`, r)
		case strings.HasPrefix(text[i:], string(utf8.RuneError)):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		}
	}
	return b.String()
}

func unprintable(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || r == utf8.RuneError ||
		unicode.Is(unicode.Bidi_Control, r)
}

// Writer writes what Text returns.
type Writer struct {
	io.Writer
	rest []byte // the beginning of a character
}

// Write writes all of p, except a last character that is not complete yet.
func (w *Writer) Write(p []byte) (int, error) {
	whole := append(w.rest, p...)
	end := len(whole)
	for i := max(0, end-utf8.UTFMax+1); i < end; i++ {
		if utf8.RuneStart(whole[i]) && !utf8.FullRune(whole[i:]) {
			end = i
		}
	}
	w.rest = append([]byte(nil), whole[end:]...)
	if _, err := io.WriteString(w.Writer, Text(string(whole[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Out returns a program's standard output: file with a Writer on it if it is a terminal. What goes
// to a file or another program is not changed.
func Out(file *os.File) io.Writer {
	if term.IsTerminal(int(file.Fd())) {
		return &Writer{Writer: file}
	}
	return file
}

// Terminal returns the terminal that w writes to; nil: it writes to none. It takes every byte.
func Terminal(w io.Writer) *os.File {
	if safe, ok := w.(*Writer); ok {
		w = safe.Writer
	}
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}
