package compute

// Arguments of a Device's operations on sequences and rows.

// Columns are some columns, from At on, of a matrix with rows of Stride floats.
type Columns struct {
	X          []float32 // [rows, Stride]
	Stride, At int
}

// Rows is the number of rows.
func (c Columns) Rows() int { return len(c.X) / c.Stride }

// Pooling is how a sequence of states becomes one.
type Pooling int

// The poolings.
const (
	// MeanPool adds the states in the order of the steps and multiplies the sum by 1/length.
	MeanPool Pooling = iota
	// MaxPool takes the largest value of each element over the steps; NaN is the largest.
	MaxPool
)

// Attention is attention of T queries over S source steps in each of B lanes (Luong et al. 2015,
// arXiv:1508.04025). Keys and queries are H wide, values W.
type Attention struct {
	T, S, B, H, W int
	Q             []float32 // [T, B, H]
	K             []float32 // [S, B, H]
	V             []float32 // [S, B, W]
	Lengths       []int32   // [B]: source steps of each lane, in [0, S]; host memory
	Weights       []float32 // [B, T, S]
	Y             []float32 // [T, B, W]
}

// LayerNorm is layer normalisation of N rows of W numbers (Ba et al. 2016, arXiv:1607.06450), with
// torch.nn.LayerNorm's epsilon:
//
//	y = (x - mean) * factor * weight + bias,  factor = 1/sqrt(variance + LayerNormEpsilon)
type LayerNorm struct {
	X            []float32 // [N, W]
	Weight, Bias []float32 // [W]
	Stats        []float32 // [N, 2]: each row's mean and factor; nil: not kept for backward
	Y            []float32 // [N, W]; it may be X's memory
}

// LayerNormEpsilon is added to the variance of a row.
const LayerNormEpsilon = 1e-5
