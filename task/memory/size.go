package memory

import (
	"rondo/compute"
	"rondo/model"
)

// Size is a device's memory for passes over so many lanes: a workspace of so many floats for each,
// and the sums of gradients of groups of them.
func Size(on compute.Sizer, tensors []model.View, lanes, workspace int) compute.Size {
	return on.TensorSize(lanes * workspace).
		And(on.TensorSize(min(lanes, groups) * model.Span(tensors)))
}
