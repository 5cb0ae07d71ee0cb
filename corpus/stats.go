package corpus

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
)

// Stats counts tokens, and sequences of two and three tokens.
type Stats struct {
	Tokens     int64  `json:"tokens"`
	Vocabulary int    `json:"vocabulary"` // including <unk>
	Unigrams   NGrams `json:"unigrams"`
	Bigrams    NGrams `json:"bigrams"`
	Trigrams   NGrams `json:"trigrams"`
}

// NGrams counts the sequences of n adjacent tokens. All counts are exact.
type NGrams struct {
	N        int     `json:"n"`
	Total    int64   `json:"total"`
	Distinct int64   `json:"distinct"`
	Top      []NGram `json:"top"` // most frequent first
	Zipf     Zipf    `json:"zipf"`
	// Ranks is the rank-frequency curve: for each count, the ranks of the n-grams with that count.
	Ranks []Rank `json:"-"`
}

// NGram is a sequence of tokens and its number of occurrences.
type NGram struct {
	Tokens []string `json:"tokens"`
	Count  int64    `json:"count"`
}

// Rank says that each n-gram of the ranks First to Last occurs Count times. Ranks start at 1.
type Rank struct{ First, Last, Count int64 }

// Zipf is the least-squares line through the points (log rank, log count) of all distinct n-grams:
// log count = Intercept - Alpha log rank (Zipf 1949; natural logarithms). R2 is the share of the
// variance of log count that the line explains. All are 0 if there are fewer than two n-grams.
type Zipf struct {
	Alpha     float64 `json:"alpha"`
	Intercept float64 `json:"intercept"`
	R2        float64 `json:"r2"`
}

// maxTop bounds the table of the most frequent n-grams.
const maxTop = 10000

// Measure counts n-grams and lists the top most frequent ones. N-grams may cross line ends. Memory
// is bounded: counts that do not fit are sorted in files in scratch (empty means the system's
// temporary folder). Measure removes these files before it returns.
func Measure(
	ctx context.Context, tokens Tokens, v *Vocabulary, top int, scratch string,
) (*Stats, error) {
	if top < 0 || top > maxTop {
		return nil, fmt.Errorf("the number of n-grams to list, %d, is not in [0, %d]", top, maxTop)
	}
	if scratch == "" {
		scratch = os.TempDir()
	}
	var counts [3]*keyCounter
	for i := range counts {
		counts[i] = newKeyCounter(scratch, counterBytes)
		defer counts[i].close()
	}
	if err := countNGrams(ctx, tokens, counts); err != nil {
		return nil, fmt.Errorf("count n-grams: %w", err)
	}
	stats := &Stats{Tokens: tokens.Len(), Vocabulary: v.Len()}
	for i, to := range []*NGrams{&stats.Unigrams, &stats.Bigrams, &stats.Trigrams} {
		made, err := rankNGrams(ctx, i+1, counts[i], v, top)
		if err != nil {
			return nil, fmt.Errorf("count n-grams: %w", err)
		}
		*to = made
	}
	return stats, nil
}

const (
	idBytes     = 4       // size of a token in an n-gram's key, big-endian
	statsTokens = 1 << 15 // tokens read at a time
)

// countNGrams adds every n-gram to counts[n-1].
func countNGrams(ctx context.Context, tokens Tokens, counts [3]*keyCounter) error {
	block := make([]int32, statsTokens)
	var key [len(counts) * idBytes]byte // the last three tokens
	for off := int64(0); off < tokens.Len(); off += int64(len(block)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		block = block[:min(int64(len(block)), tokens.Len()-off)]
		if err := tokens.ReadTokens(block, off); err != nil {
			return err
		}
		for i, id := range block {
			copy(key[:], key[idBytes:])
			binary.BigEndian.PutUint32(key[len(key)-idBytes:], uint32(id))
			for n := 1; n <= len(counts) && off+int64(i+1) >= int64(n); n++ {
				if err := counts[n-1].add(key[len(key)-n*idBytes:], 1); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// counted is the key of an n-gram with its count.
type counted struct {
	key   string
	count int64
}

// before orders n-grams for the table: by falling count, then by ids.
func before(a, b counted) int {
	return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.key, b.key))
}

// topHeap has the table's last entry on top.
type topHeap []counted

func (h topHeap) Len() int           { return len(h) }
func (h topHeap) Less(i, j int) bool { return before(h[i], h[j]) > 0 }
func (h topHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *topHeap) Push(x any)        { *h = append(*h, x.(counted)) }
func (h *topHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func rankNGrams(
	ctx context.Context, n int, counts *keyCounter, v *Vocabulary, top int,
) (NGrams, error) {
	out := NGrams{N: n, Top: []NGram{}}
	frequencies := map[int64]int64{} // count to the number of n-grams with that count
	var table topHeap
	err := counts.each(func(key []byte, count int64) error {
		out.Total += count
		if out.Distinct++; out.Distinct%statsTokens == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		frequencies[count]++
		if len(table) < top {
			heap.Push(&table, counted{string(key), count})
		} else if top > 0 && count > table[0].count { // keys come in order, so a tie ranks after it
			table[0] = counted{string(key), count}
			heap.Fix(&table, 0)
		}
		return nil
	})
	if err != nil {
		return NGrams{}, err
	}
	slices.SortFunc(table, before)
	for _, entry := range table {
		out.Top = append(out.Top, NGram{spell([]byte(entry.key), v), entry.count})
	}
	rank := int64(1)
	for _, count := range slices.Backward(slices.Sorted(maps.Keys(frequencies))) {
		out.Ranks = append(out.Ranks, Rank{rank, rank + frequencies[count] - 1, count})
		rank += frequencies[count]
	}
	out.Zipf = fitZipf(out.Ranks)
	return out, nil
}

// spell returns the tokens of an n-gram's key.
func spell(key []byte, v *Vocabulary) []string {
	var tokens []string
	for ; len(key) > 0; key = key[idBytes:] {
		tokens = append(tokens, v.Token(int32(binary.BigEndian.Uint32(key))))
	}
	return tokens
}

// fitZipf fits the line over all ranks in two passes: the means, then the deviations from them.
func fitZipf(curve []Rank) Zipf {
	if len(curve) == 0 || curve[len(curve)-1].Last < 2 {
		return Zipf{}
	}
	n := float64(curve[len(curve)-1].Last)
	var meanX, meanY float64
	for _, r := range curve {
		for rank := r.First; rank <= r.Last; rank++ {
			meanX += math.Log(float64(rank)) / n
		}
		meanY += math.Log(float64(r.Count)) * float64(r.Last-r.First+1) / n
	}
	var xx, xy, yy float64
	for _, r := range curve {
		y := math.Log(float64(r.Count)) - meanY
		for rank := r.First; rank <= r.Last; rank++ {
			x := math.Log(float64(rank)) - meanX
			xx += x * x
			xy += x * y
			yy += y * y
		}
	}
	fit := Zipf{Alpha: -xy / xx, Intercept: meanY - xy/xx*meanX}
	if yy > 0 { // if all counts are equal there is no variance to explain
		fit.R2 = xy * xy / (xx * yy)
	}
	return fit
}
