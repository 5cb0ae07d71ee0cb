package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"rondo/job"
	"rondo/task"
	"rondo/task/answer"
)

func answerCommand() *cobra.Command {
	var location string
	var asJSON bool
	c := &cobra.Command{
		Use:   "answer",
		Short: "Answer the questions in a story on standard input",
		Long: "Reads a story: a sentence a line. A line that ends with a question mark is a\n" +
			"question about the sentences before it. An empty line begins another story.",
	}
	addCheckpointFlag(c, &location)
	use := addUseFlags(c.Flags())
	c.Flags().BoolVar(&asJSON, "json", false,
		"print one JSON object per question, with the sentences that it was answered by")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := orNewestRun(cmd, &location); err != nil {
			return err
		}
		t, err := job.LoadTrained(cmd.Context(), location, *use, task.Answer)
		if err != nil {
			return err
		}
		defer t.Close()
		sayStep(cmd, t)
		out := cmd.OutOrStdout()
		return t.Answer(cmd.Context(), cmd.InOrStdin(), func(a answer.Answer) error {
			if asJSON {
				return json.NewEncoder(out).Encode(a)
			}
			_, err := fmt.Fprintf(out, "%s\t%.4f\t%s\n", a.Answer, a.Probability, a.Question)
			return err
		})
	}
	return c
}
