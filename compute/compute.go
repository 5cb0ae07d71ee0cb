// Package compute is the contract of a device: what a CPU or a GPU must compute to train a
// recurrent language model, and what it must refuse (check.go). It has no tensor arithmetic;
// compute/cpu and compute/cuda have. It imports no other package of this module.
//
// Shapes use these letters throughout:
//
//	T  time steps of a segment (--bptt)
//	B  lanes of this worker (its share of --batch)
//	D  width of a layer's input; the vocabulary when the input is one-hot
//	H  width of a layer's hidden state (--hidden)
//	K  gates of a cell (Cell.Gates)
//	P  peepholes of a cell, or other elementwise weights (Cell.Peepholes)
//	V  vocabulary, E embedding width, N = T*B rows
//
// Every matrix is row-major float32. Sequences are time-major, [T, B, D], so that one time step
// is contiguous. Weights have PyTorch's layout and gate order (LSTM i,f,g,o; GRU r,z,n), so that
// a checkpoint loads into torch.nn as it is.
//
// A []float32 passed to a Device comes from its Alloc and lies in its memory, which for a GPU is
// not the host's: other code reads and writes it only through Upload and Download. Integer slices
// (token ids) and float32 values are host memory. One goroutine at a time uses a Device and the
// objects that it makes. A wrong shape is a broken invariant and panics. A lack of memory panics
// with a *MemoryError and a failed device with a *DeviceError; Catch turns these two into errors.
package compute

import (
	"fmt"
	"math"
	"strings"
)

// parse returns the index of name in all.
func parse(name string, all []string) (int, error) {
	for i, n := range all {
		if n == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q is not one of %s", name, strings.Join(all, ", "))
}

// Precision is the format of the operands of a device's products. Parameters, states, sums and
// gradients are always float32.
type Precision int

// The precisions.
const (
	// FP32: float32 operands.
	FP32 Precision = iota
	// BF16: both operands of a product are rounded to bfloat16 (8 bits of significand, to
	// nearest, ties to even) and their products summed in float32. Rows that token ids select from
	// one-hot weights, and elementwise operations, stay float32.
	BF16
	// TF32: both operands are rounded to 10 bits of significand. GPUs only.
	TF32
	// FP16: the operands of the forward pass are rounded to IEEE 754 half precision, and those of
	// the backward pass, whose gradients may be below its range, to bfloat16. GPUs only.
	FP16
)

// precisions are the names of all precisions, in order.
func precisions() []string {
	return []string{FP32: "fp32", BF16: "bf16", TF32: "tf32", FP16: "fp16"}
}

// ParsePrecision returns the precision whose String is name.
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
	// Leak is the share of its state that a Leaky cell takes from the step, in (0, 1]; 0:
	// DefaultLeak. The other cells do not read it.
	Leak float32
	// Periods are a Clockwork cell's; zero: DefaultPeriods. A Device computes with all of W_hh:
	// NewRecurrent, the function, removes connections. The other cells do not read them.
	Periods Periods
	// Transition is how many layers the perceptron of a deep transition has; 0: there is none. A
	// Device has no kernel for it: see NewRecurrent, the function.
	Transition int
	// Skip is d: the gates also read the layer's output d steps before, through H columns of W_ih
	// behind those of the input, which is rows; 0: they do not. See NewRecurrent, the function.
	Skip int
}

// DefaultLeak is the default of RecurrentShape.Leak.
const DefaultLeak = 0.5

// RecurrentWeights are a layer's parameters, or their gradients.
type RecurrentWeights struct {
	IH     []float32 // [K*H, D], or with a Skip [K*H, D+H]
	HH     []float32 // [K*H, H]; nil, like BiasHH, if the gates read the input alone
	BiasIH []float32 // [K*H]
	BiasHH []float32 // [K*H]

	Peephole []float32 // [P*H]; nil unless the cell has peepholes, or learns its leak

	Transition []Linear // [H, H] each, of the shape's Transition
}

// Weights makes the parameters of a layer; tensor allocates n floats.
func (s RecurrentShape) Weights(tensor func(n int) []float32) RecurrentWeights {
	rows := s.Cell.Gates() * s.H
	hidden := s.Cell.HiddenGates() * s.H
	w := RecurrentWeights{IH: tensor(rows * s.Inputs())}
	if hidden > 0 {
		w.HH = tensor(hidden * s.H)
	}
	w.BiasIH = tensor(rows)
	if hidden > 0 {
		w.BiasHH = tensor(hidden)
	}
	if n := s.Cell.Peepholes(); n > 0 {
		w.Peephole = tensor(n * s.H)
	}
	for range s.Transition {
		w.Transition = append(w.Transition, Linear{W: tensor(s.H * s.H), B: tensor(s.H)})
	}
	return w
}

// State makes a state of a layer; tensor allocates n floats.
func (s RecurrentShape) State(tensor func(n int) []float32) RecurrentState {
	state := RecurrentState{H: tensor(s.B * s.H)}
	if s.Cell.States() == 2 {
		state.C = tensor(s.B * s.H)
	}
	if s.Skip > 1 {
		state.Past = tensor((s.Skip - 1) * s.B * s.H)
	}
	return state
}

// RecurrentState is the state that a layer carries from one segment to the next.
type RecurrentState struct {
	H []float32 // [B, H]
	C []float32 // [B, H]; nil unless the cell has two states
	// Past is the outputs before H, the oldest first: [Skip-1, B, H].
	Past []float32
}

// RecurrentInput is a layer's input over a segment: token ids (one-hot vectors of width D that
// are never built) or dense rows. Exactly one is set.
type RecurrentInput struct {
	IDs []int32   // [T, B], each in [0, D)
	X   []float32 // [T, B, D]
	// Lengths, unless nil, are how many steps each row has, in [0, T]. From its length on a row
	// keeps its state, which y repeats, and weights and X get no gradient from it. Its input there
	// has no effect, but must be valid and finite.
	Lengths []int32 // [B]
}

// Recurrent is one layer with its workspace for one shape. Backward uses the last Forward and its
// inputs, which must not have changed since. It may follow each Forward once.
type Recurrent interface {
	// Forward computes y: [T, B, H], which Backward does not read, and the state after the segment.
	// The output state may share the input state's memory only if Backward is never called.
	Forward(w RecurrentWeights, in RecurrentInput, state RecurrentState,
		y []float32, out RecurrentState)
	// Backward overwrites dw with the gradients of the weights and, unless it is nil, dx ([T, B,
	// D]) with the gradient of X. dout, if set, is the gradient of the final state; without it no
	// gradient comes from later segments (truncated BPTT). dstate, if set, receives the gradient of
	// the initial state.
	Backward(dy []float32, dout RecurrentState, dw RecurrentWeights,
		dx []float32, dstate RecurrentState)
	// Close frees the workspace.
	Close()
}

// WeightKeeper is a Recurrent that prepares weights for its products, and can keep them prepared.
type WeightKeeper interface {
	Recurrent
	// KeepWeights promises, for a layer made for inference, that all further Forwards get the same
	// weights, and that these do not change. Results are the same to the last bit.
	KeepWeights()
}

// ProgressReporter is a Recurrent that finishes the gradients of some weights before the others and
// reports each. Its work is done when its calls return.
type ProgressReporter interface {
	Recurrent
	// BackwardReporting is Backward, to the last bit. It calls finished with the number of finished
	// tensors of dw, and of finished rows in the next one: (1, 0) after dw.IH, (1, H), (1, 2H) and
	// so on after each gate's rows of dw.HH except the last gate's, and (Cell.Tensors, 0) after all
	// of dw. From then on others may read and write the finished part, while BackwardReporting
	// computes the rest of dw, and last dx.
	BackwardReporting(dy []float32, dout RecurrentState, dw RecurrentWeights,
		dx []float32, dstate RecurrentState, finished func(tensors, rows int))
}

// OutputShape is the last layer: N rows of width H to a distribution over V tokens.
type OutputShape struct {
	N, H, V int
	// Smoothing of the targets, in [0, 1), in ForwardBackward: see there.
	Smoothing float32
}

// Output is the fused linear layer and softmax cross-entropy. It may compute the logits in chunks
// of rows to save memory.
type Output interface {
	// Forward computes the sum, over rows with a target that is not negative, of
	// -log softmax(x w^T + b)[target], in nats. x: [N, H], w: [V, H], b: [V] or nil.
	Forward(x, w, b []float32, targets []int32)
	// ForwardBackward computes the same sum, and overwrites these with the gradients of scale*sum:
	// dx: [N, H], dw: [V, H], db: [V] (nil when b is). With the shape's Smoothing e, a row's loss
	// is (1-e) times that, and e times the mean of -log softmax(x w^T + b) over all tokens (Szegedy
	// et al. 2016, arXiv:1512.00567, section 7; torch.nn.CrossEntropyLoss's label_smoothing).
	ForwardBackward(x, w, b []float32, targets []int32, scale float32, dx, dw, db []float32)
	// Sum waits for the device and returns the sum of the last call of the two, or of the last
	// Replay with one.
	Sum() float64
	// Close frees the workspace.
	Close()
}

// Optimizer is the update rule.
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

// Slots returns the number of values that the optimizer keeps per parameter.
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
	// Held, unless 0, freezes the second moment of Adam, AdamW and RMSProp. It is the number of
	// updates in that moment. Later gradients in bursts would make it too large (1-bit Adam; Tang
	// et al. 2021, arXiv:2102.02888, Algorithm 1).
	Held int64
}

// Decays are the factors of the second moments in an update: beta2 and rho, or 1 if they are Held.
func (u Update) Decays() (beta2, rho float32) {
	if u.Held > 0 {
		return 1, 1
	}
	return u.Beta2, u.Rho
}

// Correction is Adam's bias correction, computed in float64 once for all parameters: the step size
// lr/(1-beta1^step), and 1/sqrt(1-beta2^step), the factor of the second moment's square root. It is
// zero for other optimizers.
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

// Clip configures how a gradient is limited.
type Clip struct {
	Limit   float64 // of the L2 norm, or of each element's magnitude; 0: none
	ByValue bool
	Share   float64 // factor of the limited gradient
	// LossLimit bounds the magnitude of the loss, if one is given: it must be smaller.
	LossLimit float64
}

// Factor is the multiplier of a gradient with this norm, after any limit of its elements: the
// share, times limit/norm if the norm is above the limit.
func (c *Clip) Factor(norm float64) float32 {
	factor := c.Share
	if c.Limit > 0 && !c.ByValue && norm > c.Limit {
		factor *= c.Limit / norm
	}
	return float32(factor)
}

// Loss is a sum of a known part and the Sum of an Output.
type Loss struct {
	Known float64
	Last  Output
}

// Sum waits for the device and returns the whole sum.
func (l *Loss) Sum() float64 { return l.Known + l.Last.Sum() }

// Clipper limits a gradient and updates the parameters on the device, so that the host need not
// wait for the norm in between. Clip and Update read their pointers' targets when they are called,
// and a Recording at each Replay; only the optimizer must stay the same.
type Clipper interface {
	// Clip computes the norm of g, the square root of SumSquares. If the norm is finite, and loss
	// is nil or below c.LossLimit in magnitude, it limits each element (ByValue) and multiplies g
	// by the Factor. Otherwise g stays unchanged.
	Clip(g []float32, c *Clip, loss *Loss)
	// Update is Device.Update, unless the last Clip left g unchanged: then it does nothing.
	Update(u *Update, params, grads, s1, s2 []float32)
	// Norm waits for the device and returns the norm of the last Clip's g before limiting. It is
	// not finite if g was left unchanged, even because of the loss.
	Norm() float64
	// Close frees the clipper.
	Close()
}

// Device does the arithmetic. It may do the work of a call after the call has returned, in the
// order of the calls; Download, SumSquares, Output.Sum and Clipper.Norm wait for their results. A
// call does not read the caller's host memory after it has returned.
type Device interface {
	// Name describes the device and how it computes, for people: "cpu (AVX-512; 2 threads)".
	Name() string

	// Alloc returns n zeros, aligned to 64 bytes.
	Alloc(n int) []float32
	// Free frees memory from Alloc.
	Free(x []float32)
	// Upload copies host memory to the device; Download copies back. Lengths are equal.
	Upload(dst, src []float32)
	Download(dst, src []float32)
	// Zero fills with zeros.
	Zero(x []float32)

	// NewRecurrent makes a layer's workspace. With inference it has no memory for Backward.
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
	// mask does not depend on its worker. The backward pass is the same call on the gradient.
	Dropout(y, x []float32, steps int, p float32, keys []uint64)

	// CopyRows sets width columns of dst's row i to those of src's row ids[i], or with add adds
	// them, for i in [0, n). Nil ids are the rows in order; a negative id is a row of zeros.
	// dst and src do not overlap. Joining the directions of a bidirectional layer, reversing rows
	// within their lengths and taking the last steps are such copies.
	CopyRows(dst, src Columns, n, width int, ids []int32, add bool)
	// Pool reduces the first lengths[b] steps of each row b of x: [T, B, H] to y: [B, H]; T: steps,
	// B: len(lengths). A length is in [0, T]; a row of length 0 gives zeros.
	Pool(p Pooling, y, x []float32, steps int, lengths []int32)
	// PoolBackward overwrites dx: [T, B, H] with the gradient of x, given y's; it is zero from a
	// row's length on. MaxPool gives dy to the first step with the largest value. MeanPool does not
	// read x and y, which may be nil. Pool and PoolBackward give the same bits on every device.
	PoolBackward(p Pooling, dx, dy, x, y []float32, steps int, lengths []int32)

	// Tanh sets x to tanh(x). TanhBackward multiplies dy by the derivative, 1 - y²; y = tanh(x).
	Tanh(x []float32)
	TanhBackward(dy, y []float32)
	// Attend computes Weights: for each lane and query q the softmax, over the lane's source steps
	// s, of the inner product of q and k[s], and zero from its length on; and Y, the sums of v[s]
	// with these weights. A lane of length 0 gives zeros. Products are of float32 in every
	// precision.
	Attend(a Attention)
	// AttendBackward overwrites dq, dk and dv with the gradients of Q, K and V, given Y's. a is
	// that of Attend. It overwrites a.Weights.
	AttendBackward(a Attention, dy, dq, dk, dv []float32)

	// LayerNorm computes Y and, unless nil, Stats. A row's result depends on that row alone.
	LayerNorm(n LayerNorm)
	// LayerNormBackward overwrites dx, dw and db with the gradients of X, Weight and Bias, given
	// Y's. dx may be dy's memory. It reads X, Weight and Stats as LayerNorm left them.
	LayerNormBackward(n LayerNorm, dy, dx, dw, db []float32)

	// SumSquares returns the sum of squares in float64, with the same bits on every device. The
	// order is fixed: in each block of SquaresBlock elements, SquaresLanes sums, each over every
	// SquaresLanes-th element, are added; then the blocks of each SquaresPart elements; then the
	// parts. The sum is finite if and only if every element is.
	SumSquares(x []float32) float64
	// Scale multiplies x by a; Add adds x to y.
	Scale(x []float32, a float32)
	Add(y, x []float32)
	// Update applies the optimizer and rounds each product before adding it; s1 and s2 are the
	// slots, nil if there are fewer. SumSquares, Scale, Add, Update and a Clipper give the same
	// bits on every device, so that ranks with different devices keep the same parameters.
	Update(u Update, params, grads, s1, s2 []float32)
	// NewClipper makes a Clipper.
	NewClipper() Clipper

	// Close frees everything.
	Close()
}

// Tensor is a tensor's place in a flat slice of parameters, gradients or optimizer state.
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

// DropoutKeep reports whether dropout with probability p keeps an element. key identifies the lane
// and layer; a SplitMix64 hash (Steele, Lea and Flood 2014) of key and index is compared with p.
func DropoutKeep(key uint64, index int, p float32) bool {
	z := key + (uint64(index)+1)*0x9E3779B97F4A7C15
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	z ^= z >> 31
	return float32(z>>40)/(1<<24) >= p
}

// DropoutShift returns a key whose element i is element index+i of key, so that a part of a segment
// drops the same elements as the whole.
func DropoutShift(key uint64, index int) uint64 {
	return key + uint64(index)*0x9E3779B97F4A7C15
}
