package answer

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
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var trace struct {
				Words, Answers, Hidden, Hops, Rows int
				LayerWise                          bool `json:"layer_wise"`
				Position, Temporal                 bool
				Sentences                          [][]int32
				Question                           []int32
				Answer                             int32
				Loss                               float64
				Tensors, Gradients                 map[string][]float64
			}
			if err := json.Unmarshal(text, &trace); err != nil {
				t.Fatal(err)
			}
			c := Config{Words: trace.Words, Answers: trace.Answers, Hidden: trace.Hidden,
				Hops: trace.Hops, Rows: trace.Rows, LayerWise: trace.LayerWise,
				Position: trace.Position, Temporal: trace.Temporal}
			params := make([]float64, model.Span(c.Layout()))
			for _, v := range c.Layout() {
				if len(trace.Tensors[v.Name]) != v.Len {
					t.Fatalf("%s has %d numbers", v.Name, len(trace.Tensors[v.Name]))
				}
				copy(params[v.Offset:], trace.Tensors[v.Name])
			}
			p, got := newPass[float64](c), make([]float64, len(params))
			s := &Story{Sentences: trace.Sentences, Question: trace.Question, Answer: trace.Answer}
			if loss := p.Forward(params, s).Loss; math.Abs(loss-trace.Loss) > 1e-13 {
				t.Errorf("loss %.15g, want %.15g", loss, trace.Loss)
			}
			p.Backward(params, got, 1)
			for _, v := range c.Layout() {
				for i, want := range trace.Gradients[v.Name] {
					if g := got[v.Offset+i]; !(math.Abs(g-want) < 1e-13) {
						t.Errorf("%s[%d]: %.15g, want %.15g", v.Name, i, g, want)
					}
				}
			}
		})
	}
}
