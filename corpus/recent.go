package corpus

import "encoding/binary"

const (
	recentBits = 15
	shortBytes = 15 // of a word that has a shortKey
)

// recentWords has a number for each of the words last met, short ones, in a table that stays in the
// processor's cache: most words of a text are among few. A word takes the place of another that has
// its hash.
type recentWords[N int32 | int64] []struct {
	key   shortKey // zero: empty
	value N
}

func newRecentWords[N int32 | int64]() recentWords[N] {
	return make(recentWords[N], 1<<recentBits)
}

// place is where a key is, if it is there.
func (recentWords[N]) place(key shortKey) uint64 {
	return (key[0] ^ key[1]*0xBF58476D1CE4E5B9) * 0x9E3779B97F4A7C15 >> (64 - recentBits)
}

// shortKey is the bytes of a short word, with its length at the end. It is zero for an empty or a
// longer word.
type shortKey [2]uint64

func shortKeyOf(word []byte) (key shortKey) {
	n := len(word)
	if n == 0 || n > shortBytes {
		return key
	}
	if cap(word) < 16 {
		var whole [16]byte
		copy(whole[:], word)
		word = whole[:n]
	}
	// What follows the word in memory is cut off.
	key[0] = binary.LittleEndian.Uint64(word[:8])
	if n < 8 {
		key[0] &= 1<<(8*n) - 1
	} else {
		key[1] = binary.LittleEndian.Uint64(word[8:16]) & (1<<(8*(n-8)) - 1)
	}
	key[1] |= uint64(n) << 56
	return key
}

// word writes the word of a key to to.
func (k shortKey) word(to *[16]byte) []byte {
	binary.LittleEndian.PutUint64(to[:8], k[0])
	binary.LittleEndian.PutUint64(to[8:], k[1])
	return to[:k[1]>>56]
}
