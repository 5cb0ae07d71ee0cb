package model

import (
	"fmt"
	"math"
	"slices"

	"rondo/compute"
)

// Decoder translates with a translator, one token of each of B hypotheses at a time.
type Decoder struct {
	*translation
	maxSource int
	memory    translationMemory
	encoded   compute.Attention // with attention, its values by lanes of Encode
	keys      []float32         // likewise
	sources   []float32         // keys and values by hypotheses, [Ts, B, H] and [Ts, B, W]
	states    []float32         // before and after a step: [L, 2, States, B, H]
	before    []compute.RecurrentState
	after     []compute.RecurrentState
	lanes     []int32   // [B]: the lane of Encode whose source a hypothesis translates
	begin     []int32   // [B]: the first token of a hypothesis; nil: there was no Step
	identity  []int32   // [B]: 0, 1, 2, …
	logits    []float32 // [B, V]
	ends      decoderEnds
}

// NewDecoder makes a decoder for sources of up to maxSource tokens and B hypotheses. Each call to
// it uses the translator's current parameters. It fails if the device lacks memory. Close frees the
// decoder.
func (t *Translator) NewDecoder(maxSource, B int) (*Decoder, error) {
	if maxSource < 1 || B < 1 {
		return nil, fmt.Errorf("model: a decoder of %d steps and %d hypotheses; each must be at "+
			"least 1", maxSource, B)
	}
	d := &Decoder{maxSource: maxSource, identity: make([]int32, B)}
	for b := range d.identity {
		d.identity[b] = int32(b)
	}
	d.memory.on(t.dev)
	d.translation = newTranslation(t, maxSource, 1, B, &d.memory)
	if err := d.allocate(); err != nil {
		d.Close()
		return nil, fmt.Errorf("model: a decoder of %d steps and %d hypotheses of %s: %w",
			maxSource, B, t.config.shape(), err)
	}
	return d, nil
}

// allocate allocates the decoder's memory. On an error it keeps what was allocated.
func (d *Decoder) allocate() (err error) {
	defer compute.Catch(&err)
	t, c := d.translator, d.translator.config
	B := len(d.identity)
	d.memory.allocate(c, t.dev.Alloc, d.maxSource, 1, B)
	d.make(&d.memory)
	d.lanes = d.input.lanes
	d.logits = t.dev.Alloc(B * c.TargetVocab)
	if c.Ends != EndToken {
		s, _, _ := c.endShape(1, B)
		d.ends = decoderEnds{logits: t.dev.Alloc(s.N * s.V), host: make([]float32, s.N*s.V),
			left: make([]int32, B), length: make([]float32, B)}
	}
	if of, keys := d.attends(); of != nil {
		d.encoded, d.keys = *of, *keys
		d.sources = t.dev.Alloc(len(d.keys) + len(of.V))
	}
	size := c.Cell.States() * B * c.Hidden
	d.states = t.dev.Alloc(2 * c.Layers * size)
	for k := range c.Layers {
		shape := c.decoder().layerShape(k, 1, B)
		d.before = append(d.before, cutState(shape, d.states[2*k*size:]))
		d.after = append(d.after, cutState(shape, d.states[(2*k+1)*size:]))
	}
	if d.additive != nil {
		d.additive.states = [][]compute.RecurrentState{d.before, d.after}
	}
	for k, layer := range d.decoder.layers {
		layer.(*Layer).in, layer.(*Layer).out = d.before[k], d.after[k]
	}
	return nil
}

// Encode reads sources, [steps, B], of these lengths, [B], of which each is at most steps. The next
// Step begins their translations. A length of 0 is an empty source.
func (d *Decoder) Encode(source, lengths []int32) (err error) {
	B := len(d.identity)
	in := Examples{Steps: len(source) / B, Inputs: source, Lengths: lengths}
	if err := in.check(d.maxSource, B, d.translator.sources()); err != nil {
		return err
	}
	defer compute.Catch(&err)
	d.loadSource(in)
	if of, keys := d.attends(); of != nil {
		*of, *keys = d.encoded, d.keys
	}
	d.encode()
	d.beginEnds()
	copy(d.lanes, d.identity)
	d.begin = nil
	for k, after := range d.after {
		d.copyState(after, d.first(k), nil)
	}
	return nil
}

// Step reads previous, [B]: the last token of each hypothesis. It copies the next one's log
// probabilities to next, host memory, [B, V]. Hypothesis b continues from[b], one of those of the
// Step or Encode before; nil: each continues itself.
func (d *Decoder) Step(previous, from []int32, next []float32) error {
	if err := d.run(previous, from, next); err != nil {
		return err
	}
	for tokens := range slices.Chunk(next, len(next)/len(d.identity)) {
		logSoftmax(tokens)
	}
	d.end(next)
	return nil
}

// Logits is Step without the softmax. With another of Ends than EndToken they are the tokens'.
func (d *Decoder) Logits(previous, from []int32, next []float32) error {
	err := d.run(previous, from, next)
	if c := d.translator.config; err == nil && c.Ends != EndToken {
		for tokens := range slices.Chunk(next, c.TargetVocab) {
			tokens[c.End] = float32(math.Inf(-1))
		}
	}
	return err
}

// run computes the logits of a step's tokens, and the other output.
func (d *Decoder) run(previous, from []int32, next []float32) (err error) {
	t, V, B := d.translator, d.translator.config.TargetVocab, len(d.identity)
	if from == nil {
		from = d.identity
	}
	if len(previous) != B || len(from) != B || len(next) != B*V {
		return fmt.Errorf("model: a step of %d hypotheses was given %d tokens, %d hypotheses and "+
			"%d probabilities", B, len(previous), len(from), len(next))
	}
	for b, id := range previous {
		if id < 0 || int(id) >= V || from[b] < 0 || int(from[b]) >= B {
			return fmt.Errorf("model: hypothesis %d continues %d of %d with token %d; the "+
				"vocabulary has %d", b, from[b], B, id, V)
		}
	}
	defer compute.Catch(&err)
	d.readEnds(from)
	d.read(previous, from)
	was := append([]int32(nil), d.lanes...)
	for b, source := range from {
		d.lanes[b] = was[source]
	}
	if len(d.sources) > 0 && !slices.Equal(d.lanes, was) {
		d.gatherSources()
	}
	for k, after := range d.after {
		if !d.decoder.stateless {
			d.copyState(d.before[k], after, from)
		}
	}
	x := d.decode()
	t.dev.Gemm(false, true, B, V, len(x)/B, 1, x, t.view(outputWeight, t.params), 0, d.logits)
	t.dev.AddBias(d.logits, t.view(outputBias, t.params))
	t.dev.Download(next, d.logits)
	if t.config.Ends == EndStop {
		d.other(x)
	}
	return nil
}

// read sets the tokens that the layers read.
func (d *Decoder) read(previous, from []int32) {
	was := d.begin
	d.begin = slices.Clone(previous)
	for b := range was {
		d.begin[b] = was[from[b]]
	}
	if d.translator.config.Feedback == FeedbackHidden {
		previous = d.begin
	}
	copy(d.decoder.ids, previous)
}

// gatherSources makes the attention read the sources of the hypotheses' lanes.
func (d *Decoder) gatherSources() {
	to, keys := d.attends()
	from, H, B := d.encoded, d.decoder.Hidden, len(d.lanes)
	rows := make([]int32, from.S*B)
	for i := range rows {
		rows[i] = int32(i/B*B) + d.lanes[i%B]
	}
	*keys, to.V = d.sources[:len(d.keys)], d.sources[len(d.keys):]
	to.Lengths = make([]int32, B)
	for b, lane := range d.lanes {
		to.Lengths[b] = from.Lengths[lane]
	}
	d.decoder.dev.CopyRows(packed(*keys, H), packed(d.keys, H), len(rows), H, rows, false)
	d.decoder.dev.CopyRows(packed(to.V, from.W), packed(from.V, from.W), len(rows), from.W, rows,
		false)
}

// copyState copies rows of a state; nil: all.
func (d *Decoder) copyState(dst, src compute.RecurrentState, rows []int32) {
	H, B := d.decoder.Hidden, len(d.identity)
	d.decoder.dev.CopyRows(packed(dst.H, H), packed(src.H, H), B, H, rows, false)
	if dst.C != nil {
		d.decoder.dev.CopyRows(packed(dst.C, H), packed(src.C, H), B, H, rows, false)
	}
}

// logSoftmax replaces logits by log probabilities.
func logSoftmax(x []float32) {
	largest, sum := float64(slices.Max(x)), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - largest)
	}
	log := largest + math.Log(sum)
	for i, v := range x {
		x[i] = float32(float64(v) - log)
	}
}

// Close frees the decoder's memory, not the translator's.
func (d *Decoder) Close() {
	d.translation.close()
	d.memory.close()
	for _, x := range [][]float32{d.logits, d.states, d.sources, d.ends.logits} {
		d.translator.dev.Free(x)
	}
	d.logits, d.states, d.sources, d.ends.logits = nil, nil, nil, nil
}
