package translate

import "math"

// maxOrder is the length of the longest n-grams that BLEU counts.
const maxOrder = 4

// The counts of BLEU (Papineni et al. 2002): the n-grams of the translations that the references
// have too, each at most as often as there, and all of the translations, for n from 1; then the
// tokens of the translations and of the references.
const (
	matches      = 0
	candidates   = maxOrder
	translated   = 2 * maxOrder
	referred     = translated + 1
	bleuCounters = referred + 1
)

// countBLEU adds a translation and its reference to the counts.
func countBLEU(counts []int64, translation, reference []int32) {
	counts[translated] += int64(len(translation))
	counts[referred] += int64(len(reference))
	for n := 1; n <= maxOrder; n++ {
		want := grams(reference, n)
		for gram, times := range grams(translation, n) {
			counts[matches+n-1] += int64(min(times, want[gram]))
			counts[candidates+n-1] += int64(times)
		}
	}
}

// grams counts the n-grams of a row of at most maxOrder tokens each.
func grams(tokens []int32, n int) map[[maxOrder]int32]int {
	found := map[[maxOrder]int32]int{}
	for i := 0; i+n <= len(tokens); i++ {
		gram := [maxOrder]int32{-1, -1, -1, -1}
		copy(gram[:], tokens[i:i+n])
		found[gram]++
	}
	return found
}

// BLEU is the corpus's BLEU of the counts, in percent, as sacreBLEU computes it (Post 2018) with
// its smoothing "exp": an order without a match counts as half of one, a quarter at the next such
// order, and so on. It is 0 without a match of any order, and if an order is longer than all
// translations.
func BLEU(counts []int64) float64 {
	if counts[matches] == 0 { // no token, so no n-gram either
		return 0
	}
	sum, smooth := 0.0, 1.0
	for n := range maxOrder {
		all := float64(counts[candidates+n])
		if all == 0 {
			return 0
		}
		right := float64(counts[matches+n])
		if right == 0 {
			smooth *= 2
			right = 1 / smooth
		}
		sum += math.Log(right / all)
	}
	brevity := 1.0
	if counts[translated] < counts[referred] {
		brevity = math.Exp(1 - float64(counts[referred])/float64(counts[translated]))
	}
	return 100 * brevity * math.Exp(sum/maxOrder)
}

// BookBLEU is the score of one sentence in Dive into Deep Learning, "Sequence-to-Sequence Learning
// for Machine Translation": exp(min(0, 1 - len(reference)/len(translation))) times the product, for
// n from 1 to k, of the share of matched n-grams to the power of 2^-n.
func BookBLEU(translation, reference []int32, k int) float64 {
	if len(translation) == 0 {
		return 0
	}
	score := math.Exp(min(0, 1-float64(len(reference))/float64(len(translation))))
	for n := 1; n <= min(k, maxOrder, len(translation)); n++ {
		want, matched := grams(reference, n), 0
		for gram, times := range grams(translation, n) {
			matched += min(times, want[gram])
		}
		score *= math.Pow(float64(matched)/float64(len(translation)-n+1), math.Pow(0.5, float64(n)))
	}
	return score
}
