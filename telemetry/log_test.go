package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// logged returns a short job's log in a format. Each step takes 3 seconds.
func logged(t *testing.T, format string) []string {
	t.Helper()
	var out bytes.Buffer
	log, err := NewLog(&out, format, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(0, 0)
	view := NewLogView(log, 10*time.Second, func() time.Time { return clock })
	events := []Event{Worker{Rank: 1}, Generation{Generation: 1, WorldSize: 2, Reason: "a start"}}
	for step := int64(1); step <= 6; step++ {
		events = append(events, Step{Step: step, TotalSteps: 6, Loss: 2.31415, WorldSize: 2,
			TokensPerSecond: 50123})
		if step == 2 {
			events = append(events, Eval{Step: 2, Loss: 1.499951}, Checkpoint{2, "runs/2"},
				Sample{2, "light\nwhile"}, Notice{Text: "a notice"})
		}
	}
	events = append(events, Done{Step: 6, Loss: 2, Perplexity: 7.4, TokensPerSecond: 50123,
		Reason: "--steps 6 reached", Checkpoint: "runs/6"})
	for _, e := range append(events, Failed{Reason: "not finite"}) {
		if _, is := e.(Step); is {
			clock = clock.Add(3 * time.Second)
		}
		if err := view.Show(e); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

func TestLogViewAsText(t *testing.T) {
	want := []string{
		`level=INFO msg="ring of 2, generation 1, after step 0: a start"`,
		`level=INFO msg="step 1/6  epoch 0  loss 2.3142  50,123 tokens/s" ring=2`,
		`level=INFO msg="evaluation at step 2: loss 1.5000, perplexity 0.000, 0.000 bits/token, ` +
			`0 tokens"`,
		`level=INFO msg="checkpoint of step 2: runs/2"`,
		`level=INFO msg="sample at step 2:\nlight\nwhile\n"`,
		`level=INFO msg="a notice"`,
		`level=INFO msg="step 5/6  epoch 0  loss 2.3142  50,123 tokens/s" ` +
			`ring=2 validation_loss=1.5`,
		`level=INFO msg="step 6/6  epoch 0  loss 2.3142  50,123 tokens/s" ` +
			`ring=2 validation_loss=1.5`,
		`level=INFO msg="done after step 6 (--steps 6 reached): loss 2.0000, perplexity 7.400, ` +
			`50,123 tokens/s; checkpoint: runs/6"`,
		`level=ERROR msg="the job has failed: not finite"`,
	}
	got := logged(t, "text")
	for i := range got {
		_, got[i], _ = strings.Cut(got[i], " ") // without the time
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLogViewAsJSON(t *testing.T) {
	lines := logged(t, "json")
	if len(lines) != 10 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	var step struct {
		Msg        string
		Validation float64 `json:"validation_loss"`
		Event      struct {
			Event     string
			Step      int64
			Loss      float64
			WorldSize int64 `json:"world_size"`
		}
	}
	if err := json.Unmarshal([]byte(lines[6]), &step); err != nil {
		t.Fatal(err)
	}
	e := step.Event
	if e.Event != "step" || e.Step != 5 || e.Loss != 2.31415 || e.WorldSize != 2 ||
		step.Validation != 1.5 || !strings.HasPrefix(step.Msg, "step 5/6") {
		t.Errorf("%s gives %+v", lines[6], step)
	}
}

// TestLogViewRemembers: step lines include an evaluation of another log until a newer one or the
// end of the run.
func TestLogViewRemembers(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLog(&out, "text", slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	view := NewLogView(log, 0, time.Now)
	for _, c := range []struct {
		remembered, shown Event
		want              string // in the next step's line; "": no validation loss
	}{
		{want: ""},
		{remembered: Checkpoint{2, "runs/2"}, want: ""},
		{remembered: Eval{Step: 4, Loss: 1.75}, want: "validation_loss=1.75"},
		{remembered: Eval{Step: 2, Loss: 2.25}, want: "validation_loss=1.75"},
		{shown: Eval{Step: 6, Loss: 1.5}, want: "validation_loss=1.5"},
		{shown: Done{Step: 6, Loss: 2}, want: ""},
		{remembered: Eval{Step: 1, Loss: 3.5}, want: "validation_loss=3.5"},
	} {
		if c.remembered != nil {
			view.Remember(c.remembered)
		}
		if out.Len() > 0 {
			t.Errorf("remembering %+v logs %s", c.remembered, out.String())
		}
		if c.shown != nil {
			err = view.Show(c.shown)
		}
		out.Reset()
		if err := errors.Join(err, view.Show(Step{Step: 1, TotalSteps: 9})); err != nil {
			t.Fatal(err)
		}
		line := out.String()
		if !strings.Contains(line, c.want) || c.want == "" && strings.Contains(line, "validation") {
			t.Errorf("after %+v and %+v: %s, want %q", c.remembered, c.shown, line, c.want)
		}
		out.Reset()
	}
}

func TestLogOfAnotherFormat(t *testing.T) {
	_, err := NewLog(nil, "xml", slog.LevelInfo)
	if err == nil || err.Error() != `--log-format "xml" is not one of text, json` {
		t.Errorf("%v", err)
	}
}
