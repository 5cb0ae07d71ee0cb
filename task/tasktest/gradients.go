package tasktest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"rondo/model"
	"rondo/train"
)

// Network computes an example at a time in float64: see memory.Pass.
type Network[E any] interface {
	Forward(params []float64, e *E) train.Score
	Backward(params, gradients []float64, scale float64)
}

// Draw draws the parameters from N(0, deviation²).
func Draw(views []model.View, seed uint64, deviation float64) []float64 {
	rng, params := rand.New(rand.NewPCG(seed, 5)), make([]float64, model.Span(views))
	for _, v := range views {
		for i := range v.Len {
			params[v.Offset+i] = deviation * rng.NormFloat64()
		}
	}
	return params
}

// gradient is that of an example's loss, times scale.
func gradient[E any](n Network[E], params []float64, e *E, scale float64) []float64 {
	n.Forward(params, e)
	got := make([]float64, len(params))
	n.Backward(params, got, scale)
	return got
}

// Gradients holds every number of the gradient of an example to finite differences.
func Gradients[E any](
	t *testing.T, n Network[E], views []model.View, params []float64, e *E, part float64,
) {
	t.Helper()
	const scale = 0.5
	Differences(t, views, params, gradient(n, params, e, scale), part, func() float64 {
		return scale * n.Forward(params, e).Loss
	})
}

// Differences holds every number of a gradient to finite differences of the loss.
func Differences(
	t *testing.T, views []model.View, params, got []float64, part float64, loss func() float64,
) {
	t.Helper()
	const h = 1e-5
	for _, v := range views {
		for k := range v.Len {
			at := v.Offset + k
			was := params[at]
			params[at] = was + h
			above := loss()
			params[at] = was - h
			below := loss()
			params[at] = was
			Near(t, fmt.Sprintf("%s[%d]", v.Name, k), got[at], (above-below)/(2*h), part)
		}
	}
}

// Traces holds networks to PyTorch: its losses and gradients in testdata's JSON files, of which
// there are this many. open makes the network and the example of a file.
func Traces[E any](t *testing.T, count int, part float64,
	open func(file []byte) (n Network[E], views []model.View, e *E, err error)) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) != count {
		t.Fatal(files, err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			var trace struct {
				Loss               float64
				Tensors, Gradients map[string][]float64
			}
			file, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(file, &trace); err != nil {
				t.Fatal(err)
			}
			n, views, e, err := open(file)
			if err != nil {
				t.Fatal(err)
			}
			params := make([]float64, model.Span(views))
			for _, v := range views {
				if len(trace.Tensors[v.Name]) != v.Len || len(trace.Gradients[v.Name]) != v.Len {
					t.Fatalf("%s has %d numbers", v.Name, len(trace.Tensors[v.Name]))
				}
				copy(params[v.Offset:], trace.Tensors[v.Name])
			}
			Near(t, "loss", n.Forward(params, e).Loss, trace.Loss, part)
			got := gradient(n, params, e, 1)
			for _, v := range views {
				for i, want := range trace.Gradients[v.Name] {
					Near(t, fmt.Sprintf("%s[%d]", v.Name, i), got[v.Offset+i], want, part)
				}
			}
		})
	}
}
