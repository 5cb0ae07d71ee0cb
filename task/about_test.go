package task

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// TestAbout wants the texts of every task, and docs/models.md to have the first.
func TestAbout(t *testing.T) {
	docs, err := os.ReadFile("../docs/models.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		predicts, source := About(name)
		if predicts == "" || source == "" {
			t.Errorf("About(%q) is %q, %q", name, predicts, source)
		}
		if row := fmt.Sprintf("| `%s` | %s |", name, predicts); !bytes.Contains(
			bytes.ReplaceAll(docs, []byte(" (default)"), nil), []byte(row)) {
			t.Errorf("docs/models.md has no row %s", row)
		}
	}
}
