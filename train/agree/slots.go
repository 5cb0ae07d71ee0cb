package agree

import (
	"context"
	"time"

	"rondo/compute"
)

// SlotsConfig gives a rank's part of the optimizer's slots access to its trainer: see train.Slots.
// The numbers are the same on all ranks.
type SlotsConfig struct {
	Device   compute.Device
	Clipper  compute.Clipper
	Gradient *compute.Mirror
	Params   []float32    // device memory
	Slots    int          // slots per parameter
	Clip     compute.Clip // of the summed gradient
	Compare  bool         // ranks that keep the same slots compare them

	Copy      func(dst, src []float32)                    // within device memory
	Version   func() Version                              // of the parameters
	Updates   func() int64                                // number of updates of the parameters
	Nonfinite func() bool                                 // of this rank's loss or gradient
	Updating  func(ctx context.Context, step int64) error // called before a range is updated
	Lap       func(work string)                           // called after some work, for tracing
	Replace   func()                                      // called before slots are freed
	Notice    func(text string)                           // reports to the operator
	Now       func() time.Time
}
