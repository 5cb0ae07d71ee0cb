package compress

// selector finds the largest numbers of slices, and reuses its memory.
type selector struct {
	counts     [1 << highBits]int
	candidates []uint32
}

// A magnitude has 31 bits. Histograms find the k-th largest: first of the highest 11 bits (the
// exponent and three of the fraction), then of the next 10, then of the last 10. Only the first
// histogram reads all numbers.
const (
	highBits = 11
	lowBits  = 10
)

// largest fills chosen with the ascending indices of the len(chosen) numbers of x with the largest
// magnitude. Among equal magnitudes the first come first, and NaN counts as the largest. x is at
// least as long as chosen.
func (s *selector) largest(chosen []uint32, x []float32) {
	if len(chosen) == 0 {
		return
	}
	least, equal := s.threshold(x, len(chosen))
	n := 0
	for i, v := range x {
		m := magnitude(v)
		if m < least {
			continue
		}
		if m == least {
			if equal == 0 {
				continue
			}
			equal--
		}
		chosen[n] = uint32(i)
		if n++; n == len(chosen) {
			return
		}
	}
}

// threshold returns the k-th largest magnitude, and the count of numbers with that magnitude among
// the k.
func (s *selector) threshold(x []float32, k int) (least uint32, equal int) {
	clear(s.counts[:])
	for _, v := range x {
		s.counts[magnitude(v)>>(2*lowBits)]++
	}
	high, rest := s.descend(1<<highBits-1, k)
	s.candidates = s.candidates[:0]
	for _, v := range x {
		if m := magnitude(v); m>>(2*lowBits) == high {
			s.candidates = append(s.candidates, m)
		}
	}
	const mask = 1<<lowBits - 1
	clear(s.counts[:])
	for _, m := range s.candidates {
		s.counts[m>>lowBits&mask]++
	}
	middle, rest := s.descend(mask, rest)
	clear(s.counts[:])
	prefix := high<<lowBits | middle
	for _, m := range s.candidates {
		if m>>lowBits == prefix {
			s.counts[m&mask]++
		}
	}
	low, rest := s.descend(mask, rest)
	return prefix<<lowBits | low, rest
}

// descend finds the bucket of the k-th largest number at or below from, and the number's rank
// within it.
func (s *selector) descend(from uint32, k int) (bucket uint32, rest int) {
	bucket = from
	for s.counts[bucket] < k {
		k -= s.counts[bucket]
		bucket--
	}
	return bucket, k
}
