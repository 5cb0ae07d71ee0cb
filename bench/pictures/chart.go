package main

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"math"
	"strings"

	"rondo/bench/internal/killtrace"
)

// Places in the picture, in SVG's units.
const (
	width, height = 860, 488
	left, right   = 64, 836 // of the plot
	top, bottom   = 78, 376
	captionAt     = 426
	lineHeight    = 19
	labelHeight   = 56 // of two lines and the space around them
)

// style has the colours of the job's web page, for light and for dark surroundings.
const style = `
  text { font: 13px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
    fill: #22242a }
  .paper { fill: #fffefb } .soft { fill: #6a6c73 }
  .title { font-size: 17px; font-weight: 600 }
  .grid { stroke: #eeebe3 } .axis { stroke: #b9b5aa }
  .kill { stroke: #22242a; stroke-dasharray: 3 3 }
  .line { fill: none; stroke-width: 2.4; stroke-linejoin: round }
  .usual { fill: none; stroke-width: 1.2; stroke-dasharray: 2 4 }
  .c0 { stroke: #bd4528 } .c1 { stroke: #2b6f74 } .t0 { fill: #bd4528; font-weight: 600 }
  .t1 { fill: #2b6f74; font-weight: 600 } .joined { fill: #fffefb; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8e5de } .paper { fill: #1a1c20 } .soft { fill: #9b9ca3 }
    .grid { stroke: #25282d } .axis { stroke: #4a4e56 } .kill { stroke: #e8e5de }
    .c0 { stroke: #f08663 } .c1 { stroke: #62b5b5 } .t0 { fill: #f08663 } .t1 { fill: #62b5b5 }
    .joined { fill: #1a1c20 }
  }`

// chart draws how many steps jobs complete around a kill.
type chart struct {
	before, after float64 // seconds
	note          string

	low, high float64 // steps
	out       bytes.Buffer
}

// draw returns an SVG of the first two jobs: Rondo's and its peer's.
func (c *chart) draw(jobs []killtrace.Job) ([]byte, error) {
	if len(jobs) != 2 {
		return nil, fmt.Errorf("%d jobs, not 2: run recovery with -parts kills,torchrun", len(jobs))
	}
	var both []window
	for _, j := range jobs {
		w, err := median(j, c.before, c.after)
		if err != nil {
			return nil, err
		}
		both = append(both, w)
	}
	if both[0].pace < both[1].pace {
		return nil, errors.New("the first job is the slower one: its label would cover the other")
	}
	c.scale(both)
	c.frame(both)
	for i := len(both) - 1; i >= 0; i-- { // Rondo's on top
		c.line(both[i], i)
	}
	c.printf("</svg>\n")
	return c.out.Bytes(), nil
}

func (c *chart) printf(format string, values ...any) { fmt.Fprintf(&c.out, format, values...) }

// text writes a line at a place; anchor is start, middle or end.
func (c *chart) text(x, y float64, class, anchor, line string) {
	c.printf("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y,
		class, anchor, html.EscapeString(line))
}

func (c *chart) x(seconds float64) float64 {
	return left + (right-left)*(seconds+c.before)/(c.before+c.after)
}

func (c *chart) y(steps float64) float64 {
	return bottom - (bottom-top)*(steps-c.low)/(c.high-c.low)
}

// scale makes room for all steps, and for those that a job without the kill would have done.
func (c *chart) scale(all []window) {
	for _, w := range all {
		c.high = max(c.high, w.pace*c.after)
		c.low = min(c.low, -w.pace*c.before)
		for _, s := range w.steps {
			c.high, c.low = max(c.high, float64(s.Step)), min(c.low, float64(s.Step))
		}
	}
	// The second job's label stands at the bottom right, below its steps.
	const share = labelHeight / float64(bottom-top)
	for _, s := range all[1].steps {
		c.low = min(c.low, (float64(s.Step)-share*c.high)/(1-share))
	}
}

// spacing is a round distance between about n marks over a range.
func spacing(reach float64, n int) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(reach/float64(n))))
	for _, m := range []float64{1, 2, 5} {
		if reach/(m*unit) <= float64(n) {
			return m * unit
		}
	}
	return 10 * unit
}

// signed is a whole number with its sign; 0 has none.
func signed(x float64) string {
	if x == 0 {
		return "0"
	}
	return fmt.Sprintf("%+.0f", x)
}

// frame writes everything but the data: title, axes, marks, the moment of the kill, caption.
func (c *chart) frame(both []window) {
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" `+
		"aria-label=\"steps completed before and after a kill, Rondo and torchrun\">\n"+
		"<style>%s\n</style>\n", width, height, style)
	c.printf("<rect class=\"paper\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width, height)
	c.text(24, 34, "title", "start", "One of three workers is killed (kill -9)")
	c.text(24, 57, "soft", "start", "steps completed, beyond those at the kill")
	every := spacing(c.high-c.low, 7)
	for s := math.Ceil(c.low/every) * every; s <= c.high; s += every {
		c.printf("<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", left, c.y(s), right)
		c.text(left-8, c.y(s)+4, "soft", "end", signed(s))
	}
	every = spacing(c.before+c.after, 10)
	for s := math.Ceil(-c.before/every) * every; s <= c.after; s += every {
		label := signed(s) + " s"
		if s == 0 {
			label = "kill"
		}
		c.printf("<path class=\"axis\" d=\"M%.1f %dv5\"/>\n", c.x(s), bottom)
		c.text(c.x(s), bottom+20, "soft", "middle", label)
	}
	c.printf("<path class=\"axis\" d=\"M%d %dH%d\"/>\n", left, bottom, right)
	c.printf("<path class=\"kill\" d=\"M%.1f %dV%d\"/>\n", c.x(0), top, bottom)
	c.text(24, captionAt, "soft", "start", fmt.Sprintf("Dotted: the pace before the kill. Circle: "+
		"the replacement is in. The kills of median cost, of %d and %d in one run.",
		both[0].kills, both[1].kills))
	for i, line := range strings.Split(c.note, "\n") {
		c.text(24, captionAt+float64(i+1)*lineHeight, "soft", "start", line)
	}
}

// line draws a job: its completed steps, those that it would have completed without the kill, and
// the difference.
func (c *chart) line(w window, i int) {
	c.printf("<path class=\"usual c%d\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", i, c.x(0), c.y(0),
		c.x(c.after), c.y(w.pace*c.after))
	var path strings.Builder
	for n, s := range w.steps {
		if n == 0 {
			fmt.Fprintf(&path, "M%.1f %.1f", c.x(s.At), c.y(float64(s.Step)))
			continue
		}
		// A step counts from its end on.
		fmt.Fprintf(&path, "H%.1fV%.1f", c.x(s.At), c.y(float64(s.Step)))
	}
	c.printf("<path class=\"line c%d\" d=\"%s\"/>\n", i, path.String())
	if w.joined >= 0 {
		s := w.steps[w.joined]
		c.printf("<circle class=\"joined c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>\n", i, c.x(s.At),
			c.y(float64(s.Step)))
	}
	c.label(w, i)
}

// label names a job and its cost: the first one's at the top, the second one's at the bottom right.
func (c *chart) label(w window, i int) {
	x, y, anchor := c.x(0)+12, float64(top+14), "start"
	class := fmt.Sprintf("t%d", i)
	if i > 0 {
		x, y, anchor = right, bottom-10-lineHeight, "end"
	}
	again := "no step done again"
	if w.kill.Again > 0 {
		again = fmt.Sprintf("%d steps done again", w.kill.Again)
	}
	c.text(x, y, class, anchor, w.name)
	c.text(x, y+lineHeight, "", anchor, fmt.Sprintf("%.2f s to the next new step, %s",
		w.kill.Fresh, again))
}
