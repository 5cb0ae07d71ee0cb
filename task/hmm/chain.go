package hmm

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
)

// chain is the probabilities of a model of K states and V tokens, in host memory.
type chain struct {
	states      int
	initial     blas64.Vector  // π [K]
	transitions blas64.General // A [K, K]: from a row's state to a column's
	emitting    [][]float64    // [V][K]: a token's probability in each state
}

func vector(x []float64) blas64.Vector { return blas64.Vector{N: len(x), Data: x, Inc: 1} }

func matrix(rows, columns int) blas64.General {
	return blas64.General{Rows: rows, Cols: columns, Stride: columns,
		Data: make([]float64, rows*columns)}
}

// newChain takes π, the rows of A, and each state's probabilities of the tokens.
func newChain(initial []float64, transitions, emissions [][]float64) *chain {
	K := len(initial)
	c := &chain{states: K, initial: vector(initial), transitions: matrix(K, K)}
	copy(c.transitions.Data, slices.Concat(transitions...))
	for token := range emissions[0] {
		row := make([]float64, K)
		for state := range row {
			row[state] = emissions[state][token]
		}
		c.emitting = append(c.emitting, row)
	}
	return c
}

// filter reads a sequence, and knows the probabilities of the states behind the next token.
type filter struct {
	chain       *chain
	state, next blas64.Vector // P(state | tokens), of the last token and of the next
}

func (c *chain) newFilter() *filter {
	return &filter{c, vector(make([]float64, c.states)),
		vector(slices.Clone(c.initial.Data))}
}

// probability is that of the next token.
func (f *filter) probability(token int32) float64 {
	return blas64.Dot(f.next, vector(f.chain.emitting[token]))
}

// read reads the next token and returns its probability, given the tokens before it. Dividing by it
// keeps the numbers of long sequences in range (Rabiner 1989, section V.A).
func (f *filter) read(token int32) (p float64) {
	emitting := f.chain.emitting[token]
	for i, x := range f.next.Data {
		f.state.Data[i] = x * emitting[i]
		p += f.state.Data[i]
	}
	blas64.Scal(1/p, f.state)
	blas64.Gemv(blas.Trans, 1, f.chain.transitions, f.state, 0, f.next)
	return p
}

// expected are the expected counts of a sequence.
type expected struct {
	starts      []float64      // [K]
	transitions blas64.General // [K, K]
	emissions   []float64      // [K, V]
}

// expect computes the expected counts of a sequence by the scaled forward-backward algorithm, with
//
//	α[t][i] = P(state i at t | x[0..t])             c[t] = P(x[t] | x[0..t-1])
//	u[t][j] = b[j](x[t]) β[t][j] / c[t]             β[t-1] = A u[t], β[T-1] = 1
//	P(i at t | x) = α[t][i] β[t][i]
//	P(i at t-1, j at t | x) = α[t-1][i] A[i][j] u[t][j]
func (c *chain) expect(tokens []int32) expected {
	K, V := c.states, len(c.emitting)
	e := expected{make([]float64, K), matrix(K, K), make([]float64, K*V)}
	forward, scale, f := make([]float64, len(tokens)*K), make([]float64, len(tokens)), c.newFilter()
	for t, token := range tokens {
		scale[t] = f.read(token)
		copy(forward[t*K:], f.state.Data)
	}
	backward, u := vector(make([]float64, K)), vector(make([]float64, K))
	for i := range backward.Data {
		backward.Data[i] = 1
	}
	for t := len(tokens) - 1; t >= 0; t-- {
		token := tokens[t]
		alpha, emitting := forward[t*K:][:K], c.emitting[token]
		for i, b := range backward.Data {
			e.emissions[i*V+int(token)] += alpha[i] * b
			u.Data[i] = emitting[i] * b / scale[t]
		}
		if t == 0 {
			for i, b := range backward.Data {
				e.starts[i] = alpha[i] * b
			}
			break
		}
		blas64.Ger(1, vector(forward[(t-1)*K:][:K]), u, e.transitions)
		blas64.Gemv(blas.NoTrans, 1, c.transitions, u, 0, backward)
	}
	for i, a := range c.transitions.Data {
		e.transitions.Data[i] *= a
	}
	return e
}

// likeliest is the path of states with the largest probability, and its logarithm. Of paths that
// are equally likely it takes a state with a lower number.
func (c *chain) likeliest(tokens []int32) (path []int32, logProbability float64) {
	K := c.states
	logs := make([]float64, K*K)
	for i, a := range c.transitions.Data {
		logs[i] = math.Log(a)
	}
	from, best, next := make([]int32, len(tokens)*K), make([]float64, K), make([]float64, K)
	for t, token := range tokens {
		for j := range next {
			if next[j] = math.Log(c.initial.Data[j]); t > 0 {
				next[j] = math.Inf(-1)
				for i, p := range best {
					if p += logs[i*K+j]; p > next[j] {
						next[j], from[t*K+j] = p, int32(i)
					}
				}
			}
			next[j] += math.Log(c.emitting[token][j])
		}
		best, next = next, best
	}
	path = make([]int32, len(tokens))
	for t := len(tokens) - 1; t >= 0; t-- {
		if t == len(tokens)-1 {
			for j, p := range best {
				if p > best[path[t]] {
					path[t] = int32(j)
				}
			}
			logProbability = best[path[t]]
			continue
		}
		path[t] = from[(t+1)*K+int(path[t+1])]
	}
	return path, logProbability
}
