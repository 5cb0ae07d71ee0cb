package trace

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, folder string) (events []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "a.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &events); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return events
}

func TestTrace(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new")
	w, err := Create(folder, "a", 7, DefaultLimit)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	w.Name("rank 0", 0)
	w.Span("compute", `a "step"`, at, at.Add(3*time.Millisecond))
	w.Span("ring", "bucket 1", at.Add(time.Millisecond), at.Add(2*time.Millisecond))
	w.Span("compute", "backwards", at.Add(time.Second), at)
	w.Count("tokens/s", at, 5)
	w.Count("tokens/s", at, math.NaN()) // JSON cannot represent it
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var phases []string
	var spans []map[string]any
	for _, e := range read(t, folder) {
		if e["pid"] != 7.0 {
			t.Errorf("of process %v", e["pid"])
		}
		phases = append(phases, e["ph"].(string))
		if e["ph"] == "X" {
			spans = append(spans, e)
		}
	}
	if got := strings.Join(phases, ""); got != "MMMXMXXC" {
		t.Errorf("the phases are %s", got)
	}
	if s := spans[0]; s["ts"] != 1.7e15 || s["dur"] != 3e3 || s["name"] != `a "step"` {
		t.Errorf("%v", s)
	}
	if spans[0]["tid"] == spans[1]["tid"] || spans[0]["tid"] != spans[2]["tid"] {
		t.Errorf("the tracks of %v", spans)
	}
	if spans[2]["dur"] != 0.0 {
		t.Errorf("a span that ends before it begins: %v", spans[2])
	}
}

// TestTraceEnds: a file is bounded, and its last event says so.
func TestTraceEnds(t *testing.T) {
	folder := t.TempDir()
	w, err := Create(folder, "a", 1, 5)
	if err != nil {
		t.Fatal(err)
	}
	for range 9 {
		w.Span("compute", "step", time.Now(), time.Now())
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	events := read(t, folder)
	if len(events) != 5 || !strings.Contains(events[4]["name"].(string), "it has 5 events") {
		t.Errorf("%v", events)
	}
}

// TestTraceOfNothing: a file without events is valid, and a write error is reported.
func TestTraceOfNothing(t *testing.T) {
	folder := t.TempDir()
	w, err := Create(folder, "a", 1, 5)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if events := read(t, folder); len(events) != 0 {
		t.Errorf("%v", events)
	}
	if w, err = Create(folder, "b", 1, 5); err != nil {
		t.Fatal(err)
	}
	if err := w.file.Close(); err != nil {
		t.Fatal(err)
	}
	w.Span("compute", "step", time.Now(), time.Now())
	if err := w.Close(); err == nil {
		t.Error("a file that was closed under it was written")
	}
}
