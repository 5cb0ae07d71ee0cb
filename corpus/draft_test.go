package corpus

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// slowWords is the vocabulary and the words of texts, in plain steps.
func slowWords(t *testing.T, texts []string, cfg Config) (tokens, words []string) {
	t.Helper()
	counts := map[string]int64{}
	for _, text := range texts {
		lines := []string{text}
		if cfg.Tokenizer.Ends == LineEnds {
			lines = strings.SplitAfter(text, "\n")
		}
		for _, line := range lines {
			for _, word := range strings.Fields(line) {
				words = append(words, word)
				counts[word]++
			}
			if cfg.Tokenizer.Ends == LineEnds && line != "" {
				words = append(words, EndOfText)
			}
		}
		if cfg.Tokenizer.Ends == DocumentEnds {
			words = append(words, EndOfText)
		}
	}
	var found []frequency
	for word, n := range counts {
		if n >= cfg.MinFrequency {
			found = append(found, frequency{word, n})
		}
	}
	v, err := rankTokens(found, cfg.reserved())
	if err != nil {
		t.Fatal(err)
	}
	for i, word := range words {
		words[i] = v.Token(v.ID(word))
	}
	return v.Tokens(), words
}

// randomTexts are texts of few and of many words: short and long ones, beyond ASCII, with several
// kinds of white space, longer than a block.
func randomTexts(random *rand.Rand) []string {
	spaces := []string{" ", " ", " ", "\n", "\t\r\n", "  ", "\u00a0", "\u2003"}
	letters := []string{"e", "t", "a", "o", "é", "世", "\x00"}
	texts := make([]string, 1+random.IntN(4))
	for i := range texts {
		var text strings.Builder
		most := 1 << random.IntN(19)
		for range random.IntN(most) {
			switch random.IntN(200) {
			case 0:
				text.WriteString(strings.Repeat("long", 1+random.IntN(2000)))
			case 1:
				text.WriteString([]string{EndOfText, Unknown, "reserved"}[random.IntN(3)])
			default:
				for n := random.IntN(most) + 1; n > 0; n /= 5 {
					text.WriteString(letters[n%min(5+random.IntN(2)*n%3, len(letters))])
				}
			}
			text.WriteString(spaces[random.IntN(len(spaces))])
		}
		texts[i] = text.String()
	}
	return texts
}

// A corpus of words has the vocabulary and the tokens of the slow way, also if few words or none
// have a number in the draft.
func TestDraftIsTheSlowWay(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		texts := randomTexts(random)
		cfg := Config{MinFrequency: int64(random.IntN(4)), Reserved: []string{"reserved"},
			Tokenizer: Tokenizer{Unit: Word, Normalize: None,
				Ends: []Ends{NoEnds, LineEnds, DocumentEnds}[random.IntN(3)]}}
		limit := []int{0, 1 << 10, 1 << 16, lexiconBytes}[random.IntN(4)]
		name := fmt.Sprintf("seed %d, %+v, limit %d", seed, cfg.Tokenizer, limit)
		wantTokens, want := slowWords(t, texts, cfg)
		d, err := newDraft(t.TempDir(), limit)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		var read reading
		for _, text := range texts {
			read = append(read, func(document func(io.Reader) error) error {
				return document(strings.NewReader(text))
			})
		}
		if err := d.read(t.Context(), cfg.Tokenizer, read); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if size := d.lexicon.table.Load().size(); size > max(limit, leastSlots*slotBytes) {
			t.Errorf("%s: %d bytes of words with a number", name, size)
		}
		v, err := d.vocabulary(cfg.MinFrequency, cfg.reserved())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.Equal(v.Tokens(), wantTokens) {
			t.Fatalf("%s: %d tokens; want %d", name, v.Len(), len(wantTokens))
		}
		var file memoryFile
		w, err := newTokenWriter(&file, identity{}, Header{Vocabulary: v})
		if err == nil {
			err = d.write(t.Context(), w)
		}
		if err == nil {
			err = w.Finish()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		made, err := readTokenFile(t.Context(), strings.NewReader(string(file.bytes)),
			int64(len(file.bytes)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ids := make([]int32, made.Len())
		if err := made.ReadTokens(ids, 0); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, id := range ids {
			got = append(got, v.Token(id))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d tokens differ from %d", name, len(got), len(want))
		}
		if ends, err := made.documentEnds(); err != nil || len(ends) != len(texts) ||
			ends[len(ends)-1] != made.Len() {
			t.Errorf("%s: documents end at %d, %v", name, ends, err)
		}
	}
}

// Goroutines that add the same words at the same time get the same numbers, one for each word.
func TestLexiconIsShared(t *testing.T) {
	const words = 60_000
	for range 5 {
		d, err := newDraft(t.TempDir(), lexiconBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		var group sync.WaitGroup
		var numbers [4][]int32
		for i := range numbers {
			group.Go(func() {
				keys := make([]shortKey, 0, keyBatch)
				for at := 0; at < words; at += keyBatch {
					keys = keys[:0]
					for n := at; n < min(at+keyBatch, words); n++ {
						keys = append(keys, shortKeyOf(fmt.Append(nil, n^i%2)))
					}
					numbers[i] = d.lexicon.numbers(numbers[i], keys)
				}
			})
		}
		group.Wait()
		of := map[int32]int{}
		for i := range numbers {
			for at, number := range numbers[i] {
				word := at ^ i%2
				if before, ok := of[number]; number == 0 || ok && before != word {
					t.Fatalf("%d has the number %d of %d", word, number, before)
				}
				of[number] = word
			}
		}
		if len(of) != words || d.lexicon.len() != words {
			t.Errorf("%d and %d numbers of %d words", len(of), d.lexicon.len(), words)
		}
	}
}
