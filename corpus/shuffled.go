package corpus

import (
	"errors"
	"fmt"
	"sort"
)

// shuffled is the tokens of documents in an order of its own.
type shuffled struct {
	file   *TokenFile
	starts []int64 // of each document in the file
	before []int64 // the tokens of the documents before each
}

// shuffle puts the documents of a token file in the order that a seed draws.
func shuffle(file *TokenFile, seed uint64) (*shuffled, error) {
	ends, err := file.documentEnds()
	switch {
	case err != nil:
		return nil, file.damaged(err)
	case len(ends) == 0:
		return nil, fmt.Errorf("it has more than %d documents: join some", maxDocuments)
	case len(ends) == 1:
		return nil, errors.New("it is one document: give several files, or the lines of a .jsonl")
	}
	order := NewPermutation(uint64(len(ends)), Hash3(seed, 0, purposeDocuments))
	s := &shuffled{file: file, starts: make([]int64, len(ends)), before: make([]int64, len(ends))}
	var count int64
	for i := range ends {
		at := order.At(uint64(i))
		if at > 0 {
			s.starts[i] = ends[at-1]
		}
		s.before[i] = count
		count += ends[at] - s.starts[i]
	}
	if count != file.count {
		return nil, file.damaged(fmt.Errorf("%w: its documents have %d of %d ids", errCorrupt,
			count, file.count))
	}
	return s, nil
}

// Len implements Tokens.
func (s *shuffled) Len() int64 { return s.file.count }

// ReadTokens implements Tokens. It does not allocate and may be called concurrently.
func (s *shuffled) ReadTokens(dst []int32, off int64) error {
	checkRange(int64(len(dst)), off, s.Len())
	i := sort.Search(len(s.before), func(i int) bool { return s.before[i] > off }) - 1
	for ; len(dst) > 0; i++ {
		next := s.Len()
		if i+1 < len(s.before) {
			next = s.before[i+1]
		}
		n := min(int64(len(dst)), next-off)
		if err := s.file.ReadTokens(dst[:n], s.starts[i]+off-s.before[i]); err != nil {
			return err
		}
		dst, off = dst[n:], off+n
	}
	return nil
}
