package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/job"
	"rondo/model"
	"rondo/task"
)

func generateCommand() *cobra.Command {
	var location, prefix string
	var tokens int
	var asJSON bool
	how := model.Sampling{Temperature: 1, Seed: 1}
	c := &cobra.Command{
		Use:   "generate",
		Short: "Let a trained model write text",
	}
	use := addUseFlags(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if tokens < 1 {
			return app.Usagef("--tokens %d: must be at least 1", tokens)
		}
		if err := how.Validate(); err != nil {
			return app.Usage(err)
		}
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.LM, task.NGram,
			task.HMM, task.MLP)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		text, err := t.Write(cmd.Context(), prefix, tokens, how)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
				Checkpoint string `json:"checkpoint"`
				Step       int64  `json:"step"`
				Text       string `json:"text"`
			}{t.Path, t.Step, text})
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	}
	flags := c.Flags()
	addCheckpointFlag(c, &location)
	flags.StringVar(&prefix, "prefix", "", "text to continue")
	flags.IntVar(&tokens, "tokens", 200, "how many tokens to write")
	flags.Float64Var(&how.Temperature, "temperature", how.Temperature,
		"below 1 prefers likely tokens, above 1 unlikely ones")
	flags.IntVar(&how.TopK, "top-k", 0, "draw among the K most likely tokens; 0: all")
	flags.BoolVar(&how.Greedy, "greedy", false, "always take the most likely token")
	flags.Uint64Var(&how.Seed, "seed", how.Seed, "of the random draws")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}
