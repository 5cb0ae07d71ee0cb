package reservoir

import (
	"math"
	"math/rand/v2"
)

// degree is D, the number of recurrent connections of a unit.
const degree = 10

// network is the reservoir in host memory.
type network struct {
	units, inputs int
	leak          float64
	columns       []int32   // [N, D]: the units that a unit reads
	weights       []float64 // [N, D]
	input         []float64 // [N, F+1]: of the inputs, and a bias
	sum           []float64 // [N], scratch
}

// stream is the random stream of reservoirs.
const stream = 0x7265736572766f69 // "reservoi"

// draw makes the reservoir of a config: D connections of each unit, to units drawn without
// replacement, with weights from U(-1, 1) that are then scaled to the spectral radius, and input
// weights from U(±InputScale).
func draw(c Config) *network {
	rng := rand.New(rand.NewPCG(c.Seed, stream))
	D := min(degree, c.Units)
	n := &network{units: c.Units, inputs: c.Inputs, leak: c.Leak, sum: make([]float64, c.Units)}
	for range c.Units {
		for _, column := range rng.Perm(c.Units)[:D] {
			n.columns = append(n.columns, int32(column))
			n.weights = append(n.weights, 2*rng.Float64()-1)
		}
		for range c.Inputs + 1 {
			n.input = append(n.input, c.InputScale*(2*rng.Float64()-1))
		}
	}
	factor := c.SpectralRadius / n.radius()
	for i := range n.weights {
		n.weights[i] *= factor
	}
	return n
}

// Steps of radius: those that are left out, and those that are measured.
const (
	settling  = 500
	measuring = 3000
)

// radius is the spectral radius of W by Gelfand's formula: the growth of W^k v per step, in the
// mean over many steps.
func (n *network) radius() float64 {
	v, next := make([]float64, n.units), make([]float64, n.units)
	for i := range v {
		v[i] = 1 / float64(i+1)
	}
	growth := 0.0
	for k := range settling + measuring {
		n.times(v, next)
		square := 0.0
		for _, x := range next {
			square += x * x
		}
		norm := math.Sqrt(square)
		for i := range next {
			next[i] /= norm
		}
		if v, next = next, v; k >= settling {
			growth += math.Log(norm) / measuring
		}
	}
	return math.Exp(growth)
}

// times computes y = W x.
func (n *network) times(x, y []float64) {
	D := len(n.columns) / n.units
	for i := range y {
		sum := 0.0
		for k := i * D; k < (i+1)*D; k++ {
			sum += n.weights[k] * x[n.columns[k]]
		}
		y[i] = sum
	}
}

// step advances a state x by a row of inputs: x' = (1-a) x + a tanh(W x + V [u, 1]).
func (n *network) step(x []float64, u []float32) {
	n.times(x, n.sum)
	for i, sum := range n.sum {
		in := n.input[i*(n.inputs+1):][:n.inputs+1]
		for f, value := range u {
			sum += in[f] * float64(value)
		}
		x[i] = (1-n.leak)*x[i] + n.leak*math.Tanh(sum+in[n.inputs])
	}
}
