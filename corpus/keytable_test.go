package corpus

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// A short key is one word's alone, wherever the word lies in memory.
func TestShortKeys(t *testing.T) {
	of := map[shortKey]string{}
	for n := 1; n <= shortBytes; n++ {
		for _, letter := range []string{"\x00", "a", "\xff"} {
			for _, word := range []string{strings.Repeat(letter, n),
				strings.Repeat(letter, n-1) + "b", "b" + strings.Repeat(letter, n-1)} {
				key := shortKeyOf([]byte(word + strings.Repeat("x", 16))[:n])
				if apart := shortKeyOf([]byte(word)[:n:n]); apart != key {
					t.Errorf("%q has keys %v and %v", word, key, apart)
				}
				if other, ok := of[key]; ok && other != word {
					t.Errorf("%q and %q have one key", word, other)
				}
				of[key] = word
				if got := string(key.word(new([16]byte))); got != word {
					t.Errorf("the key of %q is %q's", word, got)
				}
			}
		}
	}
	for _, word := range []string{"", strings.Repeat("a", shortBytes+1)} {
		if key := shortKeyOf([]byte(word)); key != (shortKey{}) {
			t.Errorf("%q has key %v", word, key)
		}
	}
}

// The keys of a text are its words, in order, whatever the words, the memory for keys, and what
// follows the text in memory.
func TestEachKey(t *testing.T) {
	parts := []string{" ", "\n", "\t\v\f\r", "\u0085", "\u00a0", "\u2003", "\x1c", "\x00",
		"\x7f", "a", "b", "the", "seven77", "eight888", "fifteen-letters", "sixteen--letters",
		"é", "世界", strings.Repeat("long", 50)}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var text strings.Builder
		for range random.IntN(1000) {
			text.WriteString(parts[random.IntN(len(parts))])
		}
		var want, got []string
		if err := eachWord([]byte(text.String()), func(word []byte) error {
			want = append(want, string(word))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		memory := []byte(text.String() + parts[random.IntN(len(parts))] + "after the end")
		batch := make([]shortKey, 1+random.IntN(9))
		err := eachKey(memory[:text.Len()], batch, func(keys []shortKey) error {
			for _, key := range keys {
				got = append(got, string(key.word(new([16]byte))))
			}
			return nil
		}, func(word []byte) error {
			got = append(got, string(word))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q: %q, %v; want %q", text.String(), got, err, want)
		}
	}
}
