package answer

import (
	"math/rand/v2"

	"rondo/task/memory"
)

// paths are the sentences that hard attention reads (Xu et al. 2015, arXiv:1502.03044, section
// 4.1). A hop reads one sentence s, drawn from its weights p, in place of the mean of all. The loss
// is the mean over paths of -log P(answer | path), an upper bound of -log P(answer) (equation 10).
// Its gradient is estimated from M paths by REINFORCE (equation 12):
//
//	1/M Σ over m of (∇ loss[m] + (loss[m] - b[m]) ∇ Σ over hops of log p[s])
//
// b[m] is the mean loss of the other paths (Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE
// samples, get a baseline for free!"). The paper's baseline, a moving average, would be a state
// beside the parameters. Outside of training, and with soft attention, there is one path: each hop
// reads the sentence with the largest weight.
type paths[F memory.Float] struct {
	choose func(path, hop int, weights []F) (sentence int)
	read   []int     // [K]: the sentences of the path that was computed last
	losses []float64 // of this question's paths

	all    []float64 // the memory of losses
	source *rand.PCG
	rng    *rand.Rand
	key    uint64
}

func newPaths[F memory.Float](c Config) paths[F] {
	source := rand.NewPCG(0, 0)
	return paths[F]{read: make([]int, c.Hops), all: make([]float64, max(1, c.Draws)),
		source: source, rng: rand.New(source)}
}

// begin begins with a question.
func (p *paths[F]) begin(s *Story) {
	p.losses, p.choose = p.all[:1], likeliest[F]
	if s.Draw != 0 {
		p.losses, p.choose, p.key = p.all, p.draw, s.Draw
	}
}

// draw draws a sentence. A path draws the same ones each time that it is computed.
func (p *paths[F]) draw(path, hop int, weights []F) int {
	if hop == 0 {
		p.source.Seed(p.key, uint64(path))
	}
	x, last := F(p.rng.Float64()), 0
	for i, w := range weights {
		if w > 0 {
			last = i
		}
		if x -= w; x < 0 {
			break
		}
	}
	return last
}

// likeliest is the sentence with the largest weight.
func likeliest[F memory.Float](_, _ int, weights []F) (sentence int) {
	for i, w := range weights {
		if w > weights[sentence] {
			sentence = i
		}
	}
	return sentence
}

// mean is the loss of the question.
func (p *paths[F]) mean() (loss float64) {
	for _, x := range p.losses {
		loss += x / float64(len(p.losses))
	}
	return loss
}

// advantage is a path's loss minus the mean of the others'; 0: there are none.
func (p *paths[F]) advantage(path int) float64 {
	n := float64(len(p.losses))
	if n == 1 {
		return 0
	}
	return n / (n - 1) * (p.losses[path] - p.mean())
}
