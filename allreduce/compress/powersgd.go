package compress

import (
	"context"
	"math/rand/v2"
	"time"
)

// powerSGD sums matrices as two thin factors (Vogels et al., Algorithms 1 and 2). M: [m, n] is the
// rank's gradient plus its kept numbers, Q: [n, r] the factor of the step before.
//
//	P = orthogonalise(sum of M Q)         the same on all ranks
//	Q = sum of M^T P                      the same on all ranks
//	the sum of M is about P Q^T, and a rank keeps M - P (M^T P)^T of its own M
//
// So a rank keeps only the part of its own M outside of the span of P, which is no larger than M,
// and the ranks' parts add up to the error of the sum. Vectors, and matrices too small to gain, are
// sent whole. P and Q are stored transposed, [r, m] and [r, n].
type powerSGD struct {
	seed     uint64
	matrices []matrix
	plain    []Tensor
	ring     Ring
	place    Place

	first  []float32 // the transposed P of each matrix, then plain
	second []float32 // the transposed Q of each matrix
	local  []float32 // this rank's part of second
	warm   []float32 // second after the last committed step
	fresh  []float32 // warm after the last renew
}

// matrix is a matrix that is sent as two factors.
type matrix struct {
	Tensor
	rank int // r
	p, q int // offsets of its factors in first and second
}

func newPowerSGD(c Config) *powerSGD {
	s := &powerSGD{seed: c.Seed}
	p, q := 0, 0
	for _, t := range c.Tensors {
		if c.PowerSGD*(t.Rows+t.Columns) >= t.size() {
			s.plain = append(s.plain, t)
			continue
		}
		s.matrices = append(s.matrices, matrix{t, c.PowerSGD, p, q})
		p, q = p+c.PowerSGD*t.Rows, q+c.PowerSGD*t.Columns
	}
	for _, t := range s.plain {
		p += t.size()
	}
	s.first = make([]float32, p)
	s.second, s.local = make([]float32, q), make([]float32, q)
	s.warm, s.fresh = make([]float32, q), make([]float32, q)
	return s
}

func (s *powerSGD) join(ring Ring, place Place) { s.ring, s.place = ring, place }

// renew draws new factors from the seed and the step, so that all ranks have the same ones,
// newcomers too.
func (s *powerSGD) renew(step int64) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(step)))
	for i := range s.fresh {
		s.fresh[i] = float32(rng.NormFloat64())
	}
	copy(s.warm, s.fresh)
}

// factors returns the matrix's transposed P in first and transposed Q in second.
func (m matrix) factors(first, second []float32) (p, q []float32) {
	return first[m.p:][:m.rank*m.Rows], second[m.q:][:m.rank*m.Columns]
}

// ready does nothing: the factors need the whole matrix.
func (s *powerSGD) ready(context.Context, gradient, int, int, *time.Time) error { return nil }

func (s *powerSGD) sum(ctx context.Context, g gradient, _ int) error {
	plain := len(s.first)
	for _, t := range s.plain {
		plain -= t.size()
	}
	at := plain
	for _, t := range s.plain {
		at += copy(s.first[at:], t.of(g.sum))
	}
	for _, m := range s.matrices {
		addScaled(m.of(g.sum), m.of(g.kept), g.scale)
		p, q := m.factors(s.first, s.warm)
		m.project(p, m.of(g.sum), q)
	}
	if err := s.ring.AllReduce(ctx, s.first); err != nil {
		return err
	}
	clear(s.local)
	for _, m := range s.matrices {
		p, q := m.factors(s.first, s.local)
		orthogonalise(p, m.rank)
		m.projectBack(q, m.of(g.sum), p)
	}
	copy(s.second, s.local)
	started, err := s.ring.Start(ctx, s.second, nil, nil)
	if err != nil {
		return err
	}
	for _, m := range s.matrices { // during the all-reduce
		p, q := m.factors(s.first, s.local)
		copy(m.of(g.next), m.of(g.sum))
		m.addProduct(m.of(g.next), p, q, -1)
	}
	if err := started.Wait(ctx); err != nil {
		return err
	}
	for _, m := range s.matrices {
		p, q := m.factors(s.first, s.second)
		clear(m.of(g.sum))
		m.addProduct(m.of(g.sum), p, q, 1)
	}
	at = plain
	for _, t := range s.plain {
		at += copy(t.of(g.sum), s.first[at:])
	}
	return nil
}

// settle keeps the factors for the next step. Columns of zeros are replaced by fresh ones.
func (s *powerSGD) settle(skipped bool) {
	if skipped {
		return
	}
	copy(s.warm, s.second)
	for _, m := range s.matrices {
		_, q := m.factors(s.first, s.warm)
		_, fresh := m.factors(s.first, s.fresh)
		for c := range m.rank {
			if column := q[c*m.Columns:][:m.Columns]; allZeros(column) {
				copy(column, fresh[c*m.Columns:])
			}
		}
	}
}

func allZeros(x []float32) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}

// project sets p = (x q^T)^T. x: [m, n], q: [r, n], p: [r, m].
func (m matrix) project(p, x, q []float32) {
	for i := range m.Rows {
		row := x[i*m.Columns:][:m.Columns]
		for c := range m.rank {
			p[c*m.Rows+i] = dot(row, q[c*m.Columns:][:m.Columns])
		}
	}
}

// projectBack adds p x to q.
func (m matrix) projectBack(q, x, p []float32) {
	for i := range m.Rows {
		row := x[i*m.Columns:][:m.Columns]
		for c := range m.rank {
			addScaled(q[c*m.Columns:][:m.Columns], row, p[c*m.Rows+i])
		}
	}
}

// addProduct adds sign times p^T q to x.
func (m matrix) addProduct(x, p, q []float32, sign float32) {
	for i := range m.Rows {
		row := x[i*m.Columns:][:m.Columns]
		for c := range m.rank {
			addScaled(row, q[c*m.Columns:][:m.Columns], sign*p[c*m.Rows+i])
		}
	}
}
