package model

import (
	"errors"
	"fmt"
	"slices"

	"rondo/compute"
)

// validateCutoffs checks Cutoffs.
func validateCutoffs(c Config) error {
	switch {
	case len(c.Cutoffs) == 0:
		return nil
	case c.Inputs > 0:
		return errors.New("--adaptive-softmax is for tokens, and the network predicts numbers: " +
			"leave it out")
	case c.TieWeights:
		return errors.New("--adaptive-softmax and --tie-weights: an adaptive softmax has no " +
			"output weights of the embedding's shape: leave one out")
	case c.LabelSmoothing > 0:
		return errors.New("--adaptive-softmax and --label-smoothing: leave one out")
	}
	before := 0
	for _, cutoff := range c.Cutoffs {
		if cutoff <= before || cutoff >= c.Vocab {
			return fmt.Errorf("--adaptive-softmax: cutoff %d is not above %d and below %d, the "+
				"number of tokens in the vocabulary", cutoff, before, c.Vocab)
		}
		before = cutoff
	}
	return nil
}

// layoutOutput adds the output layer's tensors.
func layoutOutput(c Config, l *layouter) {
	bias := c.Vocab
	switch {
	case len(c.Cutoffs) > 0:
		parts := compute.AdaptiveParts(c.Cutoffs, c.Hidden, c.Vocab)
		for i, p := range parts {
			role := roleProjection
			if i == len(parts)-1 {
				role, bias = roleOutput, p.Shape[0]
			}
			l.add(role, "output."+p.Name, p.Shape...)
		}
	case !c.TieWeights:
		l.add(roleOutput, outputWeight, c.Vocab, c.Hidden)
	}
	l.add(roleOutputBias, outputBias, bias)
}

// outputSpan returns the part of the flat parameters, [begin, end), that an output layer takes as
// its w.
func outputSpan(c Config, views []View) (begin, end int) {
	v := find(views, c.outputWeights())
	if len(c.Cutoffs) > 0 {
		return 0, v.Offset + v.Len // with the tails, which come first
	}
	return v.Offset, v.Offset + v.Len
}

// adaptiveParts are the tensors in outputSpan, with Cutoffs.
func adaptiveParts(views []View) (parts []compute.Tensor) {
	for _, v := range views[:index(views, outputWeight)+1] {
		parts = append(parts, v.Tensor)
	}
	return parts
}

// newOutput makes the output layer's kernel for n rows.
func (m *Model) newOutput(n int, smoothing float64) compute.Output {
	c := m.config
	if len(c.Cutoffs) > 0 {
		return compute.NewAdaptive(m.dev, n, adaptiveParts(m.views))
	}
	s := compute.OutputShape{N: n, H: c.outputWidth(), V: c.Vocab, Smoothing: float32(smoothing)}
	if c.Inputs > 0 {
		return compute.NewSquares(m.dev, s, m.series.negated)
	}
	return m.dev.NewOutput(s)
}

// targetLoader is an output layer that must know the targets before a recording of it is replayed.
type targetLoader interface{ Load(targets []int32) }

// loadTargets tells a targetLoader the targets.
func loadTargets(o compute.Output, targets []int32) {
	if l, ok := o.(targetLoader); ok {
		l.Load(targets)
	}
}

// logits are the output layer's logits of up to N rows, on their way to the host. With Cutoffs they
// are the logarithms of probabilities.
type logits struct {
	model *Model
	all   []float32   // the layer's, or the head's, in the device's memory: [N, rows]
	tails []logitTail // with Cutoffs, from the last to the first
	host  []float32   // with Cutoffs a copy of the head's or of a tail's
}

type logitTail struct {
	project, weight []float32
	y, z            []float32 // [N, H_i] and [N, V_i], in the device's memory
	width, tokens   int
}

// allocate allocates the memory for N rows. On a lack of memory it panics, and keeps nothing.
func (l *logits) allocate(m *Model, N int) {
	l.model = m
	made := false
	defer func() {
		if !made {
			l.close()
		}
	}()
	most := find(m.views, outputBias).Len
	l.all = m.dev.Alloc(N * most)
	if len(m.config.Cutoffs) > 0 {
		for pair := range slices.Chunk(m.views[:index(m.views, outputWeight)], 2) {
			w, p := pair[0], pair[1]
			l.tails = append(l.tails, logitTail{weight: w.of(m.params), project: p.of(m.params),
				width: p.Shape[0], tokens: w.Shape[0]})
			last := &l.tails[len(l.tails)-1]
			last.y, last.z = m.dev.Alloc(N*last.width), m.dev.Alloc(N*last.tokens)
			most = max(most, last.tokens)
		}
		l.host = make([]float32, N*most)
	}
	made = true
}

// compute queues the logits of n rows x: [n, W].
func (l *logits) compute(x []float32, n int) {
	m := l.model
	w, bias := find(m.views, m.config.outputWeights()).of(m.params), m.view(outputBias, m.params)
	width, y := m.config.outputWidth(), l.all[:n*len(bias)]
	m.dev.Gemm(false, true, n, len(bias), width, 1, x, w, 0, y)
	m.dev.AddBias(y, bias)
	for _, t := range l.tails {
		m.dev.Gemm(false, true, n, t.width, width, 1, x, t.project, 0, t.y[:n*t.width])
		m.dev.Gemm(false, true, n, t.tokens, t.width, 1, t.y[:n*t.width], t.weight, 0,
			t.z[:n*t.tokens])
	}
}

// download waits for the device and copies the logits to dst: [n, V].
func (l *logits) download(dst []float32, n int) {
	V := l.model.config.Vocab
	if len(l.tails) == 0 {
		l.model.dev.Download(dst, l.all[:n*V])
		return
	}
	// rows calls do with the log probabilities in each row of [n, width].
	rows := func(x []float32, width int, do func(row int, logp []float32)) {
		host := l.host[:n*width]
		l.model.dev.Download(host, x[:n*width])
		for row := range n {
			logSoftmax(host[row*width:][:width])
			do(row, host[row*width:][:width])
		}
	}
	common, tails := l.model.config.Cutoffs[0], len(l.tails)
	rows(l.all, common+tails, func(row int, logp []float32) {
		out := dst[row*V:][:V]
		copy(out, logp[:common])
		end := V
		for i, t := range l.tails {
			for v := end - t.tokens; v < end; v++ {
				out[v] = logp[common+tails-1-i] // of the tail's symbol
			}
			end -= t.tokens
		}
	})
	end := V
	for _, t := range l.tails {
		rows(t.z, t.tokens, func(row int, logp []float32) {
			out := dst[row*V+end-t.tokens:][:t.tokens]
			for v, p := range logp {
				out[v] += p
			}
		})
		end -= t.tokens
	}
}

func (l *logits) close() {
	if l.model == nil {
		return
	}
	l.model.dev.Free(l.all)
	for _, t := range l.tails {
		l.model.dev.Free(t.y)
		l.model.dev.Free(t.z)
	}
	*l = logits{}
}
