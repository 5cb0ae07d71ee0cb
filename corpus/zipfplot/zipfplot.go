// Package zipfplot draws the rank-frequency curves of a text's tokens, bigrams and trigrams, with
// both axes logarithmic, so that Zipf's law is a straight line. Package corpus
// counts them. The packages are separate, so that a worker does not link the fonts and formats of a
// plotting library. It may import corpus, internal/drawing and gonum.org/v1/plot.
package zipfplot

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"rondo/corpus"
	"rondo/internal/drawing"
)

// Save draws the statistics to a file, as PNG or SVG by the extension of path.
func Save(path, title string, stats *corpus.Stats) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "rank", "count"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Padding = true, vg.Points(4)
	p.Add(plotter.NewGrid())
	for i, c := range []struct {
		name   string
		ngrams corpus.NGrams
	}{{"tokens", stats.Unigrams}, {"bigrams", stats.Bigrams}, {"trigrams", stats.Trigrams}} {
		if len(c.ngrams.Ranks) == 0 {
			continue // a text of one token has no bigram
		}
		line, err := plotter.NewLine(points(c.ngrams.Ranks))
		if err != nil {
			return fmt.Errorf("plot %s: %w", path, err)
		}
		line.Color, line.Dashes, line.Width = plotutil.Color(i), plotutil.Dashes(i), vg.Points(1.3)
		p.Add(line)
		p.Legend.Add(fmt.Sprintf("%s (α %.2f)", c.name, c.ngrams.Zipf.Alpha), line)
	}
	// A logarithmic axis needs a positive range, but a single point has none. It also needs room
	// beyond the greatest count and rank.
	p.X.Min, p.Y.Min = 1, 1
	p.X.Max, p.Y.Max = 1.5*max(p.X.Max, 10), 1.5*max(p.Y.Max, 10)
	return drawing.Save(path, p)
}

// points returns both ends of each Rank, so that straight lines between them are exact.
func points(curve []corpus.Rank) plotter.XYs {
	var xys plotter.XYs
	for _, r := range curve {
		xys = append(xys, plotter.XY{X: float64(r.First), Y: float64(r.Count)})
		if r.Last > r.First {
			xys = append(xys, plotter.XY{X: float64(r.Last), Y: float64(r.Count)})
		}
	}
	return xys
}
