package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/internal/drawing"
	"rondo/job"
	"rondo/model"
	"rondo/task"
)

// Bounds of what is measured at a time.
const (
	maxFlowSteps   = 1000
	maxFlowWindows = 1024
)

func gradientsCommand() *cobra.Command {
	var location, source, plot string
	var steps, windows int
	var asJSON bool
	c := &cobra.Command{
		Use:   "gradients",
		Short: "Measure how far back in time a language model's loss reaches, and its gates",
		Long: "For each layer and distance d: the norm of dL/dh[t-d], where L is the loss of\n" +
			"the token after t alone and h the layer's state (of an LSTM c too): the vanishing\n" +
			"or the exploding gradient. Then each gate's mean activation, and the shares below\n" +
			"0.1 and above 0.9. All are means over windows of a text.",
	}
	flags := c.Flags()
	addCheckpointFlag(c, &location)
	flags.StringVar(&source, "corpus", "", "text: a path or a blob URL; default: the training's")
	flags.IntVar(&steps, "steps", 50, "distances: this many steps, from 0")
	flags.IntVar(&windows, "windows", 32, "windows of the text, of twice as many tokens")
	flags.StringVar(&plot, "plot", "", "draw the norms to this .png or .svg")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	use := addUseFlags(flags)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if steps < 1 || steps > maxFlowSteps {
			return app.Usagef("--steps %d is not in [1, %d]", steps, maxFlowSteps)
		}
		if windows < 1 || windows > maxFlowWindows {
			return app.Usagef("--windows %d is not in [1, %d]", windows, maxFlowWindows)
		}
		if plot != "" && !drawing.Draws(plot) {
			return app.Usagef("--plot %s: the name must end in .png or .svg", plot)
		}
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.LM)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		flow, err := t.Flow(cmd.Context(), source, steps, windows)
		if err != nil {
			return err
		}
		if plot != "" {
			if err := drawing.Save(plot, drawFlow(flow, t)); err != nil {
				return err
			}
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
				Checkpoint string `json:"checkpoint"`
				Step       int64  `json:"step"`
				*model.Flow
			}{t.Path, t.Step, flow})
		}
		return printFlow(cmd.OutOrStdout(), flow)
	}
	return c
}

// flowLine is a column of norms by distance.
type flowLine struct {
	name  string
	norms []float64
}

// flowLines are the columns of a flow.
func flowLines(f *model.Flow) (lines []flowLine) {
	for k, norms := range f.Hidden {
		lines = append(lines, flowLine{fmt.Sprintf("h, layer %d", k), norms})
	}
	for k, norms := range f.Cell {
		lines = append(lines, flowLine{fmt.Sprintf("c, layer %d", k), norms})
	}
	return lines
}

// printFlow writes a line for each distance, and one for each gate.
func printFlow(out io.Writer, f *model.Flow) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "DISTANCE\t")
	lines := flowLines(f)
	for _, line := range lines {
		fmt.Fprintf(w, "%s\t", line.name)
	}
	for d := range f.Hidden[0] {
		fmt.Fprintf(w, "\n%d\t", d)
		for _, line := range lines {
			fmt.Fprintf(w, "%.3g\t", line.norms[d])
		}
	}
	fmt.Fprintln(w)
	if len(f.Gates) > 0 {
		fmt.Fprintln(w, "\nGATE\tMEAN\tBELOW 0.1\tABOVE 0.9\t")
	}
	for _, g := range f.Gates {
		fmt.Fprintf(w, "%s, layer %d\t%.3f\t%.3f\t%.3f\t\n", g.Gate, g.Layer, g.Mean, g.Closed,
			g.Open)
	}
	return w.Flush()
}

// drawFlow is the plot of the norms' logarithms. A norm of zero has none.
func drawFlow(f *model.Flow, t *job.Trained) drawing.Plot {
	p := drawing.Plot{Title: fmt.Sprintf("gradient of a loss by earlier states, %s, step %d",
		t.Spec.Cell, t.Step), X: "steps back", Y: "log10 of the norm"}
	for _, line := range flowLines(f) {
		drawn := drawing.Line{Name: line.name}
		for d, norm := range line.norms {
			if norm > 0 {
				drawn.Add(float64(d), math.Log10(norm))
			}
		}
		p.Lines = append(p.Lines, drawn)
	}
	return p
}
