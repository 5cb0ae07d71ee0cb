package model

import (
	"errors"
	"math"
	"slices"

	"rondo/compute"
)

// Ends is how a Translator with Vectors says where a text ends (Goodfellow, Bengio and Courville,
// Deep Learning, section 10.2.4).
type Ends int

const (
	// EndToken ends it by a token, like others.
	EndToken Ends = iota
	// EndStop has a Bernoulli output: before each token the network stops or goes on. In place of
	// the probability p of a token there are s for the token that ends a target, and (1-s) p for
	// the others.
	EndStop
	// EndLength predicts the number of tokens from the vector. To each token's embedding it adds
	// one of how many are left.
	EndLength
)

// EndsNames returns the names, in the order of their numbers.
func EndsNames() []string {
	return []string{EndToken: "eos", EndStop: "stop", EndLength: "length"}
}

// ParseEnds returns the way with this name.
func ParseEnds(name string) (Ends, error) {
	at, err := parseName("--ends", name, EndsNames())
	return Ends(at), err
}

// Names of the tensors: the outputs' [2, H] or [Lengths, F], and the embedding's [Lengths, E].
const (
	stopWeight      = "stop.weight"
	stopBias        = "stop.bias"
	lengthWeight    = "length.weight"
	lengthBias      = "length.bias"
	remainingWeight = "remaining.weight"
)

// validateEnds checks Ends.
func (c TranslatorConfig) validateEnds() error {
	switch {
	case c.Ends < 0 || int(c.Ends) >= len(EndsNames()):
		return errors.New("--ends: it is none of the ways to end")
	case c.Ends != EndToken && c.Vectors == 0:
		return errors.New("--ends is for a network of vectors: leave it out")
	case c.Ends != EndToken && (c.End < 0 || int(c.End) >= c.TargetVocab):
		return errors.New("model: no token ends a target")
	case c.Ends == EndLength && c.Lengths < 1:
		return errors.New("model: no number of lengths")
	}
	return nil
}

// endShape is the shape of the output beside that of the tokens, and the names of its tensors.
func (c TranslatorConfig) endShape(steps, B int) (s compute.OutputShape, weight, bias string) {
	if c.Ends == EndStop {
		return compute.OutputShape{N: steps * B, H: c.Hidden, V: 2}, stopWeight, stopBias
	}
	return compute.OutputShape{N: B, H: c.Vectors, V: c.Lengths}, lengthWeight, lengthBias
}

// headEnd names the last tensor of the outputs in the layout.
func (c TranslatorConfig) headEnd() string {
	if c.Ends == EndToken {
		return outputBias
	}
	_, _, bias := c.endShape(1, 1)
	return bias
}

// ends is what a translation has with another of Ends than EndToken.
type ends struct {
	*translation
	remaining []int32 // [Td, B]: with EndLength the tokens that are left; nil: another way
	beside    *compute.Beside
}

// addEnds puts the other output beside that of the tokens.
func (n *translation) addEnds() {
	c := n.translator.config
	s, weight, bias := c.endShape(n.decoder.T, n.decoder.B)
	var x []float32
	if c.Ends == EndLength {
		x = n.vectors.x
	}
	of := func(flat []float32) compute.Linear {
		return compute.Linear{W: n.decoder.view(weight, flat), B: n.decoder.view(bias, flat)}
	}
	n.ends.beside = compute.NewBeside(n.decoder.dev, n.output.kernel, s, of(n.decoder.params),
		of(n.decoder.grads), x)
	n.output.kernel = n.ends.beside
	n.output.done = n.finishing(find(n.decoder.views, bias))
}

// load sets the targets of lanes with so many steps, whose last target is the end.
func (e *ends) load(lengths []int) {
	B, targets, other := e.decoder.B, e.output.targets, e.beside.Targets
	for i, id := range targets {
		left := lengths[i%B] - 1 - i/B
		if left == 0 {
			targets[i] = -1
		}
		switch {
		case e.remaining != nil:
			e.remaining[i] = int32(max(0, left))
		case id < 0:
			other[i] = -1
		case left == 0:
			other[i] = 1
		default:
			other[i] = 0
		}
	}
	if e.remaining != nil {
		for b, length := range lengths {
			other[b] = int32(length - 1)
		}
	}
}

// embed adds what is left to the embeddings y: [Td, B, E].
func (e *ends) embed(y []float32) {
	if e != nil && e.remaining != nil {
		E := e.decoder.Embed
		e.decoder.dev.CopyRows(packed(y, E), packed(e.decoder.view(remainingWeight,
			e.decoder.params), E), len(e.remaining), E, e.remaining, true)
	}
}

// backward computes the gradient of that, given y's.
func (e *ends) backward(dy []float32) {
	if e != nil && e.remaining != nil {
		dw := e.decoder.view(remainingWeight, e.decoder.grads)
		e.decoder.dev.Zero(dw)
		e.decoder.dev.EmbedBackward(dw, dy, e.remaining)
	}
}

// decoderEnds is how a Decoder ends its hypotheses.
type decoderEnds struct {
	logits []float32 // of the other output, in the device's memory: [B, 2] or [B, Lengths]
	host   []float32
	left   []int32   // [B]: with EndLength the tokens that each hypothesis lacks
	length []float32 // [B]: log probability of the length of each one's text
	first  bool      // the last step was the first
}

// other computes the other output of x on the host.
func (d *Decoder) other(x []float32) {
	c, dev := d.translator.config, d.translator.dev
	s, weight, bias := c.endShape(1, len(d.identity))
	dev.Gemm(false, true, s.N, s.V, s.H, 1, x, d.translator.view(weight, d.translator.params), 0,
		d.ends.logits)
	dev.AddBias(d.ends.logits, d.translator.view(bias, d.translator.params))
	dev.Download(d.ends.host, d.ends.logits)
}

// beginEnds takes the likeliest length of each lane's text.
func (d *Decoder) beginEnds() {
	if d.translator.config.Ends != EndLength {
		return
	}
	d.other(d.vectors.x)
	for b, n := range d.identity {
		logits := d.ends.host[int(n)*d.translator.config.Lengths:][:d.translator.config.Lengths]
		logSoftmax(logits)
		best := slices.Index(logits, slices.Max(logits))
		d.ends.left[b], d.ends.length[b] = int32(max(0, best)), slices.Max(logits)
	}
}

// readEnds sets how many tokens are left of hypotheses that continue these.
func (d *Decoder) readEnds(from []int32) {
	if d.ends.first = d.begin == nil; d.translator.config.Ends != EndLength {
		return
	}
	left, length := slices.Clone(d.ends.left), slices.Clone(d.ends.length)
	for b, parent := range from {
		d.ends.left[b], d.ends.length[b] = left[parent], length[parent]
		if !d.ends.first {
			d.ends.left[b] = max(0, left[parent]-1)
		}
		d.translation.ends.remaining[b] = d.ends.left[b]
	}
}

// end makes log probabilities of tokens, [B, V], those of tokens and ends.
func (d *Decoder) end(next []float32) {
	c, never := d.translator.config, float32(math.Inf(-1))
	for b := range d.identity {
		tokens := next[b*c.TargetVocab:][:c.TargetVocab]
		switch {
		case c.Ends == EndStop:
			choice := d.ends.host[2*b:][:2]
			logSoftmax(choice)
			for v := range tokens {
				tokens[v] += choice[0]
			}
			tokens[c.End] = choice[1]
		case c.Ends == EndLength && d.ends.left[b] == 0:
			for v := range tokens {
				tokens[v] = never
			}
			tokens[c.End] = 0
		case c.Ends == EndLength:
			tokens[c.End] = never
		}
		if c.Ends == EndLength && d.ends.first {
			for v := range tokens {
				tokens[v] += d.ends.length[b]
			}
		}
	}
}
