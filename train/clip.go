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
	// ScopeGroup clips each lane group's mean gradient, and weighs it by the group's share of the
	// lanes, before they are added: as ScopeWorker, but whichever ranks have the groups. It is not
	// the same as clipping the whole either.
	ScopeGroup ClipScope = "group"
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
	if c.Scope != ScopeWorker && c.Scope != ScopeGlobal && c.Scope != ScopeGroup {
		return fmt.Errorf("--clip-scope %q is not one of %s, %s, %s", c.Scope, ScopeWorker,
			ScopeGlobal, ScopeGroup)
	}
	return nil
}

// beforeRing says whether each rank clips its own gradient, or those of its groups.
func (c Clip) beforeRing() bool { return c.Limit > 0 && c.Scope != ScopeGlobal }

// by is how the device limits a gradient of which this rank has a share.
func (c Clip) by(share, lossLimit float64) compute.Clip {
	return compute.Clip{Limit: c.Limit, ByValue: c.By == ByValue, Share: share,
		LossLimit: lossLimit}
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
