package compress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Lookup is a tensor whose gradient is nonzero only for the tokens that a step reads: the rows of
// an embedding's gradient [V, E], or the columns of [W, V], the input weights of a layer with
// one-hot input.
type Lookup struct {
	Tensor
	ByColumn bool // a token's numbers are a column, otherwise a row
	// Always makes the ranks exchange their touched tokens in each step. Otherwise they pause for
	// some steps after an exchange that saved nothing, and never exchange if it cannot save much.
	Always bool
}

// Tokens returns V.
func (l *Lookup) Tokens() int {
	if l.ByColumn {
		return l.Columns
	}
	return l.Rows
}

// Width returns the number of floats per token.
func (l *Lookup) Width() int { return l.size() / l.Tokens() }

func (l *Lookup) validate(length int) error {
	if l.Rows < 1 || l.Columns < 1 || l.Offset < 0 || l.Offset+l.size() > length {
		return fmt.Errorf("compress: a lookup of %d rows and %d columns at %d in %d floats",
			l.Rows, l.Columns, l.Offset, length)
	}
	return nil
}

// leastLookup is the smallest tensor, in floats, for which the ranks exchange touched tokens.
// Sending a smaller one whole is faster.
const leastLookup = 1 << 14

// pauseSteps is the number of steps without an exchange after one that saved nothing.
const pauseSteps = 15

// touchedTokens finds the tokens that any rank has touched. Its pause is the same on all ranks.
type touchedTokens struct {
	Lookup
	own    []uint32  // one bit for each token that this rank has touched
	all    []float32 // all ranks' bits, stored as floats: [N, len(own)]
	ends   []int     // ends of the ranks' bits in all
	tokens []int     // tokens that some rank has touched, ascending
	pause  int       // steps left without an exchange
	packed []float32 // the touched tokens' numbers: [len(tokens), Width]
	held   []float32 // the residuals of packed
}

// newTouchedTokens returns nil if l is nil.
func newTouchedTokens(l *Lookup) *touchedTokens {
	if l == nil {
		return nil
	}
	return &touchedTokens{Lookup: *l, own: make([]uint32, (l.Tokens()+31)/32)}
}

// renew forgets the touched tokens.
func (l *touchedTokens) renew() { clear(l.own) }

func (l *touchedTokens) join(world int) {
	n := len(l.own)
	l.all, l.ends = make([]float32, world*n), make([]int, world)
	for rank := range l.ends {
		l.ends[rank] = (rank + 1) * n
	}
}

func (l *touchedTokens) touch(ids []int32) {
	for _, id := range ids {
		l.own[id/32] |= 1 << (id % 32)
	}
}

// exchanges reports whether the ranks exchange their touched tokens in this step. The exchange must
// be small compared to the tensor.
func (l *touchedTokens) exchanges(world int) bool {
	if l.Always {
		return true
	}
	if l.pause > 0 {
		l.pause--
		return false
	}
	return l.size() >= leastLookup && len(l.all)*world <= l.size()/2
}

// exchange shares the touched tokens among the ranks. It reports whether only those are to be
// summed; all ranks get the same answer.
func (l *touchedTokens) exchange(ctx context.Context, ring Ring, place Place) (bool, error) {
	defer clear(l.own)
	if !l.exchanges(place.World) {
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
	if !l.Always {
		l.pause = pauseSteps
	}
	return false, nil
}

// packTouched copies the touched tokens out of a gradient. unpackTouched copies them back.
func (l *touchedTokens) packTouched(g gradient) part {
	l.packed = l.pack(l.packed, g.sum)
	if g.next == nil {
		return part{buf: l.packed}
	}
	l.held = l.pack(l.held, g.next)
	return part{l.packed, l.held}
}

func (l *touchedTokens) unpackTouched(g gradient) {
	l.unpack(g.sum, l.packed)
	if g.next != nil {
		l.unpack(g.next, l.held)
	}
}

// pack copies the touched tokens' numbers out of flat into dst, which may grow, and returns it.
func (l *touchedTokens) pack(dst, flat []float32) []float32 {
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

func (l *touchedTokens) unpack(flat, src []float32) {
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

// unsafeWords returns the memory of floats as words, for bits that are not numbers.
func unsafeWords(x []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// magnitude returns a key that orders floats by magnitude, with NaN above all.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }
