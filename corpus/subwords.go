package corpus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"rondo/corpus/subword"
)

const (
	// pieceBytes is how much of a document a subword tokenizer is given at a time.
	pieceBytes = 128 << 10
	// maxCounters bounds the processors that count words.
	maxCounters = 16
	// leastFrequency is how often the parts of a token occur together in the text that a tokenizer
	// is trained on, unless --min-frequency says more.
	leastFrequency = 2
)

// endTokens are what tokenizers of others call EndOfText, in the order in which they are tried.
func endTokens() []string {
	return []string{EndOfText, "</s>", "<|endoftext|>", "<|end_of_text|>", "[SEP]"}
}

// ReadSubwords reads the tokenizer.json at cfg.SubwordFile, a path or the URL of an object.
func ReadSubwords(ctx context.Context, cfg Config) (t *subword.Tokenizer, err error) {
	src, err := openSource(ctx, cfg.SubwordFile, cfg.OpenBucket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--tokenizer %s does not exist: give the path or blob URL of a "+
			"tokenizer.json", cfg.SubwordFile)
	}
	if err != nil {
		return nil, fmt.Errorf("--tokenizer: %w", err)
	}
	defer src.close()
	err = src.passes(ctx, "", []func(io.Reader) error{func(r io.Reader) error {
		text, err := io.ReadAll(io.LimitReader(r, subword.MaxBytes+1))
		if err != nil {
			return err
		}
		read := subword.Read
		if Extension(cfg.SubwordFile) == ".model" {
			read = subword.ReadSentencePiece
		}
		t, err = read(text)
		return err
	}})
	if err != nil {
		return nil, fmt.Errorf("--tokenizer %s: %w", cfg.SubwordFile, err)
	}
	return t, nil
}

// pieces is a sink that cuts documents into parts of at most pieceBytes. Where they are cut depends
// on the document alone: behind the last word that ends in the second half, or else behind the last
// character. piece must not keep the text.
type pieces struct {
	piece func(text []byte, first, last bool) error
	held  []byte
	begun bool // a part of the document has been passed on
}

func (p *pieces) text(block []byte) error {
	for len(block) > 0 {
		if len(p.held) == pieceBytes {
			if err := p.pass(lastWord(p.held), false); err != nil {
				return err
			}
		}
		n := min(len(block), pieceBytes-len(p.held))
		p.held, block = append(p.held, block[:n]...), block[n:]
	}
	return nil
}

func (p *pieces) end() error {
	err := p.pass(len(p.held), true)
	p.begun = false
	return err
}

func (p *pieces) pass(end int, last bool) error {
	if end == 0 {
		return nil
	}
	err := p.piece(p.held[:end], !p.begun, last)
	p.held, p.begun = append(p.held[:0], p.held[end:]...), true
	return err
}

// lastWord returns the end of the last word with a space behind it, in the second half of a text,
// or that of the last character.
func lastWord(text []byte) int {
	for i := len(text) - 1; i > len(text)/2; i-- {
		if text[i] == ' ' && text[i-1] > ' ' {
			return i
		}
	}
	return completeRunes(text)
}

// encodeSubwords returns a sink that calls put with the id of every subword.
func encodeSubwords(
	ctx context.Context, t *subword.Tokenizer, put func(id int32) error,
) sink {
	e := t.NewEncoder()
	return &pieces{piece: func(text []byte, first, last bool) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ids, err := e.Encode(text, first, last)
		if err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
		for _, id := range ids {
			if err := put(id); err != nil {
				return err
			}
		}
		return nil
	}}
}

// trainSubwords learns a tokenizer from a text.
func trainSubwords(
	ctx context.Context, read reading, cfg Config, scratch string,
) (*subword.Tokenizer, error) {
	words, err := countWords(ctx, read, cfg.Tokenizer, scratch)
	if err != nil {
		return nil, err
	}
	defer words.close()
	special := cfg.Reserved
	if cfg.Tokenizer.marksEnds() {
		special = slices.Concat([]string{EndOfText}, special)
	}
	var broken error
	made, err := subword.Train(ctx, mostFrequent(words, subword.MaxWords, &broken), cfg.Subwords,
		max(leastFrequency, cfg.MinFrequency), special)
	if err = cmp.Or(broken, err); err != nil {
		return nil, fmt.Errorf("--tokenizer bpe: %w", err)
	}
	return made, nil
}

// countWords counts the words of SplitWords, on all processors. The counts are sums of integers, so
// that they do not depend on which of them counts which part.
func countWords(
	ctx context.Context, read reading, t Tokenizer, scratch string,
) (*keyCounter, error) {
	group, ctx := errgroup.WithContext(ctx)
	parts := make(chan []byte)
	counters := make([]*keyCounter, min(runtime.GOMAXPROCS(0), maxCounters))
	for i := range counters {
		counters[i] = newKeyCounter(scratch, counterBytes/len(counters))
		group.Go(func() error {
			for part := range parts {
				if err := subword.SplitWords(part, counters[i].add); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(parts)
		to := &pieces{piece: func(text []byte, _, _ bool) error {
			select {
			case parts <- slices.Clone(text):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		return t.scanTexts(ctx, read, to, uncounted)
	})
	err := group.Wait()
	for _, other := range counters[1:] {
		if err == nil {
			err = other.each(counters[0].addCount)
		}
		other.close()
	}
	if err != nil {
		counters[0].close()
		return nil, err
	}
	return counters[0], nil
}

// mostFrequent yields up to limit words: the most frequent, and of equally frequent ones the first
// by their bytes. It sets broken if the counts cannot be read.
func mostFrequent(words *keyCounter, limit int, broken *error) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		frequencies := map[int64]int{} // count to the number of words with it
		err := words.each(func(_ []byte, n int64) error {
			frequencies[n]++
			return nil
		})
		least, room := int64(0), limit // of the words that occur least times, room are taken
		for _, n := range slices.Backward(slices.Sorted(maps.Keys(frequencies))) {
			if least = n; frequencies[n] >= room {
				break
			}
			room -= frequencies[n]
			least = n - 1
		}
		ended := errors.New("ended")
		if err == nil {
			err = words.each(func(word []byte, n int64) error {
				if n == least && room > 0 {
					room--
				} else if n <= least {
					return nil
				}
				if !yield(string(word), n) {
					return ended
				}
				return nil
			})
		}
		if err != nil && !errors.Is(err, ended) {
			*broken = err
		}
	}
}

// TrainSubwords learns a byte-level tokenizer of cfg.Subwords tokens from a text.
func TrainSubwords(ctx context.Context, cfg Config) (*subword.Tokenizer, error) {
	cfg.Tokenizer.Unit = Subword
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	src, err := openTexts(ctx, cfg.Source, cmp.Or(cfg.TextField, DefaultField), cfg.OpenBucket)
	if err != nil {
		return nil, err
	}
	defer src.close()
	store, err := openCache(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	var made *subword.Tokenizer
	err = src.passes(ctx, store.dir, []func(reading) error{func(read reading) (err error) {
		made, err = trainSubwords(ctx, read, cfg, store.dir)
		return err
	}})
	if err != nil {
		return nil, fmt.Errorf("corpus %s: %w", cfg.Source, err)
	}
	return made, nil
}

// endToken returns the token of a tokenizer that stands for EndOfText.
func endToken(t *subword.Tokenizer) (id int32, ok bool) {
	for _, token := range endTokens() {
		if id, ok := t.ID(token); ok {
			return id, true
		}
	}
	return 0, false
}

// needsEnd returns an error if texts need EndOfText and the tokenizer has no such token.
func (t Tokenizer) needsEnd(s *subword.Tokenizer) error {
	if _, ok := endToken(s); ok || !t.marksEnds() {
		return nil
	}
	return fmt.Errorf("--eos %s: the tokenizer has none of the tokens %s: leave --eos out", t.Ends,
		strings.Join(endTokens(), ", "))
}
