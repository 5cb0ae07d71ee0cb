package job

import (
	"rondo/compute"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
)

// Network is the shape of a task's network.
type Network struct {
	Tensors []model.View // all parameters
	// Table names the tensor in which a pass touches only the rows of the tokens that it reads; "":
	// none. With TableByColumn each token has a column of it.
	Table         string
	TableByColumn bool
	Tokens        int // that the network reads: the vocabulary's size
	StateSize     int // floats that a lane carries from step to step

	// make makes a network with initial weights.
	make func(compute.Device) (weights, error)
	// size is a device's memory for passes over this many lanes at a time. Its part for
	// evaluations is evaluation, unless they use the same passes or there are none.
	size func(on compute.Sizer, lanes int) (work, evaluation compute.Size)
	// data is the host memory of the data that are not read from disk, in bytes.
	data int64
}

// weights are a network on a device.
type weights interface {
	Device() compute.Device
	Layout() []model.View
	Params() []float32
	Close()
}

// NetworkOf is the network of a job whose data have this extent.
func NetworkOf(spec *rondov1.JobSpec, data Extent) (Network, error) {
	e, err := taskOf(spec)
	if err != nil {
		return Network{}, err
	}
	return e.network(spec, data)
}
