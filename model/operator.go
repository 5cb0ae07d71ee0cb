package model

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"runtime"
	"sync"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"rondo/compute"
)

// building serialises the building, differentiation and compilation of Gorgonia graphs, which
// share the library's package variables (constant nodes, whose hashes are computed when first
// needed, and pools).
//
//nolint:gochecknoglobals // exists because Gorgonia's do
var building sync.Mutex

// Build runs build while no other graph is built through this package. Whoever builds graphs of
// their own around a Layer, in more than one goroutine, does so inside it. Running graphs
// needs no lock.
func Build(build func() error) error {
	building.Lock()
	defer building.Unlock()
	return build()
}

// operator is a Gorgonia operator made of functions: a gorgonia.SDOp.
//
// Gorgonia tells nodes apart by a 32-bit hash, so name must be unique in its graph; distinct
// checks the graph.
type operator struct {
	name  string
	types []hm.Type // of the inputs, and last of the output
	shape tensor.Shape
	run   func(in []gorgonia.Value) (gorgonia.Value, error)

	// wrt says which inputs have a gradient, and gradient makes their nodes; nil for operators
	// that are themselves part of a backward pass.
	wrt      []bool
	gradient func(in gorgonia.Nodes, out, grad *gorgonia.Node) (gorgonia.Nodes, error)
}

var _ gorgonia.SDOp = (*operator)(nil)

// apply adds the operator to its inputs' graph.
func (o *operator) apply(in ...*gorgonia.Node) (*gorgonia.Node, error) {
	o.types = o.types[:0]
	for _, n := range in {
		o.types = append(o.types, n.Type())
	}
	o.types = append(o.types, outputType(o.shape))
	n, err := gorgonia.ApplyOpWithName(o, o.name, in...)
	if err != nil {
		return nil, fmt.Errorf("model: operator %q: %w", o.name, err)
	}
	if n.Op() != gorgonia.Op(o) {
		return nil, fmt.Errorf("model: the graph has an operator %q already", o.name)
	}
	return n, nil
}

// outputType is the type of a float32 tensor of that shape.
func outputType(s tensor.Shape) hm.Type {
	if s.Dims() == 0 {
		return tensor.Float32
	}
	return gorgonia.TensorType{Dims: s.Dims(), Of: tensor.Float32}
}

// The rest is what gorgonia.SDOp asks for.

func (o *operator) Arity() int    { return len(o.types) - 1 }
func (o *operator) Type() hm.Type { return hm.NewFnType(o.types...) }
func (o *operator) InferShape(...gorgonia.DimSizer) (tensor.Shape, error) {
	return o.shape.Clone(), nil
}
func (o *operator) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	v, err := o.runCaught(in)
	if err != nil {
		return nil, fmt.Errorf("model: operator %q: %w", o.name, err)
	}
	return v, nil
}

// runCaught fails where the device does, which panics with an error: for lack of memory, or because
// it cannot record what it is asked. Gorgonia runs operators in a goroutine of its own, in which a
// panic is the end of the process.
func (o *operator) runCaught(in []gorgonia.Value) (v gorgonia.Value, err error) {
	defer func() {
		p := recover()
		if refusal, ok := p.(error); ok && !isOfGo(refusal) {
			err = refusal
		} else if p != nil {
			panic(p)
		}
	}()
	return o.run(in)
}

// isOfGo says whether an error is the runtime's own, as an index out of range is.
func isOfGo(err error) bool { _, ok := errors.AsType[runtime.Error](err); return ok }

func (o *operator) ReturnsPtr() bool      { return true }
func (o *operator) CallsExtern() bool     { return false } // true would allocate each output
func (o *operator) OverwritesInput() int  { return -1 }
func (o *operator) WriteHash(h hash.Hash) { fmt.Fprintf(h, "rondo operator %q", o.name) }
func (o *operator) Hashcode() uint32      { h := fnv.New32a(); o.WriteHash(h); return h.Sum32() }
func (o *operator) String() string        { return o.name }
func (o *operator) DiffWRT(inputs int) []bool {
	if o.wrt == nil {
		return make([]bool, inputs)
	}
	return o.wrt
}
func (o *operator) SymDiff(in gorgonia.Nodes, out, grad *gorgonia.Node) (gorgonia.Nodes, error) {
	if o.gradient == nil {
		return nil, fmt.Errorf("model: operator %q has no gradient", o.name)
	}
	return o.gradient(in, out, grad)
}

// port adds an operator that hands on a gradient which backward, another operator, has written
// by the time that it is done.
func port(name string, backward *gorgonia.Node, value *tensor.Dense) (*gorgonia.Node, error) {
	o := &operator{name: name, shape: value.Shape().Clone(),
		run: func([]gorgonia.Value) (gorgonia.Value, error) { return value, nil }}
	return o.apply(backward)
}

// buffer is device memory with the tensor that Gorgonia sees it as.
type buffer struct {
	dev   compute.Device // nil: the memory is another's
	flat  []float32
	value *tensor.Dense
}

// newBuffer allocates a buffer of that shape.
func newBuffer(dev compute.Device, shape ...int) *buffer {
	flat := dev.Alloc(tensor.Shape(shape).TotalSize())
	return &buffer{dev: dev, flat: flat, value: dense(flat, shape...)}
}

// cut makes a buffer of that shape from the beginning of memory that stays its owner's.
func cut(flat []float32, shape ...int) *buffer {
	n := tensor.Shape(shape).TotalSize()
	return &buffer{flat: flat[:n:n], value: dense(flat[:n:n], shape...)}
}

// close frees the buffer; one that is nil, closed or cut from another is left alone.
func (b *buffer) close() {
	if b != nil && b.dev != nil && b.flat != nil {
		b.dev.Free(b.flat)
		b.flat, b.value = nil, nil
	}
}

// dense is a tensor over memory that it does not own.
func dense(flat []float32, shape ...int) *tensor.Dense {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(flat))
}

// leaf adds an input node whose value is flat, now and at every run.
func leaf(g *gorgonia.ExprGraph, name string, flat []float32, shape ...int) *gorgonia.Node {
	return gorgonia.NewTensor(g, tensor.Float32, len(shape), gorgonia.WithName(name),
		gorgonia.WithShape(shape...), gorgonia.WithValue(dense(flat, shape...)))
}

// leafIDs is leaf for token ids [T, B].
func leafIDs(g *gorgonia.ExprGraph, name string, ids []int32, T, B int) *gorgonia.Node {
	value := tensor.New(tensor.WithShape(T, B), tensor.WithBacking(ids))
	return gorgonia.NewMatrix(g, tensor.Int32, gorgonia.WithName(name),
		gorgonia.WithShape(T, B), gorgonia.WithValue(value))
}

// floats returns the memory of a contiguous float32 value of n elements.
func floats(v gorgonia.Value, n int) ([]float32, error) {
	d, ok := v.(*tensor.Dense)
	if !ok || d.Dtype() != tensor.Float32 || d.RequiresIterator() || d.Shape().TotalSize() != n {
		return nil, fmt.Errorf("want %d contiguous float32, got %T of shape %v", n, v, v.Shape())
	}
	return d.Float32s(), nil
}

// tokenIDs returns the memory of a contiguous int32 value of n elements.
func tokenIDs(v gorgonia.Value, n int) ([]int32, error) {
	d, ok := v.(*tensor.Dense)
	if !ok || d.Dtype() != tensor.Int32 || d.RequiresIterator() || d.Shape().TotalSize() != n {
		return nil, fmt.Errorf("want %d contiguous int32, got %T of shape %v", n, v, v.Shape())
	}
	return d.Int32s(), nil
}

// distinct checks that no two nodes share a hash: Gorgonia would compute one of them only.
func distinct(g *gorgonia.ExprGraph) error {
	seen := map[uint32]*gorgonia.Node{}
	for _, n := range g.AllNodes() {
		if other := seen[n.Hashcode()]; other != nil {
			return fmt.Errorf("model: nodes %q and %q have the same hash", n.Name(), other.Name())
		}
		seen[n.Hashcode()] = n
	}
	return nil
}
