package compress

import (
	"context"
	"errors"
	"math"
)

// topK sends the largest numbers, by magnitude of what the rank has kept and its gradient together:
// so many of all, or of each tensor, at least one. What all ranks send is gathered, and added up in
// the order of ranks.
type topK struct {
	tensors  []Tensor // of each of which the largest are sent
	counts   []int    // that travel of each tensor
	total    int      // their sum: K
	chooser  selector
	momentum Momentum
	ring     Ring
	place    Place
	// wire is each rank's K indices, then its K numbers: [N, 2, K]
	wire []float32
	ends []int
}

func newTopK(c Config) *topK {
	t := &topK{tensors: c.Tensors, momentum: c.Momentum}
	size := 0
	for _, tensor := range c.Tensors {
		size += tensor.size()
		t.counts = append(t.counts, share(c.TopK, tensor.size()))
		t.total += t.counts[len(t.counts)-1]
	}
	if !c.PerTensor && size > 0 { // what is between tensors is zeros, and never the largest
		t.tensors, t.total = []Tensor{{Rows: 1, Columns: c.Length}}, share(c.TopK, size)
		t.counts = []int{t.total}
	}
	return t
}

// share is how many of so many numbers a share of them is.
func share(of float64, size int) int { return max(1, int(math.Round(of*float64(size)))) }

func (t *topK) join(ring Ring, place Place) {
	t.ring, t.place = ring, place
	t.wire, t.ends = make([]float32, place.World*2*t.total), make([]int, place.World)
	for rank := range t.ends {
		t.ends[rank] = (rank + 1) * 2 * t.total
	}
}

func (t *topK) settle(bool) {}

// sent returns the indices that a rank sends, as bits, and the numbers.
func (t *topK) sent(rank int) (indices []uint32, values []float32) {
	own := t.wire[rank*2*t.total:][:2*t.total]
	return unsafeWords(own[:t.total]), own[t.total:]
}

// ready does nothing: what is largest is known at the end.
func (t *topK) ready(context.Context, gradient, int, int) error { return nil }

func (t *topK) sum(ctx context.Context, g gradient, _ int) error {
	sum, next := g.sum, g.next
	copy(next, sum)
	if t.momentum.On() {
		t.momentum.apply(next, g.speed, g.nextSpeed)
	}
	addScaled(next, g.kept, g.scale)
	indices, values := t.sent(t.place.Rank)
	at := 0
	for i, tensor := range t.tensors {
		chosen := indices[at:][:t.counts[i]]
		t.chooser.largest(chosen, tensor.of(next))
		for j, index := range chosen {
			chosen[j] = index + uint32(tensor.Offset)
			values[at+j] = next[chosen[j]]
			next[chosen[j]] = 0
		}
		at += len(chosen)
	}
	if err := t.ring.AllGather(ctx, t.wire, t.ends); err != nil {
		return err
	}
	clear(sum)
	for rank := range t.place.World {
		indices, values := t.sent(rank)
		for i, index := range indices {
			if int(index) >= len(sum) {
				return errors.New("compress: a rank sends a number of no place: its message is " +
					"damaged")
			}
			sum[index] += values[i]
		}
	}
	return nil
}
