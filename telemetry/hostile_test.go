package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"
)

// TestHostileTexts: what a worker or a model says reaches a terminal as text; in JSON it is what it
// was.
func TestHostileTexts(t *testing.T) {
	const hostile = "\x1b]52;c;Y3VybA==\aover\r\u009b2J"
	for _, e := range []Event{Notice{ID: hostile, Text: hostile}, Sample{Text: hostile},
		Generation{Reason: hostile}, Checkpoint{Path: hostile}, Worker{Host: hostile},
		Eval{Metrics: []Metric{{hostile, 1}}}, Done{Step: 1, Reason: hostile}, Page{URL: hostile},
		Folder{Path: hostile}} {
		var plain, bar, logged, lines bytes.Buffer
		bars := NewBarView(&bar, time.Now)
		for _, v := range []View{NewPlainView(&plain, 0, time.Now), bars, NewJSONView(&lines)} {
			if err := v.Show(e); err != nil {
				t.Fatal(err)
			}
		}
		_ = bars.Close()
		text, err := NewLog(&logged, "text", slog.LevelInfo)
		if err != nil {
			t.Fatal(err)
		}
		if err := NewLogView(text, 0, time.Now).Show(e); err != nil {
			t.Fatal(err)
		}
		for name, out := range map[string]string{"plain": plain.String(), "bar": bar.String(),
			"log": logged.String()} {
			if strings.Contains(out, "52;c") && strings.ContainsFunc(out, func(r rune) bool {
				return unicode.IsControl(r) && r != '\n'
			}) || name == "plain" && !strings.Contains(out, "52;c") {
				t.Errorf("%s of %s: %q", name, e.name(), out)
			}
		}
		var read map[string]any
		if err := json.Unmarshal(lines.Bytes(), &read); err != nil {
			t.Fatal(err)
		}
		found := false
		for key, value := range read {
			found = found || key == hostile || value == hostile
		}
		if !found {
			t.Errorf("JSON of %s: %s", e.name(), &lines)
		}
	}
}
