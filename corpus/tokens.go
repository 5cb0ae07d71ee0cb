package corpus

import "fmt"

// Tokens is a sequence of token ids that is read by range.
type Tokens interface {
	// Len returns the number of tokens.
	Len() int64
	// ReadTokens fills dst with the tokens from off on. It panics if the range is not within [0,
	// Len()), and returns an error if reading fails.
	ReadTokens(dst []int32, off int64) error
}

// IDs are tokens in memory.
type IDs []int32

// Len returns the number of tokens.
func (ids IDs) Len() int64 { return int64(len(ids)) }

// ReadTokens copies the tokens from off on to dst.
func (ids IDs) ReadTokens(dst []int32, off int64) error {
	checkRange(int64(len(dst)), off, ids.Len())
	copy(dst, ids[off:])
	return nil
}

// span is a range of tokens.
type span struct {
	of          Tokens
	first, size int64
}

// Slice returns the tokens [from, to) of t, without copying them.
func Slice(t Tokens, from, to int64) Tokens {
	if from < 0 || to < from || to > t.Len() {
		panic(fmt.Sprintf("corpus: tokens [%d, %d) of %d", from, to, t.Len()))
	}
	return span{of: t, first: from, size: to - from}
}

func (s span) Len() int64 { return s.size }

func (s span) ReadTokens(dst []int32, off int64) error {
	checkRange(int64(len(dst)), off, s.size)
	return s.of.ReadTokens(dst, s.first+off)
}

func checkRange(count, off, size int64) {
	if off < 0 || count > size-off {
		panic(fmt.Sprintf("corpus: tokens [%d, %d) of %d", off, off+count, size))
	}
}

// Split cuts a fraction of the tokens off their end for validation (--validation-fraction, in [0,
// 1)). The number of validation tokens is rounded down. The two parts share no token.
func Split(t Tokens, fraction float64) (train, validation Tokens, err error) {
	if !(fraction >= 0 && fraction < 1) {
		return nil, nil, fmt.Errorf("--validation-fraction %v is not in [0, 1)", fraction)
	}
	cut := t.Len() - int64(fraction*float64(t.Len()))
	return Slice(t, 0, cut), Slice(t, cut, t.Len()), nil
}
