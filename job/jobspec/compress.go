package jobspec

import (
	"strconv"
	"strings"

	rondov1 "rondo/proto/rondo/v1"
)

// Compression is a value of --compress; none: both fields are zero.
type Compression struct {
	TopK     float64 // share of each tensor's numbers that is sent
	PowerSGD int     // rank of a matrix's approximation
}

// MaxPowerSGD is the highest rank of PowerSGD: higher ranks cost more computing than they save.
const MaxPowerSGD = 64

// ParseCompress reads the value of --compress: none, topk:SHARE or powersgd:RANK.
func ParseCompress(text string) (Compression, error) {
	if text == "none" {
		return Compression{}, nil
	}
	way, value, _ := strings.Cut(text, ":")
	switch way {
	case "topk":
		share, err := strconv.ParseFloat(value, 64)
		if err == nil && share > 0 && share <= 1 {
			return Compression{TopK: share}, nil
		}
		return Compression{}, usagef("--compress %s: topk: takes the share that travels, above 0 "+
			"and at most 1, such as topk:0.01", text)
	case "powersgd":
		rank, err := strconv.Atoi(value)
		if err == nil && rank >= 1 && rank <= MaxPowerSGD {
			return Compression{PowerSGD: rank}, nil
		}
		return Compression{}, usagef("--compress %s: powersgd: takes a rank from 1 to %d, such as "+
			"powersgd:4", text, MaxPowerSGD)
	}
	return Compression{}, usagef("--compress %q is not none, topk:SHARE or powersgd:RANK", text)
}

// Exact reports whether gradients travel unchanged, so that something other than the ring may sum
// them.
func Exact(spec *rondov1.JobSpec) bool { return spec.Wire == "fp32" && spec.Compress == "none" }

// Hierarchical reports whether gradients could be summed within hosts first. A canonical tree,
// top-k's choice and the ranges of a sharded optimizer go around the ring of all workers.
func Hierarchical(spec *rondov1.JobSpec) bool {
	way, err := ParseCompress(spec.Compress)
	return err == nil && way.TopK == 0 && !WholeGradients(spec)
}

// MostHalf is the largest --clip for fp16, whose largest number is 65504. The rest is room for the
// rounding errors of a sum.
const MostHalf = 1 << 15

func validateCompress(spec *rondov1.JobSpec) error {
	way, err := ParseCompress(spec.Compress)
	if err != nil {
		return err
	}
	lossy := "--compress " + spec.Compress
	if spec.Compress == "none" {
		lossy = "--wire " + spec.Wire
	}
	switch {
	case spec.Compress != "none" && spec.Wire != "fp32":
		return usagef("--compress %s and --wire %s both set the format of gradients: give "+
			"one", spec.Compress,
			spec.Wire)
	case spec.Wire == "fp16" && spec.ClipScope != "global" && spec.Clip > MostHalf:
		return usagef("--wire fp16 has no numbers above 65504, and workers that clip their own "+
			"gradients to %g may sum to more: give a --clip of at most %d, or --wire bf16",
			spec.Clip, MostHalf)
	case spec.Compress != "none" && spec.SparseRows == "always":
		return usagef("--sparse-rows always excludes --compress, which sends parts of all tensors")
	case spec.Topology == "hierarchical" && way.TopK > 0:
		return usagef("--compress %s has each worker send to all others what it has chosen, which "+
			"--topology hierarchical cannot sum within hosts: give --topology auto or flat",
			spec.Compress)
	case spec.CompressAfter > 0 && spec.Compress == "none":
		return usagef("--compress-after needs --compress: give both")
	case spec.ErrorFeedback && Exact(spec):
		return usagef("--error-feedback adds what --wire or --compress leaves out to the next " +
			"gradient, and --wire fp32 leaves nothing out: give --wire bf16 or fp16 with it")
	case spec.IntraHost == "nccl" && !Exact(spec):
		return usagef("%s is for gradients on the ring, and --intra-host nccl sums them "+
			"elsewhere: give --intra-host auto", lossy)
	case spec.IntraHost == "nccl" && spec.SparseRows == "always":
		return usagef("--sparse-rows always is for gradients on the ring, and --intra-host nccl " +
			"sums them elsewhere: give --intra-host auto")
	case spec.SparseRows == "always" && spec.TieWeights:
		return usagef("--sparse-rows always needs an embedding of its own: with --tie-weights " +
			"the output layer changes all of its rows in each step")
	}
	return nil
}
