// Package drawing writes plots to files. It is apart, so that a worker does not link the fonts and
// formats of a plotting library. It may import gonum.org/v1/plot.
package drawing

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

const (
	width  = 16 * vg.Centimeter
	height = 11 * vg.Centimeter
)

// Draws reports whether Save supports the extension of path.
func Draws(path string) bool {
	format := formatOf(path)
	return format == "png" || format == "svg"
}

func formatOf(path string) string {
	return strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
}

// Save draws a plot to a file, as PNG or SVG by the extension of path.
func Save(path string, p *plot.Plot) error {
	if !Draws(path) {
		return fmt.Errorf("plot %s: the name must end in .png or .svg", path)
	}
	drawn, err := p.WriterTo(width, height, formatOf(path))
	if err != nil {
		return fmt.Errorf("plot %s: %w", path, err)
	}
	var image bytes.Buffer
	if _, err := drawn.WriteTo(&image); err != nil {
		return fmt.Errorf("plot %s: %w", path, err)
	}
	if err := os.WriteFile(path, image.Bytes(), 0o644); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}
