package corpus

import "encoding/binary"

const (
	recentBits = 15
	shortBytes = 7 // of a word that has a shortKey
)

// recentWords has a number for each of the words last met, short ones, in a table that stays in the
// processor's cache: most words of a text are among few. A word takes the place of another that has
// its hash.
type recentWords[N int32 | int64] []struct {
	key   uint64 // 0: empty
	value N
}

func newRecentWords[N int32 | int64]() recentWords[N] {
	return make(recentWords[N], 1<<recentBits)
}

// place is where a key is, if it is there.
func (recentWords[N]) place(key uint64) uint64 {
	return key * 0x9E3779B97F4A7C15 >> (64 - recentBits)
}

// shortKey is a number for a short word, and for no other: its bytes, with its length at the top. It
// is 0 for an empty or a longer word.
func shortKey(word []byte) uint64 {
	n := len(word)
	if n > shortBytes {
		return 0
	}
	var key uint64
	if cap(word) >= 8 { // what follows in memory is cut off
		key = binary.LittleEndian.Uint64(word[:8]) & (1<<(8*n) - 1)
	} else {
		for i, c := range word {
			key |= uint64(c) << (8 * i)
		}
	}
	return key | uint64(n)<<56
}

// shortWord writes the word of a key, which is not 0, to to.
func shortWord(key uint64, to *[8]byte) []byte {
	binary.LittleEndian.PutUint64(to[:], key)
	return to[:key>>56]
}
