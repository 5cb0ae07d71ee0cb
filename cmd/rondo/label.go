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
	return labelCommand("Give each line of standard input a label; with --task tree a line is "+
		"a tree",
		func(out io.Writer, line label.Line) error {
			_, err := fmt.Fprintf(out, "%s\t%.4f\t%s\n", line.Labels[0], line.Probabilities[0],
				line.Text)
			return err
		}, task.Classify, task.Tree)
}

func tagCommand() *cobra.Command {
	return labelCommand("Give each token of the lines of standard input a label, or with "+
		"--task hmm the number of its hidden state",
		func(out io.Writer, line label.Line) error {
			tokens := line.Tokens
			if tokens == nil {
				tokens = strings.Fields(line.Text)
			}
			for i, token := range tokens {
				if _, err := fmt.Fprintf(out, "%s\t%s\n", token, line.Labels[i]); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintln(out)
			return err
		}, task.Tag, task.HMM)
}

// labelCommand is the command that uses networks of some tasks, and has the first one's name; print
// prints a line's labels.
func labelCommand(
	short string, print func(out io.Writer, line label.Line) error, tasks ...string,
) *cobra.Command {
	var location string
	var asJSON bool
	c := &cobra.Command{Use: tasks[0], Short: short}
	addCheckpointFlag(c, &location)
	use := addUseFlags(c.Flags())
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line of input")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, tasks...)
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
