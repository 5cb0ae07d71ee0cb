package answer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/model"
)

// small are networks of every kind.
func small() (all []Config) {
	for kind := range 8 {
		all = append(all, Config{Words: 9, Answers: 4, Hidden: 5, Hops: 1 + kind%3, Rows: 4,
			LayerWise: kind&1 > 0, Position: kind&2 > 0, Temporal: kind&4 > 0, Seed: 1})
	}
	return all
}

// drawn are parameters in float64.
func drawn(c Config) []float64 {
	rng := rand.New(rand.NewPCG(1, 5))
	params := make([]float64, model.Span(c.Layout()))
	for _, v := range c.Layout() {
		for i := range v.Len {
			params[v.Offset+i] = 0.7 * rng.NormFloat64()
		}
	}
	return params
}

// stories have more sentences than the memory has rows, fewer, and none.
func stories() []*Story {
	return []*Story{
		{Sentences: [][]int32{{1, 2}, {3, 4, 5}, {6, 1, 1}, {2}, {7, 8}, {3, 2, 1}},
			Question: []int32{5, 6}, Answer: 2},
		{Sentences: [][]int32{{8, 2}, {3, 4, 5}}, Question: []int32{1, 6, 7}, Answer: 0},
		{Question: []int32{3, 3}, Answer: 1},
	}
}

// TestGradients holds every number of the gradient to finite differences.
func TestGradients(t *testing.T) {
	for i, c := range small() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			params, p := drawn(c), newPass[float64](c)
			for _, s := range stories() {
				p.Forward(params, s)
				got := make([]float64, len(params))
				p.Backward(params, got, 0.5)
				for _, v := range c.Layout() {
					for k := range v.Len {
						const h = 1e-5
						loss := func(by float64) float64 {
							params[v.Offset+k] += by
							defer func() { params[v.Offset+k] -= by }()
							return p.Forward(params, s).Loss
						}
						want := 0.5 * (loss(h) - loss(-h)) / (2 * h)
						g := got[v.Offset+k]
						if !(math.Abs(g-want) <= 1e-8*max(1, math.Abs(want))) {
							t.Errorf("%s[%d]: %.9g, want %.9g", v.Name, k, g, want)
						}
					}
				}
			}
		})
	}
}
