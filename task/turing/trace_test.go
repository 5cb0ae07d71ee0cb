package turing

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"rondo/model"
)

// TestTrace holds the network to PyTorch: see testdata/trace.py.
func TestTrace(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var trace struct {
				Inputs, Outputs, Hidden   int
				FeedForward               bool `json:"feed_forward"`
				Rows, Width, Heads, Shift int
				First                     int
				X, Y                      []float32
				Loss                      float64
				Tensors, Gradients        map[string][]float64
			}
			if err := json.Unmarshal(text, &trace); err != nil {
				t.Fatal(err)
			}
			c := Config{Inputs: trace.Inputs, Outputs: trace.Outputs, Hidden: trace.Hidden,
				FeedForward: trace.FeedForward, Rows: trace.Rows, Width: trace.Width,
				Heads: trace.Heads, Shift: trace.Shift}
			params := make([]float64, model.Span(c.Layout()))
			for _, v := range c.Layout() {
				if len(trace.Tensors[v.Name]) != v.Len {
					t.Fatalf("%s has %d numbers", v.Name, len(trace.Tensors[v.Name]))
				}
				copy(params[v.Offset:], trace.Tensors[v.Name])
			}
			p, got := newPass[float64](c), make([]float64, len(params))
			e := &Example{Inputs: trace.X, Targets: trace.Y, First: trace.First}
			if loss := p.Forward(params, e).Loss; math.Abs(loss-trace.Loss) > 1e-12 {
				t.Errorf("loss %.15g, want %.15g", loss, trace.Loss)
			}
			p.Backward(params, got, 1)
			for _, v := range c.Layout() {
				for i, want := range trace.Gradients[v.Name] {
					if g := got[v.Offset+i]; !(math.Abs(g-want) < 1e-11*max(1, math.Abs(want))) {
						t.Errorf("%s[%d]: %.15g, want %.15g", v.Name, i, g, want)
					}
				}
			}
		})
	}
}
