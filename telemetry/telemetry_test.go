package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJSONViewNamesFirstAndKeepsOrder(t *testing.T) {
	var out bytes.Buffer
	view := NewJSONView(&out)
	if err := view.Show(Checkpoint{Step: 50, Path: "run/step-00000050"}); err != nil {
		t.Fatal(err)
	}
	want := `{"event":"checkpoint","step":50,"path":"run/step-00000050"}` + "\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestJSONViewWritesNullForWhatIsNotFinite(t *testing.T) {
	line, err := MarshalEvent(Step{Step: 3, Loss: math.NaN(), Perplexity: math.Inf(1)})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if got["loss"] != nil || got["perplexity"] != nil || got["step"] != 3.0 {
		t.Errorf("got %s", line)
	}
	if _, there := got["loss"]; !there {
		t.Errorf("loss is missing from %s", line)
	}
	if _, there := got["skipped"]; there {
		t.Errorf("skipped=false is in %s", line)
	}
}

func TestEveryEventIsAnObject(t *testing.T) {
	for _, e := range []Event{Folder{}, Page{}, Worker{}, Generation{}, Step{}, Checkpoint{},
		Sample{Text: "\"\n"}, Eval{}, Done{}, Failed{}, Notice{}} {
		line, err := MarshalEvent(e)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(line, &got); err != nil || got["event"] != e.name() {
			t.Errorf("%T: %s, %v", e, line, err)
		}
	}
}

func TestPlainViewLimitsSteps(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	view := NewPlainView(&out, time.Second, func() time.Time { return clock })
	for step := int64(1); step <= 30; step++ {
		clock = clock.Add(100 * time.Millisecond)
		e := Step{Step: step, TotalSteps: 30, TokensPerSecond: 1234567, Skipped: step == 7}
		if err := view.Show(e); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var steps []string
	for _, l := range lines {
		steps = append(steps, strings.Fields(l)[1])
	}
	if got := strings.Join(steps, " "); got != "1/30 7/30 11/30 21/30 30/30" {
		t.Errorf("steps shown: %s", got)
	}
	if !strings.Contains(lines[0], "1,234,567 tokens/s") {
		t.Errorf("line %q", lines[0])
	}
}

func TestBarViewShowsAllFigures(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	view := NewBarView(&out, func() time.Time { return clock })
	for step := int64(1); step <= 3; step++ {
		e := Step{Step: step, TotalSteps: 10, Epoch: 1, Loss: 2.5, Perplexity: math.Exp(2.5),
			TokensPerSecond: 98765, WorldSize: 4}
		if err := view.Show(e); err != nil {
			t.Fatal(err)
		}
	}
	state := view.shown.Load()
	clock = clock.Add(4 * time.Second) // 2 steps took 4 s, 7 are left
	want := " step 3/10 epoch 1 loss 2.500 ppl 12.18 98,765 tok/s eta 14s ring 4"
	if got := state.text(clock); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if err := view.Show(Sample{Step: 3, Text: "light"}); err != nil {
		t.Fatal(err)
	}
	if err := view.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "light") {
		t.Errorf("the sample is not in %q", out.String())
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", -1234: "-1,234",
		1e6: "1,000,000", math.Inf(1): "?"} {
		if got := thousands(v); got != want {
			t.Errorf("thousands(%g) = %q, want %q", v, got, want)
		}
	}
}

// TestDoneSaysWhy: the last line gives the reason why the job ended, unless it repeats the rest of
// the line.
func TestDoneSaysWhy(t *testing.T) {
	const figures = ": loss 1.0000, perplexity 2.718, 7 tokens/s\nthe model was not kept"
	for reason, want := range map[string]string{
		"--steps 9 reached":     "done after step 9 (--steps 9 reached)" + figures,
		"":                      "done after step 9" + figures,
		"stopped: interrupted":  "stopped after step 9 (interrupted)" + figures,
		"stopped":               "stopped after step 9" + figures,
		"stopped while paused:": "stopped after step 9 (stopped while paused:)" + figures,
	} {
		e := Done{Step: 9, Loss: 1, Perplexity: math.E, TokensPerSecond: 7, Reason: reason,
			Stopped: strings.HasPrefix(reason, "stopped")}
		if _, got := Line(e); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
		if line, err := MarshalEvent(e); err != nil ||
			!strings.Contains(string(line), `"reason":"`+reason+`"`) {
			t.Errorf("%s, %v", line, err)
		}
	}
}

func TestMetricsAreMembersOfTheirEvents(t *testing.T) {
	metrics := []Metric{{"accuracy", 0.875}, {"macro \"f1\"", math.NaN()}}
	for _, e := range []Event{Eval{Step: 3, Loss: 0.5, Tokens: 8, Metrics: metrics},
		Done{Step: 3, Loss: math.NaN(), Metrics: metrics}} {
		line, err := MarshalEvent(e)
		var got map[string]any
		if err = errors.Join(err, json.Unmarshal(line, &got)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if f1, ok := got[`macro "f1"`]; got["accuracy"] != 0.875 || !ok || f1 != nil {
			t.Errorf("%s", line)
		}
		if _, text := Line(e); !strings.Contains(text, " accuracy 0.8750, macro") {
			t.Errorf("%q", text)
		}
	}
}

func TestTheEndNamesTheBest(t *testing.T) {
	e := Done{Step: 9, Loss: 1, Reason: "--steps 9 reached", Checkpoint: "runs/a/step-9",
		BestStep: 6, BestLoss: 1.5176}
	const want = "\nbest: step 6, validation loss 1.518\ncheckpoint: runs/a/step-9"
	if _, got := Line(e); !strings.HasSuffix(got, want) {
		t.Errorf("%q", got)
	}
	line, err := MarshalEvent(e)
	if err != nil || !strings.Contains(string(line), `"best_step":6,"best_loss":1.5176`) {
		t.Errorf("%s, %v", line, err)
	}
	e.BestStep, e.BestLoss = 0, 0
	line, err = MarshalEvent(e)
	if _, got := Line(e); err != nil || strings.Contains(got+string(line), "best") {
		t.Errorf("without an evaluation: %q, %s, %v", got, line, err)
	}
}
