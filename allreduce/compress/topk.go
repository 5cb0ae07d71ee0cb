package compress

import (
	"context"
	"errors"
	"math"
	"time"
)

// topK sends the numbers of the largest magnitude of gradient plus kept numbers: a share of all, or
// of each tensor, but at least one. The ranks gather all sent numbers and add them in the order of
// ranks.
type topK struct {
	tensors  []Tensor // the largest numbers of each are sent
	counts   []int    // of the numbers sent of each tensor
	total    int      // their sum: K
	chooser  selector
	momentum Momentum
	ring     Ring
	place    Place
	// wire holds each rank's K indices, then its K numbers: [N, 2, K]
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
	if !c.PerTensor && size > 0 { // numbers between tensors are zero, never the largest
		t.tensors, t.total = []Tensor{{Rows: 1, Columns: c.Length}}, share(c.TopK, size)
		t.counts = []int{t.total}
	}
	return t
}

// share returns the number of elements in a share of size, at least 1.
func share(of float64, size int) int { return max(1, int(math.Round(of*float64(size)))) }

func (t *topK) join(ring Ring, place Place) {
	t.ring, t.place = ring, place
	t.wire, t.ends = make([]float32, place.World*2*t.total), make([]int, place.World)
	for rank := range t.ends {
		t.ends[rank] = (rank + 1) * 2 * t.total
	}
}

func (t *topK) settle(bool) {}

func (t *topK) renew(int64) {}

// sent returns the indices that a rank sends, and the numbers.
func (t *topK) sent(rank int) (indices []uint32, values []float32) {
	own := t.wire[rank*2*t.total:][:2*t.total]
	return unsafeWords(own[:t.total]), own[t.total:]
}

// ready does nothing: the largest numbers are known at the end only.
func (t *topK) ready(context.Context, gradient, int, int, *time.Time) error { return nil }

func (t *topK) sum(ctx context.Context, g gradient, _ int) error {
	sum, next := g.sum, g.next
	copy(next, sum)
	if t.momentum.On() {
		t.momentum.apply(next, g)
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
