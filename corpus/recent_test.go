package corpus

import (
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
