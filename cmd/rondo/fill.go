package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"rondo/job"
	"rondo/task"
	"rondo/task/fill"
)

func fillCommand() *cobra.Command {
	var location, mark string
	var asJSON bool
	c := &cobra.Command{Use: "fill", Short: "Fill the blanks in the lines of standard input"}
	addCheckpointFlag(c, &location)
	use := addUseFlags(c.Flags())
	c.Flags().StringVar(&mark, "mark", "_", "text that stands for a blank")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line of input")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.Fill)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		out := cmd.OutOrStdout()
		return t.Fill(cmd.Context(), cmd.InOrStdin(), mark, func(line fill.Line) error {
			if asJSON {
				return json.NewEncoder(out).Encode(line)
			}
			_, err := fmt.Fprintln(out, line.Filled)
			return err
		})
	}
	return c
}
