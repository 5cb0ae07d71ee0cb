package translate

import (
	"math"
	"math/rand/v2"

	"rondo/compute"
	"rondo/model"
)

// Sampling is scheduled sampling (Bengio et al. 2015, arXiv:1506.03099): in training the decoder
// reads, before each position, its own prediction with probability Own, and else the right token.
// The prediction is the likeliest token after what it has read so far, as it translates, without
// dropout, or with Drawn one of the distribution. The zero value is teacher forcing: right tokens
// alone.
type Sampling struct {
	Own   float64
	Steps int64  // in which the probability grows linearly from 0 to Own
	Seed  uint64 // of the draws, for each segment, lane and position
	Drawn bool
}

// own is the probability at a step, from 0.
func (s Sampling) own(step int64) float64 {
	if s.Own == 0 || step >= s.Steps {
		return s.Own
	}
	return s.Own * float64(step) / float64(s.Steps)
}

// Layers that stand for the draws among those of model.DropoutKey: of positions, and of tokens.
const (
	samplingLayer = -2
	tokenLayer    = -3
)

// draw sets for each input of the pairs whether it is the decoder's own, with this probability. It
// returns the last step with one; 0: there is none. The first input begins the target, and is
// always right.
func (s Sampling) draw(in *model.Pairs, probability float64, own []bool) (last int) {
	clear(own)
	B, dropped := len(in.Lanes), float32(probability)
	for b, lane := range in.Lanes {
		key := model.DropoutKey(s.Seed, in.Step, samplingLayer, lane)
		for t := 1; t < in.TargetSteps && in.Targets[t*B+b] >= 0; t++ {
			if !compute.DropoutKeep(key, t, dropped) {
				own[t*B+b], last = true, max(last, t)
			}
		}
	}
	return last
}

// sample replaces the inputs of the pairs that are drawn at a step, from 0, by predictions of the
// decoder, which has a hypothesis for each lane. Gradients do not flow through the choice of a
// token, so that a pass over these inputs has the gradients of scheduled sampling.
func (s *seat) sample(step int64, in *model.Pairs) error {
	sampling := s.task.sampling
	probability := sampling.own(step)
	if probability == 0 {
		return nil
	}
	own := s.own[:len(in.Inputs)]
	last := sampling.draw(in, probability, own)
	if last == 0 {
		return nil
	}
	in.Inputs = append([]int32(nil), in.Inputs...)
	if err := s.decoder.Encode(in.Source, in.SourceLengths); err != nil {
		return err
	}
	B, V := len(in.Lanes), s.task.Config().TargetVocab
	for t := range last {
		if err := s.decoder.Logits(in.Inputs[t*B:][:B], nil, s.logits); err != nil {
			return err
		}
		for b := range B {
			if at := (t+1)*B + b; own[at] {
				in.Inputs[at] = sampling.choose(s.task.marks, in, b, t, s.logits[b*V:][:V])
			}
		}
	}
	return nil
}

// choose chooses lane b's prediction at step t.
func (s Sampling) choose(m marks, in *model.Pairs, b, t int, logits []float32) int32 {
	if !s.Drawn {
		return m.likeliest(logits)
	}
	key := model.DropoutKey(s.Seed, in.Step, tokenLayer, in.Lanes[b])
	return m.drawn(logits, rand.New(rand.NewPCG(key, uint64(t))).Float64())
}

// drawn is the token of softmax(logits) at u in [0, 1). No translation begins again.
func (m marks) drawn(logits []float32, u float64) int32 {
	best, sum, weights := m.likeliest(logits), 0.0, make([]float64, len(logits))
	for token, x := range logits {
		if int32(token) != m.begin {
			weights[token] = math.Exp(float64(x - logits[best]))
			sum += weights[token]
		}
	}
	left := u * sum
	for token, weight := range weights {
		if left -= weight; left < 0 {
			return int32(token)
		}
	}
	return best // rounding, or logits that are not finite
}

// likeliest is the token with the largest logit. No translation begins again.
func (m marks) likeliest(logits []float32) (best int32) {
	for token, x := range logits {
		if x > logits[best] && int32(token) != m.begin {
			best = int32(token)
		}
	}
	return best
}
