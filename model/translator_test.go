package model

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
)

// translatorTrace is a file written by testdata/translator.py, which documents the contents.
type translatorTrace struct {
	Cell             string
	Layers           int
	S, T, B          int
	SourceVocab      int `json:"source_vocab"`
	V, E, H          int
	Bidirectional    bool
	Context          string
	Attention        string
	Feedback         string
	Norm, Skip, Deep bool
	HiddenBackward   int         `json:"hidden_backward"`
	Vectors          [][]float32 // of sources that are vectors
	Ends             string
	Smoothing        float64
	Source           [][]int32
	Lengths          []int32
	Inputs, Targets  []int32
	LogProbabilities []float64 `json:"log_probabilities"`
	Plain, Loss      float64
	Weights          map[string]traceTensor
	Gradients        map[string]traceTensor
}

func (w translatorTrace) config(t *testing.T) TranslatorConfig {
	t.Helper()
	cell, err := compute.ParseCell(w.Cell)
	if err != nil {
		t.Fatal(err)
	}
	contexts := append(ContextNames(), "input")
	context := slices.Index(contexts, w.Context)
	if context < 0 {
		t.Fatalf("context %q", w.Context)
	}
	columns := 0
	if w.Vectors != nil {
		columns = len(w.Vectors[0])
	}
	attention, err := ParseAttention(w.Attention)
	if err != nil {
		t.Fatal(err)
	}
	feedback, err := ParseFeedback(cmp.Or(w.Feedback, "both"))
	if err != nil {
		t.Fatal(err)
	}
	ends, err := ParseEnds(cmp.Or(w.Ends, "eos"))
	if err != nil {
		t.Fatal(err)
	}
	input, _, output := deep(w.Deep)
	return TranslatorConfig{Cell: cell, SourceVocab: w.SourceVocab, TargetVocab: w.V, Embed: w.E,
		Hidden: w.H, Layers: w.Layers, Bidirectional: w.Bidirectional, Context: Context(context),
		Ends: ends, End: 1, Lengths: w.T, Vectors: columns, Attention: attention,
		Feedback: feedback, LabelSmoothing: w.Smoothing, LayerNorm: w.Norm, Skip: w.Skip,
		DeepInput: input, DeepOutput: output, HiddenBackward: w.HiddenBackward}
}

// TestPyTorchTraceOfTranslators compares translators with PyTorch: the loss, every gradient and the
// steps' log probabilities agree, in graphs of several lengths.
func TestPyTorchTraceOfTranslators(t *testing.T) {
	check := func(t *testing.T, file string) {
		var want translatorTrace
		readTrace(t, file, &want)
		tr := newTranslator(t, want.config(t))
		setTensors(t, tr, want.Weights)
		tr.dev.Upload(tr.vectors, slices.Concat(want.Vectors...))
		in := Pairs{SourceSteps: want.S, Source: slices.Concat(want.Source...),
			SourceLengths: want.Lengths, TargetSteps: want.T, Inputs: want.Inputs,
			Targets: want.Targets, Scale: 1}
		for _, more := range []int{0, 3, 20} {
			p := newTranslationPass(t, tr, want.S+more, want.T+more, want.B)
			loss, err := p.Backward(in, Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			again, err := p.Loss(in)
			if err != nil {
				t.Fatal(err)
			}
			plain := want.Plain
			if want.Smoothing == 0 {
				plain = loss
			}
			if e := math.Abs(loss - want.Loss); e > traceTolerance*want.Loss ||
				math.Abs(again-plain) > 1e-6*plain {
				t.Errorf("loss %v, and %v without gradients; PyTorch has %v and %v", loss, again,
					want.Loss, want.Plain)
			}
			compareTensors(t, "gradient", tr, tr.Gradients(), want.Gradients)
		}
		checkSteps(t, tr, want)
	}
	forTraces(t, "testdata/translator-*.json", 31, check)
	forTraces(t, "testdata/describer-*.json", 9, check)
}

// checkSteps compares a decoder's steps with the trace.
func checkSteps(t *testing.T, tr *Translator, want translatorTrace) {
	d := newDecoder(t, tr, want.S+2, want.B)
	if err := d.Encode(slices.Concat(want.Source...), want.Lengths); err != nil {
		t.Fatal(err)
	}
	n := want.B * want.V
	next := make([]float32, n)
	for step := range want.T {
		if err := d.Step(want.Inputs[step*want.B:][:want.B], nil, next); err != nil {
			t.Fatal(err)
		}
		if e := relative(finite(next), want.LogProbabilities[step*n:][:n]); e > traceTolerance {
			t.Errorf("step %d: the log probabilities' relative error is %.2g", step, e)
		}
	}
}

// finite is log probabilities with 0 for those of what is impossible.
func finite(log []float32) []float32 {
	log = slices.Clone(log)
	for i, x := range log {
		if math.IsInf(float64(x), -1) {
			log[i] = 0
		}
	}
	return log
}

// newTranslator makes a translator on a CPU, and closes it after the test.
func newTranslator(t testing.TB, cfg TranslatorConfig) *Translator {
	t.Helper()
	tr, err := NewTranslator(cfg, newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	setVectors(t, tr)
	return tr
}

// setVectors gives a translator of vectors SourceVocab of them.
func setVectors(t testing.TB, tr *Translator) {
	t.Helper()
	c := tr.config
	if c.Vectors == 0 {
		return
	}
	rng := rand.New(rand.NewPCG(15, 16))
	table := make([]float32, c.SourceVocab*c.Vectors)
	for i := range table {
		table[i] = float32(rng.NormFloat64())
	}
	if err := tr.SetVectors(table); err != nil {
		t.Fatal(err)
	}
}

// newTranslationPass makes a pass, and closes it after the test.
func newTranslationPass(t testing.TB, tr *Translator, source, target, B int) *TranslationPass {
	t.Helper()
	p, err := tr.NewPass(source, target, B)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// newDecoder makes a decoder, and closes it after the test.
func newDecoder(t testing.TB, tr *Translator, source, B int) *Decoder {
	t.Helper()
	d, err := tr.NewDecoder(source, B)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// translators are configurations that together have every part.
func translators() map[string]TranslatorConfig {
	all := map[string]TranslatorConfig{}
	for _, cell := range compute.Cells() {
		c := TranslatorConfig{Cell: cell, SourceVocab: 7, TargetVocab: 9, Embed: 6, Hidden: 5,
			Layers: 2, Seed: 7}
		for context, name := range ContextNames() {
			for attention, kind := range AttentionNames() {
				c.Context, c.Attention = Context(context), AttentionKind(attention)
				name := fmt.Sprintf("%v/%s/%s", cell, name, kind)
				c.Bidirectional, c.Dropout, c.DropoutInput = false, 0, 0
				c.DropoutLocked = false
				all[name] = c
				c.Bidirectional, c.Dropout, c.DropoutInput = true, 0.3, 0.2
				c.DropoutLocked = c.Context == ContextState
				all[name+"/bidirectional"] = c
				for feedback := FeedbackOutput; feedback <= FeedbackHidden; feedback++ {
					f := c
					f.Feedback, f.LayerNorm = feedback, feedback == FeedbackOutput
					f.Skip, f.DeepInput, f.DeepOutput = f.LayerNorm, 1, 1
					if cell == compute.LSTM && f.Validate() == nil {
						all[name+"/"+FeedbackNames()[feedback]] = f
					}
				}
				c.LayerNorm, c.Skip = true, true
				all[name+"/norm"] = c
				c.LayerNorm, c.Skip = false, false
				c.DeepInput, c.DeepTransition, c.DeepOutput, c.Embed = 2, 2, 1, 13
				c.HiddenBackward = 7 * context
				all[name+"/deep"] = c
				c.HiddenBackward = 0
				c.DeepInput, c.DeepTransition, c.DeepOutput, c.Embed = 0, 0, 0, 6
			}
		}
		c.Vectors, c.Bidirectional, c.Attention = 3, false, AttentionNone
		for name, context := range map[string]Context{"both": ContextConcat,
			"state": ContextState, "input": ContextInput} {
			c.Context = context
			all[fmt.Sprintf("%v/vectors/%s", cell, name)] = c
			for c.Ends, c.End, c.Lengths = EndStop, 2, 16; c.Ends <= EndLength; c.Ends++ {
				all[fmt.Sprintf("%v/vectors/%s/%s", cell, name, EndsNames()[c.Ends])] = c
			}
			c.DeepInput, c.DeepOutput, c.Ends = 1, 2, EndLength
			all[fmt.Sprintf("%v/vectors/%s/deep", cell, name)] = c
			c.DeepInput, c.DeepOutput, c.Ends = 0, 0, EndToken
		}
	}
	return all
}

func forTranslators(t *testing.T, check func(t *testing.T, c TranslatorConfig)) {
	for name, c := range some(translators()) {
		t.Run(name, func(t *testing.T) { check(t, c) })
	}
}

// randomPairs draws a batch of B pairs of up to S and T tokens.
func randomPairs(rng *rand.Rand, c TranslatorConfig, S, T, B int) Pairs {
	in := Pairs{SourceSteps: S, TargetSteps: T, Scale: 0.5, Step: 4}
	for b := range B {
		in.SourceLengths = append(in.SourceLengths, int32(rng.IntN(S+1)))
		in.Lanes = append(in.Lanes, 10+3*b)
	}
	for range S * B {
		in.Source = append(in.Source, int32(rng.IntN(c.SourceVocab)))
	}
	ends := make([]int, B)
	for b := range ends {
		ends[b] = rng.IntN(T + 1)
	}
	ends[rng.IntN(B)] = T
	for i := range T * B {
		in.Inputs = append(in.Inputs, int32(rng.IntN(c.TargetVocab)))
		in.Targets = append(in.Targets, -1)
		if i/B < ends[i%B] && rng.IntN(5) > 0 {
			in.Targets[i] = int32(rng.IntN(c.TargetVocab))
		}
	}
	return in
}

// rearrangedPairs returns the pairs of these lanes, padded to more steps; -1 is a lane without a
// pair.
func rearrangedPairs(in Pairs, more int, lanes ...int) Pairs {
	B, out := len(in.Lanes), Pairs{SourceSteps: in.SourceSteps + more,
		TargetSteps: in.TargetSteps + more, Step: in.Step, Scale: in.Scale}
	for _, b := range lanes {
		length, lane := int32(0), 99
		if b >= 0 {
			length, lane = in.SourceLengths[b], in.Lanes[b]
		}
		out.SourceLengths, out.Lanes = append(out.SourceLengths, length), append(out.Lanes, lane)
	}
	at := func(x []int32, row, b int, padding int32) int32 {
		if b < 0 || row*B >= len(x) {
			return padding
		}
		return x[row*B+b]
	}
	for row := range out.SourceSteps {
		for _, b := range lanes {
			out.Source = append(out.Source, at(in.Source, row, b, -7))
		}
	}
	for row := range out.TargetSteps {
		for _, b := range lanes {
			out.Inputs = append(out.Inputs, at(in.Inputs, row, b, -7))
			out.Targets = append(out.Targets, at(in.Targets, row, b, -1))
		}
	}
	return out
}

// translate runs a pass, and returns the loss and the gradients.
func translate(t testing.TB, p *TranslationPass, in Pairs) (float64, []float32) {
	t.Helper()
	loss, err := p.Backward(in, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	return loss, download(p.translator, p.translator.Gradients())
}

// A decoder's hypotheses go on from each other, of several sources at once: the probabilities are
// those of a decoder that reads each hypothesis from its beginning.
func TestDecoderHypotheses(t *testing.T) {
	forTranslators(t, func(t *testing.T, c TranslatorConfig) {
		const S, B, steps = 4, 3, 6
		tr := newTranslator(t, c)
		d, fresh := newDecoder(t, tr, S, B), newDecoder(t, tr, S, 1)
		rng := rand.New(rand.NewPCG(1, 2))
		in := randomPairs(rng, c, S, 1, B)
		V := c.TargetVocab
		next, want := make([]float32, B*V), make([]float32, V)
		for range 2 {
			if err := d.Encode(in.Source, in.SourceLengths); err != nil {
				t.Fatal(err)
			}
			texts, sources := make([][]int32, B), []int{0, 1, 2}
			for range steps {
				var previous, from []int32
				wasTexts, wasSources := slices.Clone(texts), slices.Clone(sources)
				for b := range B {
					previous = append(previous, int32(rng.IntN(V)))
					from = append(from, int32(rng.IntN(B)))
					texts[b] = append(slices.Clone(wasTexts[from[b]]), previous[b])
					sources[b] = wasSources[from[b]]
				}
				if err := d.Step(previous, from, next); err != nil {
					t.Fatal(err)
				}
				for b := range B {
					readAlone(t, fresh, rearrangedPairs(in, 0, sources[b]), texts[b], want)
					if e := relative(finite(next[b*V:][:V]), finite(want)); !(e <= 1e-5) {
						t.Errorf("hypothesis %d of source %d, %v: error %.2g", b, sources[b],
							texts[b], e)
					}
				}
			}
		}
	})
}

// readAlone reads a hypothesis from its beginning.
func readAlone(t *testing.T, d *Decoder, in Pairs, text []int32, next []float32) {
	t.Helper()
	source := slices.Clone(in.Source)
	if err := d.Encode(source, in.SourceLengths); err != nil {
		t.Fatal(err)
	}
	for _, token := range text {
		if err := d.Step([]int32{token}, nil, next); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDecoderErrors expects an error of one line for input that does not fit.
func TestDecoderErrors(t *testing.T) {
	c := translators()["gru/concat/none"]
	tr := newTranslator(t, c)
	if _, err := tr.NewDecoder(0, 1); err == nil {
		t.Error("a decoder of no steps")
	}
	d := newDecoder(t, tr, 3, 2)
	next := make([]float32, 2*c.TargetVocab)
	for want, err := range map[string]error{
		"up to 3 steps of 2 lanes":      d.Encode(make([]int32, 8), make([]int32, 2)),
		"2 hypotheses was given 1":      d.Step([]int32{1}, nil, next),
		"continues 0 of 2 with token 9": d.Step([]int32{9, 1}, nil, next),
		"continues 2 of 2 with token 1": d.Step([]int32{1, 1}, []int32{2, 0}, next),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestTranslatorConfig expects an error that names the flag.
func TestTranslatorConfig(t *testing.T) {
	for want, change := range map[string]func(*TranslatorConfig){
		"--hidden 0":                  func(c *TranslatorConfig) { c.Hidden = 0 },
		"vocabulary has 0 tokens":     func(c *TranslatorConfig) { c.SourceVocab = 0 },
		"--embed 0: a decoder":        func(c *TranslatorConfig) { c.Embed = 0 },
		"--attention: 4 is not":       func(c *TranslatorConfig) { c.Attention = 4 },
		"--decoder-context: 2 is not": func(c *TranslatorConfig) { c.Context = ContextInput },
		"--decoder-context: 3 is not": func(c *TranslatorConfig) { c.Vectors, c.Context = 2, 3 },
		"--vectors: 65537 columns":    func(c *TranslatorConfig) { c.Vectors = 65537 },
		"--feedback is not for a network": func(c *TranslatorConfig) {
			c.Vectors, c.Feedback = 2, FeedbackHidden
		},
		"--feedback: 3 is not": func(c *TranslatorConfig) { c.Feedback = 3 },
		"--attention bahdanau asks": func(c *TranslatorConfig) {
			c.Feedback, c.Attention = FeedbackOutput, AttentionBahdanau
		},
		"--decoder-context state the decoder": func(c *TranslatorConfig) {
			c.Feedback, c.Context = FeedbackOutput, ContextState
		},
		"--bidirectional and --attention": func(c *TranslatorConfig) {
			c.Vectors, c.Bidirectional = 2, true
		},
	} {
		c := translators()["gru/concat/none"]
		change(&c)
		if _, err := NewTranslator(c, newDevice(t)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := ParseContext("none"); err == nil || err.Error() !=
		`--decoder-context "none": give concat, state` {
		t.Error(err)
	}
}
