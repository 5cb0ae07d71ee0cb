package answer

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"rondo/model"
	"rondo/task/memory"
	"rondo/task/tasktest"
)

// small are networks of every kind.
func small() (all []Config) {
	for kind := range 8 {
		all = append(all, Config{Words: 9, Answers: 4, Hidden: 5, Hops: 1 + kind%3, Rows: 4,
			LayerWise: kind&1 > 0, Position: kind&2 > 0, Temporal: kind&4 > 0, Seed: 1})
	}
	return all
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
			params, p := tasktest.Draw(c.Layout(), 1, 0.7), newPass[float64](c)
			for _, s := range stories() {
				tasktest.Gradients(t, p, c.Layout(), params, s, 1e-8)
			}
		})
	}
}

// TestTrace holds the network to PyTorch: see testdata/trace.py.
func TestTrace(t *testing.T) {
	tasktest.Traces(t, 4, 1e-13, func(file []byte) (
		tasktest.Network[Story], []model.View, *Story, error,
	) {
		var trace struct {
			Config
			LayerWise bool `json:"layer_wise"`
			Story
		}
		err := json.Unmarshal(file, &trace)
		c := trace.Config
		c.LayerWise = trace.LayerWise
		return newPass[float64](c), c.Layout(), &trace.Story, err
	})
}

// TestHardGradients: the mean of the gradients of all paths that can be drawn, by their
// probabilities, is the gradient of the mean loss.
func TestHardGradients(t *testing.T) {
	for kind := range 4 {
		c := Config{Words: 9, Answers: 4, Hidden: 5, Hops: 2, Rows: 2, LayerWise: kind&1 > 0,
			Temporal: kind&2 > 0, Draws: 2}
		params, p := tasktest.Draw(c.Layout(), 1, 0.7), newPass[float64](c)
		s := stories()[0]
		// each calls visit with the probability of every choice of a sentence in each hop of each
		// path.
		each := func(visit func(probability float64)) {
			for number := range 1 << (c.Draws * c.Hops) {
				probability := 1.0
				p.remember(split(c, p.views, params), s)
				p.paths.losses = p.paths.all
				p.paths.choose = func(path, hop int, weights []float64) int {
					sentence := number >> (path*c.Hops + hop) & 1
					probability *= weights[sentence]
					return sentence
				}
				p.forwardPaths(params)
				visit(probability)
			}
		}
		got := make([]float64, len(params))
		each(func(probability float64) { p.Backward(params, got, probability) })
		tasktest.Differences(t, c.Layout(), params, got, 1e-8, func() (mean float64) {
			each(func(probability float64) { mean += probability * p.score.Loss })
			return mean
		})
	}
}

// TestUnlikelyRead: a read so unlikely that its advantage divided by its weight is beyond float32
// has the gradient of float64.
func TestUnlikelyRead(t *testing.T) {
	c := Config{Words: 4, Answers: 3, Hidden: 2, Hops: 1, Rows: 2, Draws: 2}
	s := &Story{Sentences: [][]int32{{1}, {2}}, Question: []int32{3}, Answer: 2}
	params := tasktest.Draw(c.Layout(), 1, 0.7)
	clear(params[:c.Words*c.Hidden]) // of what is compared
	params[1*c.Hidden], params[3*c.Hidden] = 97, 1
	want, p := readBoth[float64](c, params, s)
	advantage, weight := p.paths.advantage(1), p.weights[0][1]
	if !(weight > 0 && math.Abs(advantage)/2/weight > math.MaxFloat32) {
		t.Fatalf("an advantage of %v and a weight of %v", advantage, weight)
	}
	got, _ := readBoth[float32](c, params, s)
	for i, g := range got {
		tasktest.Near(t, fmt.Sprintf("gradient %d", i), float64(g), want[i], 1e-5)
	}
}

// readBoth returns the summed gradient of two paths. Each reads one of two sentences.
func readBoth[F memory.Float](c Config, params []float64, s *Story) ([]F, *pass[F]) {
	p, in, gradient := newPass[F](c), make([]F, len(params)), make([]F, len(params))
	for i, x := range params {
		in[i] = F(x)
	}
	p.remember(split(c, p.views, in), s)
	p.paths.losses = p.paths.all
	p.paths.choose = func(path, _ int, _ []F) int { return path }
	p.forwardPaths(in)
	p.Backward(in, gradient, 1)
	return gradient, p
}

// TestDraws: sentences are drawn by their weights; the same key draws the same ones, and none is
// drawn outside of training.
func TestDraws(t *testing.T) {
	p := newPaths[float64](Config{Hops: 1, Draws: 2})
	weights := []float64{0.5, 0, 0.3, 0.2}
	var counts [4]float64
	for key := range uint64(10000) {
		p.begin(&Story{Draw: key + 1})
		for path := range p.losses {
			sentence := p.choose(path, 0, weights)
			if counts[sentence]++; p.choose(path, 0, weights) != sentence {
				t.Fatalf("key %d, path %d: another draw", key+1, path)
			}
		}
	}
	for i, n := range counts {
		tasktest.Near(t, fmt.Sprintf("share of sentence %d", i), n/20000, weights[i], 0.02)
	}
	if p.begin(&Story{}); len(p.losses) != 1 || p.choose(0, 0, weights) != 0 {
		t.Errorf("%d paths", len(p.losses))
	}
}
