package model

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/mat"

	"rondo/compute"
)

// InitKind is a family of initial weight distributions.
type InitKind int

const (
	// Uniform is PyTorch's default: U(±1/sqrt(H)) for all tensors of recurrent layers,
	// U(±1/sqrt(n)) for linear layers with n inputs, N(0, 1) for the embedding. A tied embedding
	// takes the output layer's U(±1/sqrt(E)), since logits would otherwise start sqrt(E) times too
	// large.
	Uniform InitKind = iota
	// Normal is N(0, STD^2) for every weight, and zero for biases.
	Normal
	// Xavier is U(±sqrt(6 / (inputs + outputs))) for every weight, with each gate of a recurrent
	// layer a matrix of its own, and biases and peepholes of zero. Glorot and Bengio (2010).
	Xavier
	// Orthogonal makes each gate's recurrent matrix orthogonal: Q of the QR decomposition of a
	// Gaussian matrix, uniform over the orthogonal group (Saxe et al., arXiv:1312.6120; Mezzadri,
	// arXiv:math-ph/0609050). Everything else is as in Xavier.
	Orthogonal
)

// Init configures the initial weights. The zero value is Uniform.
type Init struct {
	Kind InitKind
	STD  float64 // of Normal
}

// ParseInit parses the value of --init: uniform, xavier, orthogonal, or normal:STD.
func ParseInit(s string) (Init, error) {
	switch s {
	case "uniform":
		return Init{Kind: Uniform}, nil
	case "xavier":
		return Init{Kind: Xavier}, nil
	case "orthogonal":
		return Init{Kind: Orthogonal}, nil
	}
	if text, ok := strings.CutPrefix(s, "normal:"); ok {
		std, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return Init{}, fmt.Errorf("--init %s: %q is not a number", s, text)
		}
		in := Init{Kind: Normal, STD: std}
		return in, in.validate()
	}
	return Init{}, fmt.Errorf(
		"--init %q: give uniform, xavier, orthogonal, or normal:STD (as normal:0.01)", s)
}

// String returns the text that ParseInit parses.
func (in Init) String() string {
	switch in.Kind {
	case Uniform:
		return "uniform"
	case Normal:
		return "normal:" + strconv.FormatFloat(in.STD, 'g', -1, 64)
	case Xavier:
		return "xavier"
	case Orthogonal:
		return "orthogonal"
	}
	return fmt.Sprintf("init %d", int(in.Kind))
}

func (in Init) validate() error {
	if in.Kind < Uniform || in.Kind > Orthogonal {
		return fmt.Errorf("--init: %d is not a kind of initial weights", int(in.Kind))
	}
	if in.Kind == Normal && !(in.STD >= 0 && in.STD <= math.MaxFloat32) {
		return fmt.Errorf("--init %s: the standard deviation must be finite and not negative", in)
	}
	return nil
}

// initial returns the initial parameters, laid out as views. Every tensor has its own random
// stream, seeded by its name, so its values do not depend on other tensors.
func initial(c Config, views []View) []float32 {
	flat := make([]float32, Span(views))
	for _, v := range views {
		name := fnv.New64a()
		name.Write([]byte(v.Name))
		rng := rand.New(rand.NewPCG(c.Seed, name.Sum64()))
		c.fill(v, v.of(flat), rng, views)
		if gate, ok := c.Cell.ForgetGate(); ok && v.role == roleInputBias && c.ForgetBias != 0 {
			for i := range v.hidden(c.Cell) {
				v.of(flat)[gate*v.hidden(c.Cell)+i] += float32(c.ForgetBias)
			}
		}
	}
	return flat
}

// fill sets one tensor's initial values.
func (c Config) fill(v View, x []float32, rng *rand.Rand, views []View) {
	matrix := len(v.Shape) == 2
	switch kind := c.Init.Kind; {
	case v.role == roleNormWeight:
		for i := range x {
			x[i] = 1
		}
	case v.role == roleNormBias: // zero
	case kind == Uniform && v.role == roleEmbedding && !c.TieWeights:
		fillNormal(x, rng, 1)
	case kind == Uniform:
		fillUniform(x, rng, 1/math.Sqrt(float64(c.fanIn(v, views))))
	case kind == Normal && (matrix || v.role == rolePeephole):
		fillNormal(x, rng, c.Init.STD)
	case !matrix: // zero
	case kind == Orthogonal && v.role == roleRecurrent:
		H := v.hidden(c.Cell)
		for block := 0; block < len(x); block += H * H {
			fillOrthogonal(x[block:block+H*H], rng, H)
		}
	default:
		rows, columns := v.Shape[0], v.Shape[1]
		if v.role == roleInput || v.role == roleRecurrent {
			rows = v.hidden(c.Cell) // of one gate
		}
		fillUniform(x, rng, math.Sqrt(6/float64(rows+columns)))
	}
}

// fanIn is n in the bound 1/sqrt(n) that PyTorch uses for a tensor.
func (c Config) fanIn(v View, views []View) int {
	switch v.role {
	case roleProjection:
		return v.Shape[1]
	case roleOutput, roleOutputBias, roleEmbedding:
		return find(views, c.outputWeights()).Shape[1]
	case roleDenseBias:
		return find(views, strings.Replace(v.Name, ".bias", ".weight", 1)).Shape[1]
	}
	return v.hidden(c.Cell)
}

// hidden is the width of the hidden state of the recurrent layer that has the tensor.
func (v View) hidden(cell compute.Cell) int {
	if v.role == rolePeephole {
		return v.Len / cell.Peepholes()
	}
	return v.Shape[0] / cell.Gates()
}

// fillUniform draws from U(-bound, bound).
func fillUniform(x []float32, rng *rand.Rand, bound float64) {
	for i := range x {
		x[i] = float32(bound * (2*rng.Float64() - 1))
	}
}

// fillNormal draws from N(0, std^2).
func fillNormal(x []float32, rng *rand.Rand, std float64) {
	for i := range x {
		x[i] = float32(std * rng.NormFloat64())
	}
}

// fillOrthogonal draws an orthogonal n by n matrix: Q of a Gaussian matrix's QR decomposition. Each
// column takes the sign of R's diagonal; without that Q would not be uniform over the group.
func fillOrthogonal(x []float32, rng *rand.Rand, n int) {
	gaussian := mat.NewDense(n, n, nil)
	for i := range n {
		for j := range n {
			gaussian.Set(i, j, rng.NormFloat64())
		}
	}
	var qr mat.QR
	var q, r mat.Dense
	qr.Factorize(gaussian)
	qr.QTo(&q)
	qr.RTo(&r)
	for i := range n {
		for j := range n {
			x[i*n+j] = float32(q.At(i, j) * math.Copysign(1, r.At(j, j)))
		}
	}
}
