package model

import "rondo/compute"

// SegmentSize returns a device's memory for a segment of T steps of B lanes, without the model. c
// must be valid.
func (c Config) SegmentSize(on compute.Sizer, T, B int) (size compute.Size) {
	alloc := func(n int) []float32 {
		size = size.And(on.TensorSize(n))
		return nil
	}
	k := c.chunk(T)
	new(activations).allocate(c, alloc, k, B)
	states := (T+k-1)/k + 1
	if k < T {
		alloc(c.chunkGradients())
		states += len(Segment{}.dstates)
	}
	for range states {
		alloc(B * c.StateSize())
	}
	for _, steps := range c.parts(T) {
		size = size.And(c.kernelSize(on, steps, B, false))
	}
	return size
}

// EvaluatorSize returns a device's memory for an Evaluator of T steps of B lanes.
func (c Config) EvaluatorSize(on compute.Sizer, T, B int) compute.Size {
	size := on.TensorSize(B * c.StateSize())
	for _, steps := range c.parts(T) {
		rows := on.TensorSize(steps * B * max(c.rowWidth(), c.Hidden)) // allocated twice
		size = size.And(rows).And(rows).And(c.kernelSize(on, steps, B, true))
	}
	return size
}

// GeneratorSize returns an upper bound of a device's memory for a Generator.
func (c Config) GeneratorSize(on compute.Sizer) compute.Size {
	return c.EvaluatorSize(on, 1, 1).And(on.TensorSize(c.Vocab)).
		And(on.GemmSize(1, c.Vocab, c.outputWidth()))
}

// parts returns the numbers of steps of the graphs that compute a segment of T steps.
func (c Config) parts(T int) []int {
	k := c.chunk(T)
	if T%k == 0 {
		return []int{k}
	}
	return []int{k, T % k}
}

// kernelSize returns the size of the kernels' workspaces for T steps of B lanes.
func (c Config) kernelSize(on compute.Sizer, T, B int, inference bool) compute.Size {
	shape := compute.OutputShape{N: T * B, H: c.outputWidth(), V: c.Vocab}
	size := on.OutputSize(shape)
	switch {
	case c.Inputs > 0:
		size = compute.SquaresSize(on, shape)
	case len(c.Cutoffs) > 0:
		size = compute.AdaptiveSize(on, T*B, compute.AdaptiveParts(c.Cutoffs, c.Hidden, c.Vocab))
	}
	for k := range c.Layers {
		ids := k == 0 && c.rowWidth() == 0
		shape := c.layerShape(k, T, B)
		size = size.And(compute.RecurrentSize(on, shape, inference, ids))
		if c.Omega > 0 && !inference {
			size = size.And(omegaSize(on, shape))
		}
		if c.WeightDrop > 0 && !inference {
			size = size.And(on.TensorSize(weightDropFloats(shape)))
		}
	}
	size = size.And(c.deepSize(on, T*B, inference))
	if c.projects() {
		size = size.And(on.GemmSize(T*B, c.Embed, c.Hidden)).
			And(on.GemmSize(c.Embed, c.Hidden, T*B)).And(on.GemmSize(T*B, c.Hidden, c.Embed))
	}
	return size
}

// PassSize is how much of a device's memory a LabelPass takes, with all its graphs, but for the
// labeller. c must be valid.
func (c LabellerConfig) PassSize(on compute.Sizer, maxSteps, B int) (size compute.Size) {
	new(labelMemory).allocate(c, func(n int) []float32 {
		size = size.And(on.TensorSize(n))
		return nil
	}, maxSteps, B)
	for _, T := range passSizes(maxSteps) {
		rows, W := c.outputRows(T, B), c.outputWidth()
		size = size.And(on.OutputSize(compute.OutputShape{N: rows, H: W, V: c.Labels})).
			And(on.GemmSize(rows, c.Labels, W)).And(c.stack().kernelSize(on, T, B))
		if c.DeepOutput > 0 {
			size = size.And(compute.PerceptronSize(on, c.deepOutput(rows)))
		}
	}
	return size
}

// PassSize is how much of a device's memory a TranslationPass takes, with all its graphs, but for
// the translator. c must be valid.
func (c TranslatorConfig) PassSize(on compute.Sizer, maxSource, maxTarget, B int) compute.Size {
	size := c.memorySize(on, maxSource, maxTarget, B)
	sizes := pairSizes(maxSource, maxTarget)
	for i, T := range sizes[1] {
		size = size.And(c.kernelSize(on, sizes[0][i], T, B)).
			And(on.OutputSize(compute.OutputShape{N: T * B, H: c.Hidden, V: c.TargetVocab}))
		if c.Ends != EndToken {
			s, _, _ := c.endShape(T, B)
			size = size.And(compute.BesideSize(on, s))
		}
	}
	return size
}

// DecoderSize is likewise that of a Decoder.
func (c TranslatorConfig) DecoderSize(on compute.Sizer, maxSource, B int) compute.Size {
	size := on.TensorSize(2 * B * c.network().StateSize())
	if c.Attention != AttentionNone {
		size = size.And(on.TensorSize(maxSource * B * (c.Hidden + c.encoder().width())))
	}
	if c.Ends != EndToken {
		s, _, _ := c.endShape(1, B)
		size = size.And(on.TensorSize(s.N * s.V)).And(on.GemmSize(s.N, s.V, s.H))
	}
	return size.And(c.memorySize(on, maxSource, 1, B)).And(c.kernelSize(on, maxSource, 1, B)).
		And(on.TensorSize(B * c.TargetVocab)).And(on.GemmSize(B, c.TargetVocab, c.Hidden))
}

// memorySize is of a translationMemory.
func (c TranslatorConfig) memorySize(on compute.Sizer, source, target, B int) (size compute.Size) {
	new(translationMemory).allocate(c, func(n int) []float32 {
		size = size.And(on.TensorSize(n))
		return nil
	}, source, target, B)
	return size
}

// kernelSize is of the workspaces of a translation.
func (c TranslatorConfig) kernelSize(on compute.Sizer, source, target, B int) (size compute.Size) {
	W, H, steps, rows := c.encoder().width(), c.Hidden, source*B, target*B
	after := [][3]int{{steps, H, W}, {rows, H, W + H}, {H, W + H, rows}, {rows, W + H, H},
		{H, W, steps}, {steps, W, H}}
	products := [][][3]int{AttentionNone: nil, AttentionLuong: after, AttentionScaled: after,
		AttentionBahdanau: {{steps, H, W}, {B, H, H}, {steps, 1, H}, {1, H, steps}, {steps, H, 1},
			{H, H, B}, {H, W, steps}, {steps, W, H}}}[c.Attention]
	for _, s := range products {
		size = size.And(on.GemmSize(s[0], s[1], s[2]))
	}
	if c.Attention == AttentionBahdanau {
		target = 1
	}
	size = size.And(c.decoder().layersSize(on, target, B)).
		And(c.network().deepSize(on, rows, false))
	if c.Vectors > 0 {
		return size.And(on.GemmSize(B, H, c.Vectors)).And(on.GemmSize(H, c.Vectors, B))
	}
	if N := c.HiddenBackward; c.bridged() {
		size = size.And(on.GemmSize(B, H, N)).And(on.GemmSize(H, N, B)).And(on.GemmSize(B, N, H))
	}
	return size.And(c.encoder().kernelSize(on, source, B))
}
