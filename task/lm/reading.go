package lm

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rondo/compute"
	"rondo/corpus"
	"rondo/model"
)

// Reading says how a text is read to score it.
type Reading struct {
	// Rows is how many rows the text is cut into, which are read side by side. Each begins at a
	// zero state, so one row has its whole context. 0: 8, or fewer of a short text.
	Rows int
	// DynamicRate, unless 0, is dynamic evaluation's learning rate η: after each segment the
	// parameters follow the gradient of its mean loss, and go back to the trained ones by the share
	// DynamicDecay (Krause et al. 2018, arXiv:1709.07432, equations 3 and 5, with SGD).
	DynamicRate, DynamicDecay float64
	// Cache is the neural cache: its tokens; 0: none.
	Cache int
	// CacheTheta and CacheLambda < 1 are θ and λ of the cache (Grave et al. 2017, arXiv:1612.04426,
	// equations 2 and 3). With h the output layer's input, and i over the last Cache tokens of a
	// row:
	//
	//	p(w) = (1-λ) softmax(output)(w) + λ p_cache(w)
	//	p_cache(w) ∝ Σ_i [token after i is w] exp(θ h·h_i)
	CacheTheta, CacheLambda float64
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (r Reading) Validate() error {
	for _, f := range []struct {
		flag  string
		value float64
		most  float64
	}{{"--rows", float64(r.Rows), 1 << 16}, {"--dynamic", r.DynamicRate, 1e6},
		{"--dynamic-decay", r.DynamicDecay, 1}, {"--cache", float64(r.Cache), 1 << 20},
		{"--cache-theta", r.CacheTheta, 1e6}, {"--cache-lambda", r.CacheLambda, 1}} {
		if !(f.value >= 0 && f.value <= f.most) {
			return fmt.Errorf("%s %g: must be 0 to %g", f.flag, f.value, f.most)
		}
	}
	if r.CacheLambda == 1 {
		return errors.New("--cache-lambda 1: must be below 1, as the cache lacks tokens")
	}
	if r.DynamicDecay > 0 && r.DynamicRate == 0 {
		return errors.New("--dynamic-decay is for --dynamic: give its learning rate")
	}
	return nil
}

// Score runs the model over a text in segments of T tokens. It returns the loss summed over the
// targets, in nats, and their number. Each token but the first is a target. A dynamic reading turns
// the model's regularisers off.
func (r Reading) Score(
	ctx context.Context, m *model.Model, text corpus.Tokens, bptt int,
) (lossSum float64, targets int64, err error) {
	rows := r.Rows
	if rows == 0 {
		rows = int(min(maxRows, max(1, text.Len()/int64(bptt))))
	}
	pass, err := corpus.NewEvaluation(text, rows, bptt)
	if err != nil {
		return 0, 0, err
	}
	s := &scorer{Reading: r, m: m, T: bptt, rows: rows}
	defer s.close()
	if err := s.open(); err != nil {
		return 0, 0, err
	}
	b := newBatch(bptt * rows)
	for segment := range pass.Segments() {
		if err := pass.Fill(ctx, segment, 0, rows, b.inputs, b.targets); err != nil {
			return 0, 0, err
		}
		loss, err := s.score(b)
		if err != nil {
			return 0, 0, err
		}
		lossSum += loss
	}
	return lossSum, pass.Targets(), nil
}

// scorer reads one segment after another.
type scorer struct {
	Reading
	m       *model.Model
	T, rows int

	evaluator *model.Evaluator // nil: the dynamic passes compute the losses
	segment   *model.Segment   // of a dynamic reading
	trained   []float32        // its parameters before it, host memory
	center    []float32        // the same in device memory

	caches         []*cache // of each row
	hidden, logits []float32
}

func (s *scorer) open() (err error) {
	defer compute.Catch(&err)
	if s.Cache > 0 || s.DynamicRate == 0 {
		if s.evaluator, err = s.m.NewEvaluator(s.T, s.rows); err != nil {
			return err
		}
	}
	if s.Cache > 0 {
		n, W := s.T*s.rows, s.m.OutputWidth()
		s.hidden, s.logits = make([]float32, n*W), make([]float32, n*s.m.Config().Vocab)
		for range s.rows {
			s.caches = append(s.caches, newCache(s.Cache, W))
		}
	}
	if s.DynamicRate == 0 {
		return nil
	}
	s.m.DropRegularisers()
	if s.segment, err = s.m.NewSegment(s.T, s.rows); err != nil {
		return err
	}
	params := s.m.Params()
	s.trained = make([]float32, len(params))
	s.m.Device().Download(s.trained, params)
	s.center = s.m.Device().Alloc(len(params))
	s.m.Device().Upload(s.center, s.trained)
	return nil
}

// score returns the summed loss of a segment, before the parameters follow it.
func (s *scorer) score(b *batch) (loss float64, err error) {
	if s.Cache > 0 {
		if err = s.evaluator.Outputs(b.inputs, s.hidden, s.logits); err == nil {
			loss = s.cached(b.targets)
		}
	} else if s.evaluator != nil {
		loss, _, err = s.evaluator.Evaluate(b.inputs, b.targets)
	}
	if err != nil || s.segment == nil {
		return loss, err
	}
	passed, err := s.follow(b)
	if s.Cache == 0 {
		loss = passed
	}
	return loss, err
}

// follow updates the parameters by a segment, and returns its summed loss before.
func (s *scorer) follow(b *batch) (loss float64, err error) {
	targets := 0
	for _, id := range b.targets {
		if id >= 0 {
			targets++
		}
	}
	loss, err = s.segment.Run(model.SegmentInput{Inputs: b.inputs, Targets: b.targets,
		Scale: 1 / float32(max(1, targets))})
	if err != nil {
		return 0, err
	}
	defer compute.Catch(&err)
	dev, params, n := s.m.Device(), s.m.Params(), len(s.center)
	change := s.m.Gradients()[:n:n]
	dev.Scale(change, -float32(s.DynamicRate))
	if decay := float32(s.DynamicDecay); decay > 0 { // a difference: 1-decay would be rounded
		dev.Update(compute.Update{Optimizer: compute.SGD, LR: -decay}, change, s.center, nil, nil)
		dev.Update(compute.Update{Optimizer: compute.SGD, LR: decay}, change, params, nil, nil)
	}
	dev.Add(params, change)
	return loss, nil
}

// cached returns the summed loss of the segment whose outputs are known, and adds it to the caches.
func (s *scorer) cached(targets []int32) (loss float64) {
	W, V := s.m.OutputWidth(), s.m.Config().Vocab
	for i, target := range targets {
		if target < 0 {
			continue
		}
		h, c := s.hidden[i*W:][:W], s.caches[i%s.rows]
		logP := logSoftmax(s.logits[i*V:][:V], target)
		if len(c.tokens) > 0 && s.CacheLambda > 0 {
			logP = logSum(math.Log1p(-s.CacheLambda)+logP,
				math.Log(s.CacheLambda)+math.Log(c.probability(h, target, s.CacheTheta)))
		}
		loss -= logP
		c.add(h, target)
	}
	return loss
}

func (s *scorer) close() {
	if s.evaluator != nil {
		s.evaluator.Close()
	}
	if s.segment != nil {
		s.segment.Close()
	}
	if s.center != nil {
		s.m.Device().Upload(s.m.Params(), s.trained)
		s.m.Device().Free(s.center)
	}
}

// logSum is log(exp(a) + exp(b)) of a finite number and one that may be -Inf.
func logSum(a, b float64) float64 {
	return max(a, b) + math.Log1p(math.Exp(-math.Abs(a-b)))
}

// logSoftmax is the logarithm of the softmax of logits at an index. It is finite where the softmax
// itself would be 0.
func logSoftmax(logits []float32, at int32) float64 {
	largest := logits[0]
	for _, x := range logits {
		largest = max(largest, x)
	}
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x - largest))
	}
	return float64(logits[at]-largest) - math.Log(sum)
}

// cache has the last outputs of a row, and the tokens that followed.
type cache struct {
	width  int
	most   int
	next   int       // place of the next one
	hidden []float32 // up to [most, width]
	tokens []int32
	scores []float64
}

func newCache(most, width int) *cache {
	return &cache{width: width, most: most, scores: make([]float64, most)}
}

// add puts an output and its token in the place of the oldest.
func (c *cache) add(h []float32, token int32) {
	if len(c.tokens) < c.most {
		c.hidden, c.tokens = append(c.hidden, h...), append(c.tokens, token)
		return
	}
	copy(c.hidden[c.next*c.width:], h)
	c.tokens[c.next] = token
	c.next = (c.next + 1) % c.most
}

// probability is p_cache of a token after the output h.
func (c *cache) probability(h []float32, token int32, theta float64) float64 {
	scores, largest := c.scores[:len(c.tokens)], math.Inf(-1)
	for i := range scores {
		var dot float32
		for k, x := range c.hidden[i*c.width:][:c.width] {
			dot += x * h[k]
		}
		scores[i] = theta * float64(dot)
		largest = max(largest, scores[i])
	}
	all, same := 0.0, 0.0
	for i, score := range scores {
		e := math.Exp(score - largest)
		all += e
		if c.tokens[i] == token {
			same += e
		}
	}
	return same / all
}
