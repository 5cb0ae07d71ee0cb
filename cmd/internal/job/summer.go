package job

import (
	"time"

	"rondo/allreduce/compress"
	"rondo/internal/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
)

// SummerConfig is how a job's ranks sum the gradient of a model where the ring does not simply sum
// all of it in fp32; nil: it does.
func SummerConfig(spec *rondov1.JobSpec, m model.Config) (*compress.Config, error) {
	way, err := jobspec.ParseCompress(spec.Compress)
	if err != nil {
		return nil, err
	}
	views := model.Layout(m)
	c := compress.Config{Length: model.Span(views), TopK: way.TopK, PowerSGD: way.PowerSGD,
		Now: time.Now, Feedback: spec.ErrorFeedback && spec.Compress == "none", Seed: spec.Seed,
		After: spec.CompressAfter}
	for _, v := range views {
		c.Tensors = append(c.Tensors, tensor(v))
	}
	if spec.Compress == "none" {
		c.Lookup = lookup(spec, m, views)
	}
	if jobspec.Exact(spec) && c.Lookup == nil {
		return nil, nil
	}
	return &c, nil
}

func tensor(v model.View) compress.Tensor {
	t := compress.Tensor{Offset: v.Offset, Rows: 1, Columns: v.Len}
	if len(v.Shape) == 2 {
		t.Rows, t.Columns = v.Shape[0], v.Shape[1]
	}
	return t
}

// repeats is how often a text's tokens are read again, at most, before it is likely that a step
// reads most of the vocabulary: words are so unevenly distributed that steps of several times as
// many tokens as there are different ones still miss most of them.
const repeats = 4

// lookup is the tensor of which only what belongs to tokens that were read may travel; nil: none.
// Tied weights are the output layer's too, whose gradient is of all tokens.
func lookup(spec *rondov1.JobSpec, m model.Config, views []model.View) *compress.Lookup {
	always := spec.SparseRows == "always"
	if spec.SyncEvery > 1 { // momenta change the rows of tokens that were not read
		return nil
	}
	if m.TieWeights || !always && spec.SparseRows != "auto" || jobspec.WholeGradients(spec) {
		return nil
	}
	if !always && spec.Accumulate*spec.Batch*spec.Bptt > repeats*int64(m.Vocab) {
		return nil
	}
	for _, v := range views {
		if v.Name == m.LookupWeight() {
			return &compress.Lookup{Tensor: tensor(v), ByColumn: m.Embed == 0, Always: always}
		}
	}
	return nil
}
