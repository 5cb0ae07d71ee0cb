package optim

import (
	"fmt"

	"rondo/compute"
)

// ClipBy is the quantity that the limit applies to.
type ClipBy string

// ClipScope says whose gradient is clipped.
type ClipScope string

// Values of Clip's fields.
const (
	// ByNorm scales the whole gradient g by limit/|g| when its L2 norm |g| is above the limit
	// (Pascanu et al., arXiv:1211.5063).
	ByNorm ClipBy = "norm"
	// ByValue limits each element to [-limit, limit].
	ByValue ClipBy = "value"

	// ScopeWorker clips each rank's mean gradient over its own targets, before the sum, and weights
	// it by the rank's share of all targets. The result depends on the number of ranks: with more
	// than one it differs from clipping the whole gradient (Goodfellow et al., Deep Learning,
	// 10.11.1).
	ScopeWorker ClipScope = "worker"
	// ScopeGlobal clips the sum over the ranks, as one process with the whole batch would.
	ScopeGlobal ClipScope = "global"
	// ScopeGroup clips each lane group's mean gradient, before the sum, and weights it by the
	// group's share of the targets. The result does not depend on which ranks have the groups. It
	// also differs from clipping the whole gradient.
	ScopeGroup ClipScope = "group"
)

// Clip configures gradient clipping.
type Clip struct {
	Limit float64 // 0: no clipping
	By    ClipBy
	Scope ClipScope
}

// maxClip keeps a clipped gradient and its sum over the ranks finite in float32.
const maxClip = 1e30

// Validate reports the first field out of range, by its flag.
func (c Clip) Validate() error {
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

// BeforeSum reports whether each rank clips its own gradient, or its groups', before the sum.
func (c Clip) BeforeSum() bool { return c.Limit > 0 && c.Scope != ScopeGlobal }

// Args returns the device's clip arguments for a gradient with this share of the targets.
func (c Clip) Args(share, lossLimit float64) compute.Clip {
	return compute.Clip{Limit: c.Limit, ByValue: c.By == ByValue, Share: share,
		LossLimit: lossLimit}
}
