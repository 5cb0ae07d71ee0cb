package translate

import (
	"rondo/compute"
	"rondo/model"
)

// Sampling is scheduled sampling (Bengio et al. 2015, arXiv:1506.03099): in training the decoder
// reads, before each position, its own prediction with probability Own, and else the right token.
// The prediction is the likeliest token after what it has read so far, as it translates, without
// dropout. The zero value is teacher forcing: right tokens alone.
type Sampling struct {
	Own   float64
	Steps int64  // in which the probability grows linearly from 0 to Own
	Seed  uint64 // of the draws, one for each step, lane and position
}

// own is the probability at a step, from 0.
func (s Sampling) own(step int64) float64 {
	if step >= s.Steps {
		return s.Own
	}
	return s.Own * float64(step) / float64(s.Steps)
}

// samplingLayer stands for the draws among the layers of model.DropoutKey.
const samplingLayer = -2

// draw returns for each input of the pairs whether it is the decoder's own, and the last step with
// one; 0: there is none. The first input begins the target, and is always right.
func (s Sampling) draw(in *model.Pairs) (own []bool, last int) {
	own = make([]bool, len(in.Inputs))
	B, dropped := len(in.Lanes), float32(s.own(in.Step))
	for b, lane := range in.Lanes {
		key := model.DropoutKey(s.Seed, in.Step, samplingLayer, lane)
		for t := 1; t < in.TargetSteps && in.Targets[t*B+b] >= 0; t++ {
			if !compute.DropoutKeep(key, t, dropped) {
				own[t*B+b], last = true, max(last, t)
			}
		}
	}
	return own, last
}

// sample replaces the drawn inputs of the pairs by predictions of the decoder, which has a
// hypothesis for each lane. Gradients do not flow through the choice of a token, so that a pass
// over these inputs has the gradients of scheduled sampling.
func (t *Task) sample(d *model.Decoder, in *model.Pairs) error {
	own, last := t.sampling.draw(in)
	if last == 0 {
		return nil
	}
	in.Inputs = append([]int32(nil), in.Inputs...)
	if err := d.Encode(in.Source, in.SourceLengths); err != nil {
		return err
	}
	B, V := len(in.Lanes), t.Config().TargetVocab
	logits := make([]float32, B*V)
	for step := range last {
		if err := d.Logits(in.Inputs[step*B:][:B], nil, logits); err != nil {
			return err
		}
		for b := range B {
			if at := (step+1)*B + b; own[at] {
				in.Inputs[at] = t.marks.likeliest(logits[b*V:][:V])
			}
		}
	}
	return nil
}

// likeliest is the token with the largest logit. No translation begins again.
func (m marks) likeliest(logits []float32) (best int32) {
	if m.begin == 0 {
		best = 1
	}
	for token, x := range logits {
		if x > logits[best] && int32(token) != m.begin {
			best = int32(token)
		}
	}
	return best
}
