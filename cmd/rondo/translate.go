package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"rondo/job"
	"rondo/task"
)

// addSearchFlags adds the flags that say how translations are searched.
func addSearchFlags(c *cobra.Command) *job.Search {
	how := &job.Search{}
	c.Flags().IntVar(&how.Beam, "beam", 1, "hypotheses of a translation; 1: greedy")
	c.Flags().Float64Var(&how.Penalty, "length-penalty", 0.75, "exponent of a translation's "+
		"length, by which its log probability is divided; 0 prefers short ones")
	return how
}

func translateCommand() *cobra.Command {
	var location string
	var asJSON bool
	c := &cobra.Command{Use: "translate", Short: "Translate the lines of standard input"}
	addCheckpointFlag(c, &location)
	how, use := addSearchFlags(c), addUseFlags(c.Flags())
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line of input")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.Translate)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		out := cmd.OutOrStdout()
		return t.Translate(cmd.Context(), cmd.InOrStdin(), *how, func(line job.Translation) error {
			if asJSON {
				return json.NewEncoder(out).Encode(line)
			}
			_, err := fmt.Fprintln(out, line.Translation)
			return err
		})
	}
	return c
}
