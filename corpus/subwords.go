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
	"slices"
	"strings"

	"rondo/corpus/subword"
)

// leastFrequency is how often the parts of a token occur together in the text that a tokenizer is
// trained on, unless --min-frequency says more.
const leastFrequency = 2

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

// trainSubwords learns a tokenizer from a text.
func trainSubwords(
	ctx context.Context, read reading, cfg Config, scratch string,
) (*subword.Tokenizer, error) {
	words, err := countKeys(ctx, read, cfg.Tokenizer, scratch,
		func(to *keyCounter, text []byte) error {
			return subword.SplitWords(text, func(word []byte) error { return to.add(word, 1) })
		})
	if err != nil {
		return nil, err
	}
	defer words.close()
	return learnSubwords(ctx, words, cfg.Subwords, cfg.MinFrequency, cfg.reserved())
}

// learnSubwords learns a tokenizer of this many tokens from counted words.
func learnSubwords(
	ctx context.Context, words *keyCounter, size int, minFrequency int64, special []string,
) (*subword.Tokenizer, error) {
	var broken error
	made, err := subword.Train(ctx, mostFrequent(words, subword.MaxWords, &broken), size,
		max(leastFrequency, minFrequency), special)
	if err = cmp.Or(broken, err); err != nil {
		return nil, fmt.Errorf("--tokenizer bpe: %w", err)
	}
	return made, nil
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
