// Package compute is the contract of a device: what a CPU or a GPU must do for a recurrent
// language model to be trained on it, and refuse (check.go). It holds no arithmetic over tensors;
// compute/cpu and compute/cuda do.
// It imports nothing of ours.
//
// Shapes use these letters throughout:
//
//	T  time steps of a segment (--bptt)
//	B  lanes that this worker reads (its share of --batch)
//	D  width of a layer's input; the vocabulary when the input is one-hot
//	H  width of a layer's hidden state (--hidden)
//	K  gates of a cell (Cell.Gates)
//	P  peepholes of a cell (Cell.Peepholes)
//	V  vocabulary, E embedding width, N = T*B rows
//
// Every matrix is row-major float32. Sequences are time-major, [T, B, D], so that one time step
// is contiguous. Weights have PyTorch's layout and gate order (LSTM i,f,g,o; GRU r,z,n), so that
// a checkpoint loads into torch.nn as it is.
//
// A []float32 handed to a Device comes from its Alloc and lives in its memory: code outside the
// device reads and writes it only through Upload and Download (on a CPU they are copies within
// one memory; on a GPU the slice's memory is not the host's). Integer slices (token ids) and
// float32 arguments passed by value are host memory. A Device and what it makes are used by one
// goroutine at a time. A shape that does not fit is a broken invariant and panics; so does a lack
// of memory, with a *MemoryError, and a device that fails, with a *DeviceError; Catch makes these
// two errors.
package compute

import (
	"fmt"
	"math"
	"strings"
)

// parse returns where a name is among all of its kind.
func parse(name string, all []string) (int, error) {
	for i, n := range all {
		if n == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q is not one of %s", name, strings.Join(all, ", "))
}

// Precision is what a device's products multiply. Parameters, states, sums and gradients are
// float32 whatever it is.
type Precision int

// The precisions.
const (
	// FP32: float32 operands.
	FP32 Precision = iota
	// BF16: both operands of a product are rounded to bfloat16 (8 bits of significand, to
	// nearest, ties to even) and their products summed in float32. What a token id picks from
	// one-hot weights is no product and stays float32, and so does all that is elementwise.
	BF16
	// TF32: both operands are rounded to 10 bits of significand. Of GPUs alone.
	TF32
	// FP16: the operands of the forward pass are rounded to IEEE 754 half precision, and those of
	// the backward pass, whose gradients may be below its range, to bfloat16. Of GPUs alone.
	FP16
)

// precisions are all of them, in order, and their names.
func precisions() []string {
	return []string{FP32: "fp32", BF16: "bf16", TF32: "tf32", FP16: "fp16"}
}

// ParsePrecision returns the precision that String calls by this name.
func ParsePrecision(name string) (Precision, error) {
	at, err := parse(name, precisions())
	return Precision(at), err
}

// String is the precision's name: fp32, bf16, tf32 or fp16.
func (p Precision) String() string {
	if p < 0 || int(p) >= len(precisions()) {
		return fmt.Sprintf("precision %d", int(p))
	}
	return precisions()[p]
}

// RecurrentShape is one recurrent layer over one segment.
type RecurrentShape struct {
	Cell       Cell
	T, B, D, H int
}

// RecurrentWeights are a layer's parameters, or their gradients.
type RecurrentWeights struct {
	IH     []float32 // [K*H, D]
	HH     []float32 // [K*H, H]
	BiasIH []float32 // [K*H]
	BiasHH []float32 // [K*H]

	Peephole []float32 // [P*H]; nil unless the cell has peepholes
}

// Weights makes the parameters of a layer. tensor is asked for each of its length.
func (s RecurrentShape) Weights(tensor func(n int) []float32) RecurrentWeights {
	rows := s.Cell.Gates() * s.H
	w := RecurrentWeights{IH: tensor(rows * s.D), HH: tensor(rows * s.H), BiasIH: tensor(rows),
		BiasHH: tensor(rows)}
	if n := s.Cell.Peepholes(); n > 0 {
		w.Peephole = tensor(n * s.H)
	}
	return w
}

// State makes a state of a layer likewise.
func (s RecurrentShape) State(tensor func(n int) []float32) RecurrentState {
	state := RecurrentState{H: tensor(s.B * s.H)}
	if s.Cell.States() == 2 {
		state.C = tensor(s.B * s.H)
	}
	return state
}

// RecurrentState is what a layer carries from one segment to the next.
type RecurrentState struct {
	H []float32 // [B, H]
	C []float32 // [B, H]; nil unless the cell has two states
}

// RecurrentInput is a layer's input over a segment: token ids (one-hot vectors of width D that
// are never built) or dense rows. Exactly one is set.
type RecurrentInput struct {
	IDs []int32   // [T, B], each in [0, D)
	X   []float32 // [T, B, D]
}

// Recurrent is one layer with its workspace for one shape. Backward refers to the last Forward
// and its inputs, which must not have changed since; a Forward has at most one.
type Recurrent interface {
	// Forward computes y: [T, B, H], which Backward does not need, and the state after the
	// segment. The state out may be the same memory as the state in only if Backward is never
	// called.
	Forward(w RecurrentWeights, in RecurrentInput, state RecurrentState,
		y []float32, out RecurrentState)
	// Backward overwrites the gradients of the loss with respect to the weights, and to X when
	// dx ([T, B, D]) is not nil. The gradient does not flow into the initial state (truncated
	// BPTT), nor in from the final one unless dout is set. dstate, when set, receives the
	// gradient of the initial state.
	Backward(dy []float32, dout RecurrentState, dw RecurrentWeights,
		dx []float32, dstate RecurrentState)
	// Close frees the workspace.
	Close()
}

// Telling is a Recurrent that is through with the gradients of some weights before it is through
// with the others, and says so. Its work is done when its calls return.
type Telling interface {
	Recurrent
	// BackwardTelling is Backward, to the last bit, and calls told with how many tensors of dw are
	// what it leaves them as, and how many rows of the next: with (1, 0) when dw.IH is, with
	// (1, H), (1, 2H) and so on when another gate's rows of dw.HH are, but for the last gate's, and
	// with (Cell.Tensors, 0) when all of dw is. Others may read and write what was told of from
	// then on, while it goes on with the rest of dw, and last with dx, which layers beneath wait
	// for anyway.
	BackwardTelling(dy []float32, dout RecurrentState, dw RecurrentWeights,
		dx []float32, dstate RecurrentState, told func(tensors, rows int))
}

// OutputShape is the last layer: N rows of width H to a distribution over V tokens.
type OutputShape struct{ N, H, V int }

// Output is the fused linear layer and softmax cross-entropy. It may compute the logits in
// chunks of rows, so that they are never all in memory.
type Output interface {
	// Forward computes the sum, over rows whose target is not negative, of
	// -log softmax(x w^T + b)[target], in nats. x: [N, H], w: [V, H], b: [V] or nil.
	Forward(x, w, b []float32, targets []int32)
	// ForwardBackward does the same, and overwrites with the gradients of scale*sum:
	// dx: [N, H], dw: [V, H], db: [V] (nil when b is).
	ForwardBackward(x, w, b []float32, targets []int32, scale float32, dx, dw, db []float32)
	// Sum returns the sum that the last of the two, or of a Recording that holds one, has computed.
	// It waits for the device.
	Sum() float64
	// Close frees the workspace.
	Close()
}

// Optimizer is the rule of an update.
type Optimizer int

// The optimizers, with the definitions of torch.optim (g: gradient with weight decay added, except
// for AdamW, which decays the parameter itself; Loshchilov and Hutter, arXiv:1711.05101).
const (
	SGD Optimizer = iota
	// Momentum: v = mu v + g; p -= lr v.
	Momentum
	// Nesterov: v = mu v + g; p -= lr (g + mu v).
	Nesterov
	// Adam with bias correction (Kingma and Ba, arXiv:1412.6980).
	Adam
	AdamW
	// RMSProp: s = rho s + (1-rho) g^2; p -= lr g / (sqrt(s) + eps).
	RMSProp
	// Adagrad: s += g^2; p -= lr g / (sqrt(s) + eps).
	Adagrad
)

// Slots returns how many values per parameter the optimizer keeps.
func (o Optimizer) Slots() int {
	switch o {
	case SGD:
		return 0
	case Momentum, Nesterov, RMSProp, Adagrad:
		return 1
	case Adam, AdamW:
		return 2
	}
	panic(fmt.Sprintf("compute: optimizer %d is not one of 0..6", int(o)))
}

// Update is one update of all parameters.
type Update struct {
	Optimizer    Optimizer
	Step         int64 // of the update, from 1 (Adam's bias correction)
	LR           float32
	Momentum     float32 // mu
	Beta1, Beta2 float32
	Rho          float32
	Epsilon      float32
	WeightDecay  float32
	// Held keeps the second moment of Adam, AdamW and RMSProp as it is, that of so many updates;
	// 0: it takes in the gradient. Gradients that arrive in bursts would make it too large (1-bit
	// Adam; Tang et al. 2021, arXiv:2102.02888, Algorithm 1).
	Held int64
}

// Decays are what an update multiplies the second moments by: beta2 and rho, or 1 where they are
// Held.
func (u Update) Decays() (beta2, rho float32) {
	if u.Held > 0 {
		return 1, 1
	}
	return u.Beta2, u.Rho
}

// Correction is Adam's of its moments' bias, computed in float64, once for all parameters: the
// step's size lr/(1-beta1^step), and 1/sqrt(1-beta2^step), by which sqrt of the second moment is
// multiplied. Other optimizers have none.
func (u Update) Correction() (size, root float32) {
	if u.Optimizer.Slots() < 2 {
		return 0, 0
	}
	first := 1 - math.Pow(float64(u.Beta1), float64(u.Step))
	took := u.Step
	if u.Held > 0 {
		took = u.Held
	}
	second := 1 - math.Pow(float64(u.Beta2), float64(took))
	return float32(float64(u.LR) / first), float32(1 / math.Sqrt(second))
}

// Clip is how a gradient is limited.
type Clip struct {
	Limit   float64 // of the L2 norm, or of each element's magnitude; 0: none
	ByValue bool
	Share   float64 // what the gradient is multiplied by afterwards
	// LossLimit is what the magnitude of the loss must be below, where there is one to look at.
	LossLimit float64
}

// Factor is what a gradient of this norm is multiplied by, after its elements have been limited if
// they are: the share, times the limit by the norm if that is above it.
func (c *Clip) Factor(norm float64) float32 {
	factor := c.Share
	if c.Limit > 0 && !c.ByValue && norm > c.Limit {
		factor *= c.Limit / norm
	}
	return float32(factor)
}

// Loss is a sum in parts: those that are known, and the one that an Output computes last.
type Loss struct {
	Known float64
	Last  Output
}

// Sum returns all of it. It waits for the device.
func (l *Loss) Sum() float64 { return l.Known + l.Last.Sum() }

// Clipper limits a gradient and updates by it where its norm is computed, so that nobody has to
// wait for the norm in between. What Clip and Update are given by address they read when they are
// called, and a Recording reads it anew at each Replay; only the optimizer must be the same.
type Clipper interface {
	// Clip computes the norm of g, the square root of SumSquares. Where that is finite, and loss,
	// if it is not nil, is below c.LossLimit in magnitude, it limits g to c.Limit and multiplies it
	// by c.Share: each element is limited, then multiplied by the Factor. Elsewhere g stays.
	Clip(g []float32, c *Clip, loss *Loss)
	// Update is Device's, but where the last Clip has left g as it was it changes nothing.
	Update(u *Update, params, grads, s1, s2 []float32)
	// Norm returns the norm of the last Clip's g, before it was limited. It is not finite where g
	// was left as it was, be it for the loss. It waits for the device.
	Norm() float64
	// Close frees the clipper.
	Close()
}

// Device does the arithmetic. Its work may be done after the call that asked for it has returned,
// in the order of the calls; Download, SumSquares, Output's Sum and Clipper's Norm wait for what
// they return. Host memory that a call reads is the caller's again when the call returns.
type Device interface {
	// Name describes the device and how it computes, for people: "cpu (AVX-512; 2 threads)".
	Name() string

	// Alloc returns n zeros, aligned to 64 bytes.
	Alloc(n int) []float32
	// Free gives memory from Alloc back.
	Free(x []float32)
	// Upload copies host memory to the device; Download copies back. Lengths are equal.
	Upload(dst, src []float32)
	Download(dst, src []float32)
	// Zero fills with zeros.
	Zero(x []float32)

	// NewRecurrent makes a layer's workspace, with what Backward needs unless inference is set.
	NewRecurrent(s RecurrentShape, inference bool) Recurrent
	// NewOutput makes the last layer's workspace.
	NewOutput(s OutputShape) Output

	// Gemm computes c = alpha op(a) op(b) + beta c, op(a): [m, k], op(b): [k, n], c: [m, n],
	// all packed (a transposed operand is stored [k, m] or [n, k]). In FP16 it is a product of the
	// backward pass.
	Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32, beta float32,
		c []float32)
	// AddBias adds b: [n] to every row of x: [m, n].
	AddBias(x, b []float32)
	// Embed gathers rows: y[i] = table[ids[i]]; table: [V, E], y: [N, E].
	Embed(y, table []float32, ids []int32)
	// EmbedBackward adds dy's rows to dtable's: dtable[ids[i]] += dy[i], in the order of i.
	EmbedBackward(dtable, dy []float32, ids []int32)
	// Dropout sets y = x / (1-p) where an element is kept and 0 where it is dropped, for
	// x, y: [T, B, H] (they may be the same memory), T: steps, B: len(keys). Whether element
	// (t, b, h) is kept is a function of keys[b] and t*H+h alone (DropoutKeep), so that a lane's
	// mask does not depend on the worker that holds it, and the backward pass is the same call on
	// the gradient.
	Dropout(y, x []float32, steps int, p float32, keys []uint64)

	// SumSquares returns the sum of squares in float64, the same bits on every device: of each
	// SquaresBlock elements SquaresLanes sums, each over every SquaresLanes-th element, and their
	// sum; of each SquaresPart elements the sum of those; and the sum of those, all in order. It
	// is finite if and only if every element is.
	SumSquares(x []float32) float64
	// Scale multiplies x by a; Add adds x to y.
	Scale(x []float32, a float32)
	Add(y, x []float32)
	// Update applies the optimizer, each product rounded before it is added; s1 and s2 are its
	// slots, nil where it has fewer. These four, and a Clipper's, give the same bits on every
	// device, so that ranks with different ones keep the same parameters.
	Update(u Update, params, grads, s1, s2 []float32)
	// NewClipper makes what limits gradients.
	NewClipper() Clipper

	// Close frees everything.
	Close()
}

// Recorder is a Device that can keep the work of a sequence of calls and do it again at once,
// without what the calls cost the host: a CUDA graph.
type Recorder interface {
	Device
	// Record has f call the device and what it has made, and returns the work of those calls, which
	// has not been done. f neither makes nor frees anything, nor reads back from the device. Where
	// the device cannot record, it returns an error, and f may have been called.
	Record(f func() error) (Recording, error)
}

// Recording is the work of a sequence of calls.
type Recording interface {
	// Replay does the work again, as if each call had been made with the same arguments: numbers
	// with the same values, and slices and what a Clipper is given by address with what is in them
	// now, host memory included.
	Replay()
	// Close frees the recording.
	Close()
}

// Stager is a Device with memory of its own that copies between it and the host's beside its other
// work.
type Stager interface {
	Device
	// AllocHost returns n zeros of host memory that the device reads and writes by itself (it is
	// page-locked); FreeHost gives it back.
	AllocHost(n int) []float32
	FreeHost(x []float32)
	// StartDownload begins to copy src to dst, which is of AllocHost's memory, as soon as the work
	// asked for so far is done, and beside what is asked for next. wait waits until dst has it all;
	// until then src must not change. It may be recorded, and wait is then for the last Replay.
	StartDownload(dst, src []float32) (wait func())
	// StartUpload copies src, which is of AllocHost's memory, to dst before what is asked for next
	// is done. src must not change until something is waited for.
	StartUpload(dst, src []float32)
}

// Staged is a part of a gradient, from where the part before ends up to End, on its way to memory
// of Stager.AllocHost. Wait waits until it is there; until then the gradient must not change.
type Staged struct {
	End  int
	Wait func()
}

// Tensor is a tensor's place in a flat slice: parameters, gradients, what an optimizer keeps.
type Tensor struct {
	Name   string // PyTorch's, as rnn.weight_ih_l0
	Shape  []int
	Offset int // in floats, a multiple of 16
	Len    int // in floats: the product of Shape
}

// The order of SumSquares, in elements.
const (
	SquaresLanes = 16
	SquaresBlock = 1 << 12
	SquaresPart  = 1 << 20
)

// DropoutKeep says whether dropout with probability p keeps element index of the lane and layer
// that key stands for: a SplitMix64 hash (Steele, Lea and Flood 2014) compared with p.
func DropoutKeep(key uint64, index int, p float32) bool {
	z := key + (uint64(index)+1)*0x9E3779B97F4A7C15
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	z ^= z >> 31
	return float32(z>>40)/(1<<24) >= p
}

// DropoutShift returns the key under which element i is what element index+i is under key, so
// that a part of a segment drops what the whole does.
func DropoutShift(key uint64, index int) uint64 {
	return key + uint64(index)*0x9E3779B97F4A7C15
}
