package subword

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// counted counts the words of a text.
func counted(text []byte) map[string]int64 {
	counts := map[string]int64{}
	_ = SplitWords(text, func(word []byte) error {
		counts[string(word)]++
		return nil
	})
	return counts
}

func book(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("../opticks.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// shuffled yields a map's entries in an order that the seed decides.
func shuffled(words map[string]int64, seed uint64) iter.Seq2[string, int64] {
	keys := slices.Sorted(maps.Keys(words))
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(keys), func(i, j int) {
		keys[i], keys[j] = keys[j], keys[i]
	})
	return func(yield func(string, int64) bool) {
		for _, key := range keys {
			if !yield(key, words[key]) {
				return
			}
		}
	}
}

// TestTrainedAsByTokenizers trains what BpeTrainer has trained (testdata/trace.py), to the byte, in
// any order of the words.
func TestTrainedAsByTokenizers(t *testing.T) {
	want, err := os.ReadFile("testdata/trained.tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	words := counted(book(t))
	for seed := range uint64(2) {
		got, err := Train(t.Context(), shuffled(words, seed), 1500, 2, []string{"<eos>"})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.JSON(), want) {
			i := 0
			for i < min(len(want), len(got.JSON())) && want[i] == got.JSON()[i] {
				i++
			}
			t.Fatalf("differs at byte %d: %.200q; want %.200q", i, got.JSON()[i:], want[i:])
		}
	}
}

// slowTrain counts all pairs anew for each merge.
func slowTrain(words map[string]int64, size int, minFrequency int64) (merges []string) {
	table := byteLevelTable()
	ids := map[string]int{}
	var alphabet []string
	for _, r := range slices.Sorted(maps.Keys(table.byte)) {
		alphabet = append(alphabet, string(r))
	}
	split := map[string][]string{}
	for word := range words {
		for _, b := range []byte(word) {
			split[word] = append(split[word], table.char[b])
		}
	}
	for i, token := range alphabet {
		ids[token] = i
	}
	for len(ids) < size {
		counts := map[[2]string]int64{}
		for word, parts := range split {
			for i := range len(parts) - 1 {
				counts[[2]string{parts[i], parts[i+1]}] += words[word]
			}
		}
		var best [2]string
		for p, n := range counts {
			b := counts[best]
			if n > b || n == b && (ids[p[0]] < ids[best[0]] ||
				ids[p[0]] == ids[best[0]] && ids[p[1]] < ids[best[1]]) {
				best = p
			}
		}
		if counts[best] < minFrequency {
			break
		}
		merges = append(merges, best[0]+" "+best[1])
		if _, ok := ids[best[0]+best[1]]; !ok {
			ids[best[0]+best[1]] = len(ids)
		}
		for word, parts := range split {
			var out []string
			for i := 0; i < len(parts); i++ {
				if i+1 < len(parts) && parts[i] == best[0] && parts[i+1] == best[1] {
					out = append(out, best[0]+best[1])
					i++
				} else {
					out = append(out, parts[i])
				}
			}
			split[word] = out
		}
	}
	return merges
}

func TestTrainMatchesItsTwin(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		draw := rand.New(rand.NewPCG(seed, 1))
		words := map[string]int64{}
		for range 60 { // few letters, so that tokens can be made in two ways
			var word strings.Builder
			for range 1 + draw.IntN(9) {
				word.WriteByte("aab\xff"[draw.IntN(4)])
			}
			words[word.String()] = 1 + draw.Int64N(5)
		}
		size := MinSize + 1 + draw.IntN(120)
		made, err := Train(t.Context(), maps.All(words), size, 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		pairs := made.model.(*bytePairs)
		for p, m := range pairs.merges {
			got = slices.Grow(got, max(0, int(m.rank)+1-len(got)))
			got = got[:max(len(got), int(m.rank)+1)]
			got[m.rank] = made.Token(p.left) + " " + made.Token(p.right)
		}
		if want := slowTrain(words, size, 2); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q; want %q", seed, got, want)
		}
	}
}

func TestTrainedTokenizerKeepsEveryByte(t *testing.T) {
	made, err := Train(t.Context(), maps.All(counted(book(t))), 1000, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, all := made.NewEncoder(), strings.Builder{}
	for r := range rune(0x30000) {
		all.WriteRune(r)
	}
	for _, text := range []string{string(book(t)), all.String()} {
		ids, err := e.Encode([]byte(text), true, true)
		if err != nil || made.Decode(ids) != text {
			t.Errorf("%.20q…: the decoded text differs: %v", text, err)
		}
	}
	text := string(book(t)[:10000]) + "é日本語\U0001F600"
	ids, err := e.Encode([]byte(text), true, true)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 4 { // the last character has four bytes
		var stream strings.Builder
		s, shown := made.NewStream(), ids[:len(ids)-cut]
		for _, id := range shown {
			stream.WriteString(s.Next(id))
		}
		stream.WriteString(s.End())
		if stream.String() != made.Decode(shown) {
			t.Errorf("without the last %d tokens the streamed text ends %q", cut,
				stream.String()[max(0, stream.Len()-20):])
		}
	}
}

func TestTrainEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Train(ctx, maps.All(counted(book(t))), 1000, 2, nil); !errors.Is(err,
		context.Canceled) {
		t.Error(err)
	}
	for _, size := range []int{0, MinSize, maxTokens + 1} {
		if _, err := Train(t.Context(), maps.All(map[string]int64{}), size, 2,
			[]string{"<eos>"}); err == nil {
			t.Errorf("a vocabulary of %d tokens", size)
		}
	}
}

func TestTrainRefusesSpecialTokensOfTheAlphabet(t *testing.T) {
	for _, special := range [][]string{{"a"}, {"<eos>", "\u0120"}, {"<eos>", "<eos>"}} {
		_, err := Train(t.Context(), maps.All(map[string]int64{}), 300, 2, special)
		if err == nil || !strings.Contains(err.Error(), "comes twice or stands for a byte") {
			t.Errorf("%q: %v", special, err)
		}
	}
}
