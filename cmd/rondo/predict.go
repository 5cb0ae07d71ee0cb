package main

import (
	"encoding/csv"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/internal/drawing"
	"rondo/job"
	"rondo/task"
)

// maxAhead bounds --steps: so many forecasts are computed together.
const maxAhead = 4096

func predictCommand() *cobra.Command {
	var location, source, plot string
	var ahead int
	c := &cobra.Command{Use: "predict", Short: "Predict a time series some steps ahead, as CSV"}
	flags := c.Flags()
	addCheckpointFlag(c, &location)
	flags.StringVar(&source, "corpus", "", "series: a path or a blob URL")
	flags.IntVar(&ahead, "steps", 1, "steps ahead, from predictions of the steps in between")
	flags.StringVar(&plot, "plot", "", "draw truth and predictions to this .png or .svg")
	use := addUseFlags(flags)
	app.Require(c, "corpus")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if ahead < 1 || ahead > maxAhead {
			return app.Usagef("--steps %d is not in [1, %d]", ahead, maxAhead)
		}
		if plot != "" && !drawing.Draws(plot) {
			return app.Usagef("--plot %s: the name must end in .png or .svg", plot)
		}
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.Regress, task.Reservoir)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		f, err := t.Forecaster(cmd.Context(), source)
		if err != nil {
			return err
		}
		lines, err := writeForecast(cmd, f, ahead)
		if err != nil || plot == "" {
			return err
		}
		return drawing.Save(plot, drawing.Plot{
			Title: fmt.Sprintf("%s, %d ahead", source, ahead), X: "row",
			Lines: lines[:min(len(lines), 2*maxColumns)],
		})
	}
	return c
}

// maxColumns bounds the columns in a plot.
const maxColumns = 8

// writeForecast writes the predictions to the command's output, and returns each column's
// truth and predictions for a plot. Rows count from 0. Rows after the series' end have no truth.
func writeForecast(
	cmd *cobra.Command, f *job.Forecaster, ahead int,
) (lines []drawing.Line, err error) {
	out := csv.NewWriter(cmd.OutOrStdout())
	defer func() {
		if out.Flush(); err == nil {
			err = out.Error()
		}
	}()
	head := []string{"row"}
	for _, column := range f.Targets {
		name := f.Columns[column]
		head = append(head, name, name+"_predicted")
		lines = append(lines, drawing.Line{Name: name},
			drawing.Line{Name: name + ", predicted", Dashed: true})
	}
	if err := out.Write(head); err != nil {
		return nil, err
	}
	for i := range f.Targets {
		for row := range f.Rows() {
			lines[2*i].Add(float64(row), f.Row(row)[f.Targets[i]])
		}
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return lines, f.Forecast(cmd.Context(), ahead, func(row int, predicted []float64) error {
		if row < ahead {
			return nil
		}
		line := []string{strconv.Itoa(row)}
		for i, v := range predicted[(ahead-1)*len(f.Targets):] {
			truth := ""
			if row < f.Rows() {
				truth = number(f.Row(row)[f.Targets[i]])
			}
			line = append(line, truth, number(float64(float32(v))))
			lines[2*i+1].Add(float64(row), v)
		}
		return out.Write(line)
	})
}
