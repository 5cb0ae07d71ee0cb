package translate

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// TestWords holds words and their BLEU against sacreBLEU's: see testdata/bleu.py.
func TestWords(t *testing.T) {
	text, err := os.ReadFile("testdata/words.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Pairs [][2]string
		Words [][]string // of each pair's translation
		BLEU  float64
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) != 3 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	words := newWords13a()
	for i, c := range cases {
		counts := make([]int64, bleuCounters)
		for k, pair := range c.Pairs {
			if got := words.cut(pair[0]); !slices.Equal(got, c.Words[k]) {
				t.Errorf("%q has the words %q, want %q", pair[0], got, c.Words[k])
			}
			words.count(counts, pair[0], pair[1])
		}
		if got := BLEU(counts); !(math.Abs(got-c.BLEU) <= 1e-7) {
			t.Errorf("case %d: BLEU %v, want %v", i, got, c.BLEU)
		}
	}
}

// TestBLEU holds both scores against sacreBLEU's and the textbook's own: see testdata/bleu.py.
func TestBLEU(t *testing.T) {
	text, err := os.ReadFile("testdata/bleu.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name                     string
		Translations, References [][]int32
		BLEU                     float64
		Book                     [][]float64 // of each pair, for k from 1
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 10 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	const tolerance = 1e-9
	for _, c := range cases {
		counts := make([]int64, bleuCounters)
		for i, translation := range c.Translations {
			countBLEU(counts, translation, c.References[i])
			for k, want := range c.Book[i] {
				got := BookBLEU(translation, c.References[i], k+1)
				if !(math.Abs(got-want) <= tolerance) {
					t.Errorf("%s: BookBLEU of pair %d with k = %d is %v, want %v", c.Name, i, k+1,
						got, want)
				}
			}
		}
		if got := BLEU(counts); !(math.Abs(got-c.BLEU) <= 100*tolerance) {
			t.Errorf("%s: BLEU %v, want %v", c.Name, got, c.BLEU)
		}
	}
}
