package corpus

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// slowNGrams counts n-grams in a map and ranks all of them.
func slowNGrams(tokens []string, n int) []NGram {
	counts := map[string]int64{}
	for i := 0; i+n <= len(tokens); i++ {
		counts[strings.Join(tokens[i:i+n], "\x00")]++
	}
	var ranked []NGram
	for key, count := range counts {
		ranked = append(ranked, NGram{strings.Split(key, "\x00"), count})
	}
	slices.SortFunc(ranked, func(a, b NGram) int { return cmp.Compare(b.Count, a.Count) })
	return ranked
}

// slowFit is the textbook formula for a least-squares line and its R^2.
func slowFit(ranked []NGram) Zipf {
	n := float64(len(ranked))
	var sx, sy, sxx, sxy, syy float64
	for i, g := range ranked {
		x, y := math.Log(float64(i+1)), math.Log(float64(g.Count))
		sx, sy, sxx, sxy, syy = sx+x, sy+y, sxx+x*x, sxy+x*y, syy+y*y
	}
	slope := (n*sxy - sx*sy) / (n*sxx - sx*sx)
	r := (n*sxy - sx*sy) / math.Sqrt((n*sxx-sx*sx)*(n*syy-sy*sy))
	return Zipf{-slope, (sy - slope*sx) / n, r * r}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a)) }

func TestMeasureMatchesItsTwin(t *testing.T) {
	for _, tokenizer := range []Tokenizer{split(Char, Letters), split(Word, None)} {
		c := open(t, Config{
			Source: Opticks, Tokenizer: tokenizer, MaxTokens: 100_000, CacheDir: t.TempDir(),
		})
		const top = 50
		got, err := Measure(t.Context(), c.Tokens(), c.Vocabulary(), top, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		var tokens []string
		for _, id := range all(t, c.Tokens()) {
			tokens = append(tokens, c.Vocabulary().Token(id))
		}
		for i, g := range []NGrams{got.Unigrams, got.Bigrams, got.Trigrams} {
			want := slowNGrams(tokens, i+1)
			if g.N != i+1 || g.Distinct != int64(len(want)) || g.Total != int64(len(tokens)-i) {
				t.Errorf("%v: %d distinct %d-grams of %d; want %d of %d", tokenizer, g.Distinct,
					g.N, g.Total, len(want), len(tokens)-i)
			}
			if len(g.Top) != min(top, len(want)) {
				t.Errorf("%v: the table has %d rows", tokenizer, len(g.Top))
			}
			for rank, row := range g.Top {
				at := slices.IndexFunc(want, func(w NGram) bool {
					return slices.Equal(w.Tokens, row.Tokens)
				})
				if at < 0 || want[at].Count != row.Count || want[rank].Count != row.Count {
					t.Errorf("%v: row %d is %v", tokenizer, rank, row)
				}
			}
			for _, r := range g.Ranks {
				if want[r.First-1].Count != r.Count || want[r.Last-1].Count != r.Count {
					t.Errorf("%v: curve %v", tokenizer, r)
				}
			}
			if g.Ranks[0].First != 1 || g.Ranks[len(g.Ranks)-1].Last != g.Distinct {
				t.Errorf("%v: the curve runs from %v to %v", tokenizer, g.Ranks[0],
					g.Ranks[len(g.Ranks)-1])
			}
			fit := slowFit(want)
			if !near(g.Zipf.Alpha, fit.Alpha) || !near(g.Zipf.Intercept, fit.Intercept) ||
				!near(g.Zipf.R2, fit.R2) {
				t.Errorf("%v: fit %+v; want %+v", tokenizer, g.Zipf, fit)
			}
		}
	}
}

func TestZipfFindsAKnownLaw(t *testing.T) {
	// count = 2^20 rank^-2 is exact at ranks that are powers of two, so R^2 = 1.
	var curve []Rank
	for rank := int64(1); rank <= 2; rank++ {
		curve = append(curve, Rank{rank, rank, (1 << 20) / (rank * rank)})
	}
	fit := fitZipf(curve)
	if !near(fit.Alpha, 2) || !near(fit.Intercept, 20*math.Ln2) || !near(fit.R2, 1) {
		t.Errorf("fit %+v", fit)
	}
	if fit := fitZipf([]Rank{{1, 9, 3}}); fit.Alpha != 0 || fit.R2 != 0 {
		t.Errorf("equal counts: %+v", fit)
	}
	if fit := fitZipf([]Rank{{1, 1, 3}}); fit != (Zipf{}) {
		t.Errorf("one n-gram: %+v", fit)
	}
}

func TestMeasureShortTexts(t *testing.T) {
	v, err := NewVocabulary([]string{Unknown, "a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ids := range []IDs{{}, {1}, {1, 2}, {1, 1, 1}} {
		got, err := Measure(t.Context(), ids, v, 3, "")
		if err != nil {
			t.Fatal(err)
		}
		if got.Tokens != ids.Len() || got.Trigrams.Total != max(0, ids.Len()-2) {
			t.Errorf("%v: %+v", ids, got)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("%v: %v", ids, err)
		}
	}
	if _, err := Measure(t.Context(), IDs{1}, v, -1, ""); err == nil {
		t.Error("a negative table is no error")
	}
}

// TestTheTextbooksCounts compares the most frequent words of The Time Machine with the figures in
// Dive into Deep Learning.
func TestTheTextbooksCounts(t *testing.T) {
	path := os.Getenv("RONDO_TIMEMACHINE")
	want := "the 2261, i 1267, and 1245, of 1155, a 816"
	if path == "" {
		path = textFile(t, strings.Repeat("the ", 5)+strings.Repeat("and ", 4)+"of of of a a i")
		want = "the 5, and 4, of 3, a 2, i 1"
	}
	c := open(t, Config{
		Source: path, Tokenizer: split(Word, Letters), CacheDir: t.TempDir(),
	})
	got, err := Measure(t.Context(), c.Tokens(), c.Vocabulary(), 5, "")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got.Unigrams.Top)
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer(`[{`, "", `}]`, "", `"tokens":["`, "", `"],"count":`, " ")
	var rows []string
	for row := range strings.SplitSeq(string(text), "},{") {
		rows = append(rows, plain.Replace(row))
	}
	if joined := strings.Join(rows, ", "); joined != want {
		t.Errorf("the most frequent words are %s; want %s", joined, want)
	}
}
