// Package seriesplot draws predictions of a time series beside the truth. It may import
// internal/drawing and gonum.org/v1/plot.
package seriesplot

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"rondo/internal/drawing"
)

// maxColumns bounds the columns in a plot.
const maxColumns = 8

// Curves are a column's truth and predictions. The X of a point is its row.
type Curves struct {
	Name             string
	Truth, Predicted plotter.XYs
}

// Save draws the first columns to a file, as PNG or SVG by the extension of path.
func Save(path, title string, columns []Curves) error {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "row"
	p.Legend.Top, p.Legend.Padding = true, vg.Points(4)
	p.Add(plotter.NewGrid())
	for i, c := range columns[:min(len(columns), maxColumns)] {
		for j, points := range []plotter.XYs{c.Truth, c.Predicted} {
			if len(points) == 0 {
				continue
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return fmt.Errorf("plot %s: column %q: %w", path, c.Name, err)
			}
			line.Color, line.Dashes = plotutil.Color(2*i+j), plotutil.Dashes(j)
			p.Add(line)
			p.Legend.Add(c.Name+[]string{"", ", predicted"}[j], line)
		}
	}
	return drawing.Save(path, p)
}
