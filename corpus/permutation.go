package corpus

import "math/bits"

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit words in
// which every input bit affects every output bit. It does not come from Go's library, so that a new
// release of Go cannot change the samples.
func mix(z uint64) uint64 {
	z += 0x9E3779B97F4A7C15
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

// Hash3 hashes three words. It is the same in every release.
func Hash3(a, b, c uint64) uint64 { return mix(mix(mix(a)^b) ^ c) }

// below maps a hash to [0, n) by multiplication (Lemire 2019). There is no rejection step; without
// it each value is biased by less than n/2^64.
func below(h, n uint64) uint64 {
	high, _ := bits.Mul64(h, n)
	return high
}

// feistelRounds is the number of rounds of the network. Four rounds make a pseudorandom permutation
// (Luby and Rackoff 1988); the others are a margin for small domains, whose halves have few bits.
const feistelRounds = 8

// Permutation is a pseudorandom permutation of [0, n) that is computed, not stored. It is a
// balanced Feistel network over the least even number of bits that holds n-1. The network is
// applied again until the value is below n (cycle walking; Black and Rogaway 2002). Its domain is
// smaller than 4n (but at least 4), so the average is at most four applications.
type Permutation struct {
	n, key uint64
	half   uint // bits of one half
}

// NewPermutation returns the permutation of [0, n) that key chooses. n is at least 1.
func NewPermutation(n, key uint64) Permutation {
	return Permutation{n: n, key: key, half: max(1, uint(bits.Len64(n-1)+1)/2)}
}

// At returns the image of i, for i in [0, n).
func (p Permutation) At(i uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	for {
		left, right := i>>p.half, i&mask
		for round := range uint64(feistelRounds) {
			left, right = right, left^(Hash3(p.key, round, right)&mask)
		}
		i = left<<p.half | right
		if i < p.n {
			return i
		}
	}
}
