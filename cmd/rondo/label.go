package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"rondo/job"
	"rondo/task"
	"rondo/task/label"
)

func classifyCommand() *cobra.Command {
	return labelCommand(task.Classify, "Give each line of standard input a label",
		func(out io.Writer, line label.Line) error {
			_, err := fmt.Fprintf(out, "%s\t%.4f\t%s\n", line.Labels[0], line.Probabilities[0],
				line.Text)
			return err
		})
}

func tagCommand() *cobra.Command {
	return labelCommand(task.Tag, "Give each word of the lines of standard input a label",
		func(out io.Writer, line label.Line) error {
			for i, token := range strings.Fields(line.Text) {
				if _, err := fmt.Fprintf(out, "%s\t%s\n", token, line.Labels[i]); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintln(out)
			return err
		})
}

// labelCommand is the command that uses a network of a task; print prints a line's labels.
func labelCommand(
	of, short string, print func(out io.Writer, line label.Line) error,
) *cobra.Command {
	var location string
	var asJSON bool
	c := &cobra.Command{Use: of, Short: short}
	addCheckpointFlag(c, &location)
	use := addUseFlags(c.Flags())
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line of input")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, of)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		out := cmd.OutOrStdout()
		return t.Label(cmd.Context(), cmd.InOrStdin(), func(line label.Line) error {
			if asJSON {
				return json.NewEncoder(out).Encode(line)
			}
			return print(out, line)
		})
	}
	return c
}
