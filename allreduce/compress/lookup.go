package compress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Lookup is a tensor of which a step changes only what belongs to the tokens that it reads: the
// rows of an embedding's gradient [V, E], or the columns of [W, V], the input weights of a layer
// whose input is one-hot. All else in a rank's gradient of it is zeros.
type Lookup struct {
	Tensor
	ByColumn bool // a token's numbers are a column, and not a row
	// Always has the tokens exchanged in each step. Otherwise that is left off, after a step in
	// which it saved nothing, for some steps, and altogether where it could not save much.
	Always bool
}

// Tokens is V, and Width how many numbers a token has.
func (l *Lookup) Tokens() int {
	if l.ByColumn {
		return l.Columns
	}
	return l.Rows
}

// Width is how many numbers belong to a token.
func (l *Lookup) Width() int { return l.size() / l.Tokens() }

func (l *Lookup) validate(length int) error {
	if l.Rows < 1 || l.Columns < 1 || l.Offset < 0 || l.Offset+l.size() > length {
		return fmt.Errorf("compress: a lookup of %d rows and %d columns at %d in %d floats",
			l.Rows, l.Columns, l.Offset, length)
	}
	return nil
}

// leastLookup is the smallest tensor, in floats, of which it is asked who has looked up what:
// less is sent sooner than asked for.
const leastLookup = 1 << 14

// restSteps is how many steps after one that saved nothing nobody asks.
const restSteps = 15

// looked is who has looked up what. The steps with which it counts are the same on all ranks, for
// all begin a ring anew.
type looked struct {
	Lookup
	own    []uint32  // a bit for each token that this rank has touched
	all    []float32 // each rank's bits, as floats: [N, len(own)]
	ends   []int     // of each rank's in all
	tokens []int     // that some rank has touched, in order
	rest   int       // steps in which nobody asks
	packed []float32 // the touched tokens' numbers: [len(tokens), Width]
	held   []float32 // what is withheld of them
}

// newLooked returns nil without a lookup.
func newLooked(l *Lookup) *looked {
	if l == nil {
		return nil
	}
	return &looked{Lookup: *l, own: make([]uint32, (l.Tokens()+31)/32)}
}

func (l *looked) join(world int) {
	clear(l.own)
	l.rest = 0
	n := len(l.own)
	l.all, l.ends = make([]float32, world*n), make([]int, world)
	for rank := range l.ends {
		l.ends[rank] = (rank + 1) * n
	}
}

func (l *looked) touch(ids []int32) {
	for _, id := range ids {
		l.own[id/32] |= 1 << (id % 32)
	}
}

// asks says whether the ranks tell each other what they have touched in this step. What that costs
// must be small beside the tensor.
func (l *looked) asks(world int) bool {
	if l.Always {
		return true
	}
	if l.rest > 0 {
		l.rest--
		return false
	}
	return l.size() >= leastLookup && len(l.all)*world <= l.size()/2
}

// agree has the ranks tell each other what they have touched, and says whether only that is to be
// summed, which is the same on all.
func (l *looked) agree(ctx context.Context, ring Ring, place Place) (bool, error) {
	defer clear(l.own)
	if !l.asks(place.World) {
		return false, nil
	}
	words, n := unsafeWords(l.all), len(l.own)
	copy(words[place.Rank*n:], l.own)
	if err := ring.AllGather(ctx, l.all, l.ends); err != nil {
		return false, err
	}
	l.tokens = l.tokens[:0]
	for i := range n {
		union := uint32(0)
		for rank := range place.World {
			union |= words[rank*n+i]
		}
		for ; union != 0; union &= union - 1 {
			l.tokens = append(l.tokens, 32*i+bits.TrailingZeros32(union))
		}
	}
	if len(l.tokens) > 0 && l.tokens[len(l.tokens)-1] >= l.Tokens() {
		return false, errors.New("compress: a rank has looked up a token beyond the last: its " +
			"message is damaged")
	}
	if len(l.tokens) < l.Tokens() {
		return true, nil
	}
	l.rest = restSteps
	return false, nil
}

// take packs what was touched of a gradient, which put puts back.
func (l *looked) take(g gradient) part {
	l.packed = l.pack(l.packed, g.sum)
	if g.next == nil {
		return part{buf: l.packed}
	}
	l.held = l.pack(l.held, g.next)
	return part{l.packed, l.held}
}

func (l *looked) put(g gradient) {
	l.unpack(g.sum, l.packed)
	if g.next != nil {
		l.unpack(g.next, l.held)
	}
}

// pack copies the touched tokens' numbers out of flat, and returns them in what was dst before.
func (l *looked) pack(dst, flat []float32) []float32 {
	n, x, width := len(l.tokens), l.of(flat), l.Width()
	if cap(dst) < n*width {
		dst = make([]float32, n*width)
	}
	dst = dst[:n*width]
	for i, token := range l.tokens {
		if !l.ByColumn {
			copy(dst[i*width:][:width], x[token*width:])
		}
	}
	for row := 0; l.ByColumn && row < width; row++ {
		to, from := dst[row*n:][:n], x[row*l.Columns:][:l.Columns]
		for i, token := range l.tokens {
			to[i] = from[token]
		}
	}
	return dst
}

// unpack copies what pack has returned back.
func (l *looked) unpack(flat, src []float32) {
	n, x, width := len(l.tokens), l.of(flat), l.Width()
	for i, token := range l.tokens {
		if !l.ByColumn {
			copy(x[token*width:][:width], src[i*width:])
		}
	}
	for row := 0; l.ByColumn && row < width; row++ {
		from, to := src[row*n:][:n], x[row*l.Columns:][:l.Columns]
		for i, token := range l.tokens {
			to[token] = from[i]
		}
	}
}

// unsafeWords is the memory of floats as words, for bits that are no numbers.
func unsafeWords(x []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// magnitude orders floats by their magnitude, and what is no number above all.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }
