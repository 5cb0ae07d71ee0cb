package corpus

import "fmt"

// Segments of random lengths (Merity et al. 2018, arXiv:1708.02182, section 5): with probability
// 0.95 a segment has T tokens and else T/2, both with a normal error of standard deviation 5. Here
// the error is -9, 0 or 9, with the weights 1/6, 2/3 and 1/6. With sqrt(3)*5 = 8.66 in the place
// of 9 these have the normal distribution's first five moments (Gauss-Hermite quadrature). Half
// segments have no error.
// Four lengths are few enough that a network has a workspace for each.
//
// Each block of lengthBlock segments has all lengths in these shares, in an order drawn for the
// block. So a block always has the same number of tokens, and a segment's place follows without the
// segments of earlier blocks.
const (
	halfSegments   = 6
	shortSegments  = 19 // and as many long ones
	normalSegments = 76
	lengthBlock    = halfSegments + 2*shortSegments + normalSegments
	lengthError    = 9
	minVariedBPTT  = 2 * (lengthError + 1)
)

// lengths are the lengths of segments around T.
type lengths int64

// at returns the length of a block's i-th segment, before they are shuffled.
func (t lengths) at(i int) int64 {
	switch {
	case i < shortSegments:
		return int64(t) + lengthError
	case i < shortSegments+normalSegments:
		return int64(t)
	case i < 2*shortSegments+normalSegments:
		return int64(t) - lengthError
	}
	return int64(t) / 2
}

// most returns the most tokens that n segments of a block have.
func (t lengths) most(n int) (tokens int64) {
	for i := range n { // from the longest on
		tokens += t.at(i)
	}
	return tokens
}

// steps returns the most segments that n tokens have, whatever the order in each block.
func (t lengths) steps(n int64) int64 {
	block := t.most(lengthBlock)
	rest := 0
	for t.most(rest+1) <= n%block {
		rest++
	}
	return n/block*lengthBlock + int64(rest)
}

// of returns the length of an epoch's segment, and the tokens of the epoch's segments before it.
func (t lengths) of(seed uint64, epoch, index int64) (length, before int64) {
	block := index / lengthBlock
	order := NewPermutation(lengthBlock, Hash3(Hash3(seed, uint64(epoch), purposeLengths),
		uint64(block), 0))
	before = block * t.most(lengthBlock)
	for i := range index % lengthBlock {
		before += t.at(int(order.At(uint64(i))))
	}
	return t.at(int(order.At(uint64(index % lengthBlock)))), before
}

// newVariedSampler is NewSampler of segments of random lengths.
func newVariedSampler(cfg SamplerConfig) (*Sampler, error) {
	if cfg.BPTT < minVariedBPTT || cfg.BPTT > MaxBPTT-lengthError {
		return nil, fmt.Errorf("--bptt-random needs a --bptt of %d to %d, and it is %d",
			minVariedBPTT, MaxBPTT-lengthError, cfg.BPTT)
	}
	t := lengths(cfg.BPTT)
	row := max(0, cfg.Tokens-int64(cfg.BPTT)) / int64(cfg.Lanes) // after the largest skip
	steps := t.steps(row)
	if steps < 1 {
		return nil, tooFewTokens(cfg, int64(cfg.BPTT+lengthError))
	}
	return &Sampler{cfg, steps}, nil
}
