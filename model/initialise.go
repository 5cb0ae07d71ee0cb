package model

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
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
	// Identity makes each gate's recurrent matrix the identity and draws the other weights from
	// N(0, 0.001^2); biases and peepholes are zero. It is for RNNReLU (Le et al. 2015,
	// arXiv:1504.00941).
	Identity
	// Spectral makes each gate's recurrent matrix Gaussian, with a largest absolute eigenvalue of
	// RADIUS (Jaeger and Haas 2004; 1.2 for tanh units: Sutskever 2012). Everything else is as in
	// Xavier.
	Spectral
)

// identitySTD is the standard deviation of Identity's other weights.
const identitySTD = 0.001

// initNames returns the names of the kinds, in order.
func initNames() []string {
	return []string{Uniform: "uniform", Normal: "normal", Xavier: "xavier",
		Orthogonal: "orthogonal", Identity: "identity", Spectral: "spectral"}
}

// Init configures the initial weights. The zero value is Uniform.
type Init struct {
	Kind  InitKind
	Value float64 // STD of Normal, RADIUS of Spectral
}

// valued reports whether the kind has a value.
func (in Init) valued() bool { return in.Kind == Normal || in.Kind == Spectral }

// ParseInit parses the value of --init: uniform, xavier, orthogonal, normal:STD, identity or
// spectral:RADIUS.
func ParseInit(s string) (Init, error) {
	name, text, valued := strings.Cut(s, ":")
	in := Init{Kind: InitKind(slices.Index(initNames(), name))}
	if in.Kind < 0 || valued != in.valued() {
		return Init{}, fmt.Errorf("--init %q: give uniform, xavier, orthogonal, identity, "+
			"normal:STD (as normal:0.01), or spectral:RADIUS (as spectral:1.2)", s)
	}
	if valued {
		var err error
		if in.Value, err = strconv.ParseFloat(text, 64); err != nil {
			return Init{}, fmt.Errorf("--init %s: %q is not a number", s, text)
		}
	}
	return in, in.validate()
}

// String returns the text that ParseInit parses.
func (in Init) String() string {
	if in.Kind < Uniform || in.Kind > Spectral {
		return fmt.Sprintf("init %d", int(in.Kind))
	}
	name := initNames()[in.Kind]
	if in.valued() {
		name += ":" + strconv.FormatFloat(in.Value, 'g', -1, 64)
	}
	return name
}

func (in Init) validate() error {
	if in.Kind < Uniform || in.Kind > Spectral {
		return fmt.Errorf("--init: %d is not a kind of initial weights", int(in.Kind))
	}
	if !(in.Value >= 0 && in.Value <= math.MaxFloat32) {
		return fmt.Errorf("--init %s: the value must be finite and not negative", in)
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
		if v.role == roleRecurrent && c.Cell == compute.Clockwork {
			H := v.Shape[1]
			removeConnections(v.of(flat), compute.RecurrentShape{Cell: c.Cell, H: H,
				Periods: c.Periods})
		}
		if gate, ok := c.Cell.ForgetGate(); ok && v.role == roleInputBias && c.ForgetBias != 0 {
			for i := range v.hidden(c.Cell) {
				v.of(flat)[gate*v.hidden(c.Cell)+i] += float32(c.ForgetBias)
			}
		}
		if leak := cmp.Or(c.Leak, compute.DefaultLeak); v.role == rolePeephole && c.Cell.Leaks() {
			for i := range v.of(flat) {
				v.of(flat)[i] = float32(math.Log(leak / (1 - leak))) // whose σ is the leak
			}
		}
	}
	return flat
}

// removeConnections zeroes what a Clockwork layer does not read of W_hh: [H, H].
func removeConnections(hh []float32, s compute.RecurrentShape) {
	for i := range hh {
		if s.Removed(i%s.H, i/s.H) {
			hh[i] = 0
		}
	}
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
		fillUniform(x, rng, 1/math.Sqrt(float64(v.fanIn(c, views))))
	case kind == Normal && (matrix || v.role == rolePeephole):
		fillNormal(x, rng, c.Init.Value)
	case !matrix: // zero
	case kind >= Orthogonal && v.role == roleRecurrent:
		H := v.hidden(c.Cell)
		for block := range slices.Chunk(x, H*H) {
			switch kind {
			case Orthogonal:
				fillOrthogonal(block, rng, H)
			case Identity:
				for i := range H {
					block[i*H+i] = 1
				}
			case Spectral:
				fillSpectral(block, rng, H, c.Init.Value)
			}
		}
	case kind == Identity:
		fillNormal(x, rng, identitySTD)
	default:
		rows, columns := v.Shape[0], v.Shape[1]
		if v.role == roleInput || v.role == roleRecurrent {
			rows = v.hidden(c.Cell) // of one gate
		}
		fillUniform(x, rng, math.Sqrt(6/float64(rows+columns)))
	}
}

// fanIn is n in the bound 1/sqrt(n) that PyTorch uses for a tensor.
func (v View) fanIn(c Config, views []View) int {
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

// fillSpectral draws a Gaussian n by n matrix and scales it to a spectral radius. That is measured
// as the mean growth of a vector, |A^k x|^(1/k) (Gelfand's formula), to about 0.3%.
func fillSpectral(x []float32, rng *rand.Rand, n int, radius float64) {
	const settle, steps = 200, 1000
	a, v, next := mat.NewDense(n, n, nil), mat.NewVecDense(n, nil), mat.NewVecDense(n, nil)
	for i := range n {
		for j := range n {
			a.Set(i, j, rng.NormFloat64())
		}
		v.SetVec(i, rng.NormFloat64())
	}
	growth := 0.0 // its logarithm
	for step := range settle + steps {
		next.MulVec(a, v)
		size := mat.Norm(next, 2)
		v.ScaleVec(1/size, next)
		if step >= settle {
			growth += math.Log(size) / steps
		}
	}
	for i := range n {
		for j := range n {
			x[i*n+j] = float32(a.At(i, j) * radius / math.Exp(growth))
		}
	}
}
