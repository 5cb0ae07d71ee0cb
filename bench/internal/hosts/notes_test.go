package hosts

import (
	"strings"
	"testing"
)

func TestNotes(t *testing.T) {
	var n Notes
	for range 3 {
		if count, err := n.Write([]byte(strings.Repeat("x", maxNotes/2))); count != maxNotes/2 ||
			err != nil {
			t.Errorf("%d, %v", count, err)
		}
	}
	if _, err := n.Write([]byte("the end\n")); err != nil {
		t.Error(err)
	}
	if got := n.String(); len(got) != maxNotes-1 || !strings.HasSuffix(got, "xthe end") {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-10:])
	}
}
