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

// buildMutex serialises the building, differentiation and compilation of Gorgonia graphs. They
// share the library's package variables: pools, and constant nodes whose hashes are computed on
// first use.
//
//nolint:gochecknoglobals // exists because Gorgonia's do
var buildMutex sync.Mutex

// Build runs build while no other graph is built through this package. Programs that build graphs
// around a Layer in several goroutines must do so inside Build. Running graphs needs no lock.
func Build(build func() error) error {
	buildMutex.Lock()
	defer buildMutex.Unlock()
	return build()
}

// operator is a gorgonia.SDOp made of functions.
//
// Gorgonia identifies nodes by a 32-bit hash, so name must be unique in its graph; distinct checks
// the graph.
type operator struct {
	name  string
	types []hm.Type // of the inputs, and last of the output
	shape tensor.Shape
	run   func(in []gorgonia.Value) (gorgonia.Value, error)

	// wrt marks the inputs that have a gradient, and gradient makes the gradients' nodes. Both are
	// nil for operators of a backward pass.
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

// outputType is the type of a float32 tensor with this shape.
func outputType(s tensor.Shape) hm.Type {
	if s.Dims() == 0 {
		return tensor.Float32
	}
	return gorgonia.TensorType{Dims: s.Dims(), Of: tensor.Float32}
}

// The remaining methods implement gorgonia.SDOp.

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

// runCaught turns a device's panic into an error. A device panics with an error if it lacks memory
// or cannot record an operation. Gorgonia runs operators in a goroutine of its own, where a panic
// would end the process.
func (o *operator) runCaught(in []gorgonia.Value) (v gorgonia.Value, err error) {
	defer func() {
		p := recover()
		if refusal, ok := p.(error); ok && !isRuntimeError(refusal) {
			err = refusal
		} else if p != nil {
			panic(p)
		}
	}()
	return o.run(in)
}

// isRuntimeError reports whether err is the Go runtime's, such as an index out of range.
func isRuntimeError(err error) bool { _, ok := errors.AsType[runtime.Error](err); return ok }

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

// port adds an operator that returns a gradient which another operator, backward, has already
// written.
func port(name string, backward *gorgonia.Node, value *tensor.Dense) (*gorgonia.Node, error) {
	o := &operator{name: name, shape: value.Shape().Clone(),
		run: func([]gorgonia.Value) (gorgonia.Value, error) { return value, nil }}
	return o.apply(backward)
}

// buffer is device memory with its Gorgonia tensor.
type buffer struct {
	dev   compute.Device // nil: the buffer does not own its memory
	flat  []float32
	value *tensor.Dense
}

// newBuffer allocates a buffer with this shape.
func newBuffer(dev compute.Device, shape ...int) *buffer {
	flat := dev.Alloc(tensor.Shape(shape).TotalSize())
	return &buffer{dev: dev, flat: flat, value: dense(flat, shape...)}
}

// cut makes a buffer with this shape from the start of memory that it does not own.
func cut(flat []float32, shape ...int) *buffer {
	n := tensor.Shape(shape).TotalSize()
	return &buffer{flat: flat[:n:n], value: dense(flat[:n:n], shape...)}
}

// close frees the buffer's own memory. It may be called on nil and repeatedly.
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

// leaf adds an input node whose value is flat, read at every run.
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

// distinct checks that no two nodes share a hash, since Gorgonia would compute only one of them.
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

// leaves are a graph's weights.
type leaves struct {
	*parameters
	nodes *gorgonia.ExprGraph
	all   gorgonia.Nodes
}

// tensor adds a tensor's node.
func (w *leaves) tensor(name string) *gorgonia.Node {
	v := find(w.views, name)
	return w.add(leaf(w.nodes, name, v.of(w.params), v.Shape...))
}

// part adds a node of the parameters [begin, end).
func (w *leaves) part(name string, begin, end int) *gorgonia.Node {
	return w.add(leaf(w.nodes, name, w.params[begin:end:end], end-begin))
}

// crossEntropy adds the output layer with this label smoothing. dx takes the gradient of x.
func (w *leaves) crossEntropy(x *gorgonia.Node, dx *buffer, smoothing float64, t *tape) (
	*crossEntropy, *gorgonia.Node, error) {
	weight, bias := find(w.views, outputWeight), find(w.views, outputBias)
	s := dx.value.Shape() // [T, B, W]
	kernel := w.dev.NewOutput(compute.OutputShape{N: s[0] * s[1], H: s[2], V: bias.Len,
		Smoothing: float32(smoothing)})
	c := newCrossEntropy(kernel, w.dev, weight.of(w.grads), bias.of(w.grads), dx)
	c.done = t.finishing(bias)
	cost, err := c.apply(x, w.part(outputWeight, weight.Offset, weight.Offset+weight.Len),
		w.tensor(outputBias))
	return c, cost, err
}

func (w *leaves) add(n *gorgonia.Node) *gorgonia.Node {
	w.all = append(w.all, n)
	return n
}
