package events

import (
	"math"
	"strings"
	"testing"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// A cross-entropy has a perplexity, and a mean squared error has none: neither its JSON nor its
// line names one.
func TestPerplexity(t *testing.T) {
	for _, squared := range []bool{false, true} {
		for _, e := range []*rondov1.Event{
			{Kind: &rondov1.Event_Step{Step: &rondov1.StepEvent{Step: 1, Loss: 2,
				SquaredError: squared}}},
			{Kind: &rondov1.Event_Eval{Eval: &rondov1.EvalEvent{Step: 1, Loss: 2,
				SquaredError: squared, Metrics: []*rondov1.Metric{{Name: "mse", Value: 2}}}}},
			{Kind: &rondov1.Event_Done{Done: &rondov1.DoneEvent{Step: 1, Loss: 2,
				SquaredError: squared}}},
		} {
			shown, err := Telemetry(e)
			if err != nil {
				t.Fatal(err)
			}
			text, err := telemetry.MarshalEvent(shown)
			if err != nil {
				t.Fatal(err)
			}
			_, line := telemetry.Line(shown)
			text = append(text, line...)
			if got := strings.Contains(string(text), "perplexity"); got == squared {
				t.Errorf("squared error %t: %s", squared, text)
			}
		}
	}
	if got := perplexity(2, false); got != math.Exp(2) {
		t.Errorf("perplexity %v", got)
	}
}
