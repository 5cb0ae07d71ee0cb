package cpu

import "rondo/compute"

var _ compute.Sizer = Config{}

// input is what a layer's workspace has room for besides the layer.
type input int

const (
	noInput input = iota - 1 // before its first Forward
	denseInput
	idsInput
)

func inputOf(ids bool) input {
	if ids {
		return idsInput
	}
	return denseInput
}

// TensorSize is of Alloc.
func (c Config) TensorSize(n int) compute.Size {
	return compute.Size{Own: whole(4 * int64(n))}
}

// RecurrentSize is of NewRecurrent and its calls.
func (c Config) RecurrentSize(s compute.RecurrentShape, inference, ids bool) compute.Size {
	return compute.Size{Own: whole(c.layerBytes(s, inference, inputOf(ids)))}
}

// OutputSize is of NewOutput and its calls.
func (c Config) OutputSize(s compute.OutputShape) compute.Size {
	return compute.Size{Own: whole(c.headBytes(s, outputRows(s)))}
}

// GemmSize is of Gemm.
func (c Config) GemmSize(m, n, k int) compute.Size {
	return compute.Size{Shared: c.gemmBytes(m, n, k)}
}
