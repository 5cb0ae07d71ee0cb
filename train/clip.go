package train

import (
	"fmt"
	"math"

	"rondo/compute"
)

// ClipBy is what a gradient's limit holds for.
type ClipBy string

// ClipScope is whose gradient is clipped.
type ClipScope string

// What Clip offers.
const (
	// ByNorm scales the whole gradient g by limit/|g| when its L2 norm |g| is above the limit
	// (Pascanu et al., arXiv:1211.5063).
	ByNorm ClipBy = "norm"
	// ByValue limits each element to [-limit, limit].
	ByValue ClipBy = "value"

	// ScopeWorker clips each rank's mean gradient over its own lanes, and weighs it by the rank's
	// share of the lanes, before the ranks' are added. With more than one rank this is not the
	// same as clipping the whole (Goodfellow et al., Deep Learning, 10.11.1), and so depends on
	// how many ranks there are.
	ScopeWorker ClipScope = "worker"
	// ScopeGlobal clips the sum over the ranks: what one process with the whole batch would do.
	ScopeGlobal ClipScope = "global"
)

// Clip says how gradients are limited.
type Clip struct {
	Limit float64 // 0: not at all
	By    ClipBy
	Scope ClipScope
}

// maxClip keeps what was clipped, and a sum of it over the ranks, finite in float32.
const maxClip = 1e30

func (c Clip) validate() error {
	if !(c.Limit >= 0 && c.Limit <= maxClip) {
		return fmt.Errorf("--clip %v: must be 0 (never) to %g", c.Limit, maxClip)
	}
	if c.By != ByNorm && c.By != ByValue {
		return fmt.Errorf("--clip-by %q is not one of %s, %s", c.By, ByNorm, ByValue)
	}
	if c.Scope != ScopeWorker && c.Scope != ScopeGlobal {
		return fmt.Errorf("--clip-scope %q is not one of %s, %s", c.Scope, ScopeWorker,
			ScopeGlobal)
	}
	return nil
}

// beforeRing says whether each rank clips its own gradient.
func (c Clip) beforeRing() bool { return c.Limit > 0 && c.Scope == ScopeWorker }

// apply limits g and then scales it by share. It returns g's L2 norm as it was; when that is not
// finite, g is left as it is.
func (c Clip) apply(dev compute.Device, g []float32, share float64) (norm float64) {
	norm = math.Sqrt(dev.SumSquares(g))
	if !isFinite(norm) {
		return norm
	}
	factor := share
	if c.Limit > 0 {
		switch {
		case c.By == ByValue:
			dev.Clamp(g, float32(c.Limit))
		case norm > c.Limit:
			factor *= c.Limit / norm
		}
	}
	if factor != 1 {
		dev.Scale(g, float32(factor))
	}
	return norm
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// allFinite says whether every element is a number.
func allFinite(x []float32) bool {
	const exponent = 0x7f800000 // all ones: an infinity, or not a number
	for _, v := range x {
		if math.Float32bits(v)&exponent == exponent {
			return false
		}
	}
	return true
}
