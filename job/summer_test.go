package job

import (
	"testing"

	"rondo/allreduce/compress"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
)

// TestSummerConfig: which flags have gradients summed how, and which leave it to the ring.
func TestSummerConfig(t *testing.T) {
	for name, c := range map[string]struct {
		vocabulary int
		set        func(*rondov1.JobSpec)
		want       *compress.Config // without tensors; nil: the ring alone
		looks      bool
	}{
		"defaults": {80, func(*rondov1.JobSpec) {}, nil, false},
		"bf16": {80, func(s *rondov1.JobSpec) { s.Wire = "bf16" }, &compress.Config{},
			false},
		"many words":   {5000, func(s *rondov1.JobSpec) { s.Embed = 16 }, &compress.Config{}, true},
		"many one-hot": {5000, func(*rondov1.JobSpec) {}, &compress.Config{}, true},
		"never":        {5000, func(s *rondov1.JobSpec) { s.SparseRows = "never" }, nil, false},
		"tied": {5000, func(s *rondov1.JobSpec) { s.Embed, s.TieWeights = 16, true }, nil,
			false},
		"always": {80, func(s *rondov1.JobSpec) { s.SparseRows = "always" }, &compress.Config{},
			true},
		"fed back": {80, func(s *rondov1.JobSpec) { s.Wire, s.ErrorFeedback = "fp16", true },
			&compress.Config{Feedback: true}, false},
		"top": {5000, func(s *rondov1.JobSpec) { s.Compress = "topk:0.1" },
			&compress.Config{TopK: 0.1, After: 200}, false},
		"top, of Adam": {80,
			func(s *rondov1.JobSpec) { s.Compress, s.Optimizer = "topk:0.1", "adam" },
			&compress.Config{TopK: 0.1, After: 200, PerTensor: true}, false},
		"top, after": {80, func(s *rondov1.JobSpec) { s.Compress, s.CompressAfter = "topk:0.1", 7 },
			&compress.Config{TopK: 0.1, After: 7}, false},
		"PowerSGD": {5000, func(s *rondov1.JobSpec) { s.Compress = "powersgd:3" },
			&compress.Config{PowerSGD: 3, After: 200}, false},
	} {
		t.Run(name, func(t *testing.T) {
			spec := jobspec.Textbook()
			c.set(spec)
			if err := jobspec.Validate(spec); err != nil {
				t.Fatal(err)
			}
			n, err := languageNetwork(spec, Extent{Tokens: c.vocabulary})
			if err != nil {
				t.Fatal(err)
			}
			got, err := SummerConfig(spec, n, 1000)
			if err != nil || (got == nil) != (c.want == nil) {
				t.Fatalf("%+v, %v; want %+v", got, err, c.want)
			}
			if got == nil {
				return
			}
			if _, err := compress.New(*got); err != nil {
				t.Error(err)
			}
			if got.TopK != c.want.TopK || got.PowerSGD != c.want.PowerSGD ||
				got.After != c.want.After || got.PerTensor != c.want.PerTensor ||
				got.Feedback != c.want.Feedback || got.Length != model.Span(n.Tensors) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if (got.Lookup != nil) != c.looks {
				t.Fatalf("a lookup: %v, want %v", got.Lookup, c.looks)
			}
			if c.looks && (got.Lookup.Tokens() != c.vocabulary ||
				got.Lookup.ByColumn != (spec.Embed == 0)) {
				t.Errorf("%+v of %d tokens, want %d", got.Lookup, got.Lookup.Tokens(),
					c.vocabulary)
			}
		})
	}
}

// TestMomentumAfter: the workers have the momentum from where on top-k chooses, of an optimizer
// that has one, unless its second moment goes on or the sum is clipped.
func TestMomentumAfter(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*rondov1.JobSpec)
		want int64
		rule compress.Momentum
	}{
		"adam": {func(s *rondov1.JobSpec) { s.Optimizer = "adam" }, 200,
			compress.Momentum{Decay: 0.75, Gain: 0.25}},
		"adam, soon": {func(s *rondov1.JobSpec) { s.Optimizer, s.CompressAfter = "adam", 99 }, 0,
			compress.Momentum{}},
		"momentum, soon": {func(s *rondov1.JobSpec) { s.CompressAfter = 9 }, 9,
			compress.Momentum{Decay: 0.5, Gain: 1}},
		"nesterov": {func(s *rondov1.JobSpec) { s.Optimizer = "nesterov" }, 200,
			compress.Momentum{Decay: 0.5, Gain: 1, Nesterov: true}},
		"sgd":     {func(s *rondov1.JobSpec) { s.Optimizer = "sgd" }, 0, compress.Momentum{}},
		"rmsprop": {func(s *rondov1.JobSpec) { s.Optimizer = "rmsprop" }, 0, compress.Momentum{}},
		"PowerSGD": {func(s *rondov1.JobSpec) { s.Compress = "powersgd:2" }, 0,
			compress.Momentum{}},
		"whole": {func(s *rondov1.JobSpec) { s.Compress = "none" }, 0, compress.Momentum{}},
		"in rounds": {func(s *rondov1.JobSpec) { s.SyncEvery = 4 }, 0,
			compress.Momentum{}},
		"clipped behind": {func(s *rondov1.JobSpec) { s.ClipScope = "global" }, 0,
			compress.Momentum{}},
		"not clipped": {func(s *rondov1.JobSpec) { s.ClipScope, s.Clip = "global", 0 }, 200,
			compress.Momentum{Decay: 0.5, Gain: 1}},
	} {
		spec := jobspec.Textbook()
		spec.Compress, spec.Optimizer, spec.Momentum, spec.Beta1 = "topk:0.1", "momentum", 0.5, 0.75
		c.set(spec)
		if got := SumUpdate(spec, 1000).MomentumAfter; got != c.want {
			t.Errorf("%s: after step %d, want %d", name, got, c.want)
		}
		n, err := languageNetwork(spec, Extent{Tokens: 80})
		if err != nil {
			t.Fatal(err)
		}
		got, err := SummerConfig(spec, n, 1000)
		if err != nil || got != nil && got.Momentum != c.rule {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.rule)
		}
	}
}

// TestGradientScale: the scale is the greatest with which what is clipped does not overflow.
func TestGradientScale(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*rondov1.JobSpec)
		want float64
	}{
		"by default":     {func(*rondov1.JobSpec) {}, 1 << 15},
		"a limit of 5":   {func(s *rondov1.JobSpec) { s.Clip = 5 }, 1 << 12},
		"a tiny limit":   {func(s *rondov1.JobSpec) { s.Clip = 1e-300 }, 1 << 60},
		"the most":       {func(s *rondov1.JobSpec) { s.Clip = 1 << 15 }, 1},
		"too much":       {func(s *rondov1.JobSpec) { s.Clip = 1e9 }, 0},
		"not clipped":    {func(s *rondov1.JobSpec) { s.Clip = 0 }, 0},
		"clipped behind": {func(s *rondov1.JobSpec) { s.ClipScope = "global" }, 0},
		"in rounds":      {func(s *rondov1.JobSpec) { s.SyncEvery = 4 }, 0},
		"bf16":           {func(s *rondov1.JobSpec) { s.Wire = "bf16" }, 0},
	} {
		spec := jobspec.Textbook()
		spec.Wire = "fp16"
		c.set(spec)
		if got := float64(SumUpdate(spec, 0).Scale); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestHoldAfter: a second moment stays when gradients are compressed from then on, and it is of
// enough of them.
func TestHoldAfter(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*rondov1.JobSpec)
		want int64
	}{
		"by default": {func(*rondov1.JobSpec) {}, 200},
		"as asked":   {func(s *rondov1.JobSpec) { s.CompressAfter = 150 }, 150},
		"too soon":   {func(s *rondov1.JobSpec) { s.CompressAfter = 99 }, 0},
		"whole":      {func(s *rondov1.JobSpec) { s.Compress = "none" }, 0},
		"momentum":   {func(s *rondov1.JobSpec) { s.Optimizer = "momentum" }, 0},
		"in rounds":  {func(s *rondov1.JobSpec) { s.SyncEvery = 4 }, 0},
	} {
		spec := jobspec.Textbook()
		spec.Compress, spec.Optimizer = "powersgd:4", "adamw"
		c.set(spec)
		if got := SumUpdate(spec, 1000).HoldAfter; got != c.want {
			t.Errorf("%s: after step %d, want %d", name, got, c.want)
		}
	}
}
