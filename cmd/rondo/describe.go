package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/job"
	"rondo/task"
)

func describeCommand() *cobra.Command {
	var location string
	var asJSON bool
	c := &cobra.Command{Use: "describe", Short: "Write the text of each vector in a file"}
	addCheckpointFlag(c, &location)
	how, use := addSearchFlags(c), addUseFlags(c.Flags())
	c.Flags().StringVar(&how.Vectors, "vectors", "",
		"the vectors, one in each row: .npy, .safetensors with one tensor, .parquet or .csv")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per vector")
	app.Require(c, "vectors")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.Describe)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		out := cmd.OutOrStdout()
		return t.Describe(cmd.Context(), *how, func(d job.Description) error {
			if asJSON {
				return json.NewEncoder(out).Encode(d)
			}
			_, err := fmt.Fprintln(out, d.Text)
			return err
		})
	}
	return c
}
