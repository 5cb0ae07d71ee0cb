package ngram

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"rondo/corpus"
	"rondo/task/count"
)

// MaxOrder is the largest order.
const MaxOrder = 5

// MaxGrams bounds the distinct n-grams of a text.
const MaxGrams = 1 << 24

// readAhead is the tokens that are read at a time.
const readAhead = 1 << 16

// Index is the sorted list of a text's distinct n-grams: the places of their counts. All workers
// make the same one.
type Index struct {
	order int
	grams []int32 // [M, order]
}

// NewIndex lists the n-grams of a text. It fails if the text has none, or more than the bounds.
func NewIndex(ctx context.Context, tokens corpus.Tokens, order int) (*Index, error) {
	if order < 1 || order > MaxOrder {
		return nil, fmt.Errorf("--order %d: must be 1 to %d", order, MaxOrder)
	}
	if tokens.Len() < int64(order) {
		return nil, fmt.Errorf("the corpus has %d tokens to train on, and an n-gram has %d: "+
			"give a longer --corpus, or a lower --order", tokens.Len(), order)
	}
	type gram [MaxOrder]int32
	seen := map[gram]int32{}
	var last gram // in its last places
	buffer := make([]int32, readAhead)
	for at := int64(0); at < tokens.Len(); at += readAhead {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		window := buffer[:min(readAhead, tokens.Len()-at)]
		if err := tokens.ReadTokens(window, at); err != nil {
			return nil, fmt.Errorf("the corpus from token %d: %w", at, err)
		}
		for i, id := range window {
			copy(last[MaxOrder-order:], last[MaxOrder-order+1:])
			if last[MaxOrder-1] = id; at+int64(i) < int64(order-1) {
				continue
			}
			if seen[last]++; seen[last] == count.Limit {
				return nil, fmt.Errorf("an n-gram occurs %d times in the corpus, and counts are "+
					"below that: raise --order, or lower --max-tokens", count.Limit)
			}
		}
		if len(seen) > MaxGrams {
			return nil, fmt.Errorf("the corpus has more than %d n-grams: lower --order or "+
				"--max-tokens, or raise --min-frequency", MaxGrams)
		}
	}
	x := &Index{order: order, grams: make([]int32, 0, len(seen)*order)}
	sorted := make([]gram, 0, len(seen))
	for g := range seen {
		sorted = append(sorted, g)
	}
	slices.SortFunc(sorted, func(a, b gram) int { return slices.Compare(a[:], b[:]) })
	for _, g := range sorted {
		x.grams = append(x.grams, g[MaxOrder-order:]...)
	}
	return x, nil
}

// Len is M, the number of n-grams.
func (x *Index) Len() int { return len(x.grams) / x.order }

// find returns the place of an n-gram of the text.
func (x *Index) find(gram []int32) int {
	at := sort.Search(x.Len(), func(i int) bool {
		return slices.Compare(x.grams[i*x.order:(i+1)*x.order], gram) >= 0
	})
	if at == x.Len() || !slices.Equal(x.grams[at*x.order:(at+1)*x.order], gram) {
		panic(fmt.Sprintf("ngram: %v is not among the text's %d n-grams", gram, x.Len()))
	}
	return at
}
