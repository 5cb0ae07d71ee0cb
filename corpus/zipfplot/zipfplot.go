// Package zipfplot draws the rank-frequency curves of a text's tokens, bigrams and trigrams, with
// both axes logarithmic, so that Zipf's law is a straight line. Package corpus counts them. The
// packages are separate, so that a worker does not link a plotting library. It may import corpus
// and internal/drawing.
package zipfplot

import (
	"fmt"

	"rondo/corpus"
	"rondo/internal/drawing"
)

// Save draws the statistics to a file, as PNG or SVG by the extension of path.
func Save(path, title string, stats *corpus.Stats) error {
	p := drawing.Plot{Title: title, X: "rank", Y: "count", Logarithmic: true}
	for _, c := range []struct {
		name   string
		ngrams corpus.NGrams
	}{{"tokens", stats.Unigrams}, {"bigrams", stats.Bigrams}, {"trigrams", stats.Trigrams}} {
		if len(c.ngrams.Ranks) == 0 {
			continue // a text of one token has no bigram
		}
		line := drawing.Line{Name: fmt.Sprintf("%s (α %.2f)", c.name, c.ngrams.Zipf.Alpha)}
		for _, r := range c.ngrams.Ranks {
			line.Add(float64(r.First), float64(r.Count))
			if r.Last > r.First { // both ends, so that straight lines between them are exact
				line.Add(float64(r.Last), float64(r.Count))
			}
		}
		p.Lines = append(p.Lines, line)
	}
	return drawing.Save(path, p)
}
