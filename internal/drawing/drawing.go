// Package drawing draws lines to files. It is apart, so that a worker does not link fonts and
// picture formats. It may import github.com/wcharczuk/go-chart.
package drawing

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/wcharczuk/go-chart/v2"
)

// The picture's size, in pixels.
const (
	width  = 800
	height = 550
)

// A Line has a name for the legend, and points.
type Line struct {
	Name   string
	X, Y   []float64
	Dashed bool
}

// Add appends a point.
func (l *Line) Add(x, y float64) {
	l.X, l.Y = append(l.X, x), append(l.Y, y)
}

// A Plot is what Save draws.
type Plot struct {
	Title, X, Y string // Y may be empty
	Lines       []Line
	// Logarithmic: both axes. Coordinates are at least 1, and the axes begin there.
	Logarithmic bool
}

// Draws reports whether Save supports the extension of path.
func Draws(path string) bool {
	format := formatOf(path)
	return format == "png" || format == "svg"
}

func formatOf(path string) string {
	return strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
}

// Save draws a plot to a file, as PNG or SVG by the extension of path.
func Save(path string, p Plot) error {
	if !Draws(path) {
		return fmt.Errorf("plot %s: the name must end in .png or .svg", path)
	}
	c, err := p.chart()
	if err != nil {
		return fmt.Errorf("plot %s: %w", path, err)
	}
	format := chart.SVG
	if formatOf(path) == "png" {
		format = chart.PNG
	}
	var image bytes.Buffer
	if err := c.Render(format, &image); err != nil {
		return fmt.Errorf("plot %s: %w", path, err)
	}
	if err := os.WriteFile(path, image.Bytes(), 0o644); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// chart returns the library's form of the plot. The library's logarithmic range subtracts the
// minimum before it takes logarithms, so logarithms are drawn on linear axes, with ticks at powers
// of ten.
func (p Plot) chart() (*chart.Chart, error) {
	grid := chart.Style{StrokeColor: chart.ColorAlternateLightGray, StrokeWidth: 0.5}
	c := &chart.Chart{
		Title: p.Title, TitleStyle: chart.Style{FontSize: 12}, Width: width, Height: height,
		Background: chart.Style{Padding: chart.Box{Top: 75, Left: 20, Right: 20, Bottom: 20}},
		XAxis:      chart.XAxis{Name: p.X, GridMajorStyle: grid},
		YAxis:      chart.YAxis{Name: p.Y, GridMajorStyle: grid},
	}
	var xs, ys []float64
	for i, line := range p.Lines {
		if len(line.X) == 0 {
			continue
		}
		style := chart.Style{StrokeColor: chart.GetDefaultColor(i), StrokeWidth: 1.5}
		if line.Dashed {
			style.StrokeDashArray = []float64{5, 3}
		}
		x, y := p.scaled(line.X), p.scaled(line.Y)
		xs, ys = append(xs, x...), append(ys, y...)
		c.Series = append(c.Series,
			chart.ContinuousSeries{Name: line.Name, Style: style, XValues: x, YValues: y})
	}
	for _, v := range slices.Concat(xs, ys) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v cannot be drawn", v)
		}
	}
	if len(xs) == 0 {
		return nil, errors.New("there is no point to draw")
	}
	c.XAxis.Ticks, c.YAxis.Ticks = p.ticks(xs), p.ticks(ys)
	c.Elements = []chart.Renderable{chart.LegendThin(c)}
	return c, nil
}

// scaled returns coordinates as they are drawn.
func (p Plot) scaled(values []float64) []float64 {
	if !p.Logarithmic {
		return values
	}
	logs := make([]float64, len(values))
	for i, v := range values {
		logs[i] = math.Log10(v)
	}
	return logs
}

// ticks returns an axis's ticks. The first is not above the values, the last not below them: the
// library draws an axis from its first tick to its last.
func (p Plot) ticks(values []float64) (ticks []chart.Tick) {
	low, high, every := slices.Min(values), slices.Max(values), 1.0
	switch {
	case p.Logarithmic:
		low, high = 0, max(1, high)
	case low == high:
		low, high = low-1, high+1
		fallthrough
	default:
		every = spacing(high - low)
	}
	for i := math.Floor(low / every); i <= math.Ceil(high/every); i++ {
		label := i * every
		if p.Logarithmic {
			label = math.Pow(10, label)
		}
		ticks = append(ticks,
			chart.Tick{Value: i * every, Label: strconv.FormatFloat(label, 'g', 6, 64)})
	}
	return ticks
}

// spacing returns a round distance between ticks, at most twelve over a range.
func spacing(reach float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(reach))-1)
	for _, m := range []float64{1, 2, 5} {
		if reach/(m*unit) <= 12 {
			return m * unit
		}
	}
	return 10 * unit
}
