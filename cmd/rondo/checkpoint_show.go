package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rondo/checkpoint"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job"
	"rondo/task"
	"rondo/telemetry"
)

func checkpointShowCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show [FOLDER]",
		Short: "Show a checkpoint's model, text, training time and loss",
		Long: "Shows the newest checkpoint of a folder or blob URL, or the one whose own folder\n" +
			"is given; without FOLDER, the newest run's under ./runs. It reads the manifest\n" +
			"only; `rondo checkpoint verify` reads the tensors.",
		Args: oneFolder,
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		location, err := folderOrNewestRun(cmd, args)
		if err != nil {
			return err
		}
		summary, err := job.Show(cmd.Context(), location)
		if errors.Is(err, checkpoint.ErrNone) {
			return app.Usage(err)
		}
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(summary)
		}
		return printSummary(cmd.OutOrStdout(), summary)
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

// notRecorded replaces a figure that an older version's manifest lacks.
const notRecorded = "not recorded"

func printSummary(out io.Writer, s *job.Summary) error {
	steps := thousands(float64(s.Steps))
	if s.TotalSteps != nil {
		steps += " of " + recorded(s.TotalSteps, thousands)
	}
	input := "one-hot input"
	if s.Embed > 0 {
		input = fmt.Sprintf("embedding of %d", s.Embed)
	}
	directions := ""
	if s.HiddenBackward > 0 {
		directions = fmt.Sprintf(" forward and %d backward", s.HiddenBackward)
	} else if s.Bidirectional {
		directions = " in each direction"
	}
	unit := "subwords"
	switch corpus.Unit(s.Tokenizer) {
	case corpus.Char:
		unit = "characters"
	case corpus.Word:
		unit = "words"
	}
	reads := "examples"
	if s.BPTT > 0 {
		reads = fmt.Sprintf("lanes of %d tokens", s.BPTT)
	}
	network := fmt.Sprintf("%s, %d x %d hidden units%s, %s, dropout %g", s.Cell, s.Layers,
		s.Hidden, directions, input, s.Dropout)
	optimizer := fmt.Sprintf("%s, learning rate %g", s.Optimizer, s.Rate)
	if s.Memory != "" {
		network = s.Memory
	}
	if s.Sums != "" {
		network, optimizer = s.Sums, "none"
	}
	for _, row := range [][2]string{
		{"checkpoint", s.Checkpoint},
		{"saved", fmt.Sprintf("%s, job %s", s.Created.Format(time.DateTime), s.Job)},
		{"task", s.Task},
		{"model", network},
		{"parameters", thousands(float64(s.Parameters))},
		{"corpus", s.Corpus},
		{"tokens", fmt.Sprintf("%s to train on, %s to evaluate on; vocabulary %s (%s)",
			recorded(s.TrainTokens, thousands), recorded(s.ValidationTokens, thousands),
			thousands(float64(s.Vocabulary)), unit)},
		{"steps", fmt.Sprintf("%s, each %d %s", steps, s.Batch, reads)},
		{"seen", fmt.Sprintf("%s tokens; passes over the text: %s",
			thousands(float64(s.TokensSeen)), recorded(s.Epochs, decimals))},
		{"time", recorded(s.Seconds, func(v float64) string {
			return time.Duration(v * float64(time.Second)).Round(time.Second / 10).String()
		})},
		{"optimizer", optimizer},
		{"training", fmt.Sprintf("loss %s in the last step, %s in the epoch so far%s",
			recorded(s.Loss, decimals), recorded(s.EpochLoss, decimals),
			perplexity(s, s.EpochLoss))},
		{"validation", validation(s)},
		{"repeat", strings.Join(quoted(s.Repeat), " ")},
		{"go on", strings.Join(quoted(s.GoOn), " ")},
		{"use", strings.Join(quoted(s.Use), " ")},
	} {
		if _, err := fmt.Fprintf(out, "%-11s %s\n", row[0], row[1]); err != nil {
			return err
		}
	}
	return nil
}

// recorded writes a figure that an older version's manifest may lack.
func recorded(v *float64, write func(float64) string) string {
	if v == nil {
		return notRecorded
	}
	return write(*v)
}

func decimals(v float64) string { return fmt.Sprintf("%.4f", v) }

// perplexity is that of a loss, in brackets; "": the loss is a mean squared error.
func perplexity(s *job.Summary, loss *float64) string {
	if task.SquaredError(s.Task) {
		return ""
	}
	return fmt.Sprintf(" (perplexity %s)", recorded(loss, func(v float64) string {
		return fmt.Sprintf("%.3f", telemetry.Perplexity(v))
	}))
}

func validation(s *job.Summary) string {
	var text string
	switch {
	case s.ValidationLoss != nil:
		text = fmt.Sprintf("loss %s%s", decimals(*s.ValidationLoss),
			perplexity(s, s.ValidationLoss))
	case !s.Evaluates:
		text = "not evaluated: the job had no --validation-fraction and no --eval-corpus"
	case s.Evaluated == job.EvaluatedUnknown:
		text = notRecorded
	case s.Evaluated == job.EvaluatedNever:
		text = "not evaluated yet"
	default:
		text = "not evaluated at this step"
	}
	if s.Best != nil {
		text += fmt.Sprintf("; best of the folder: loss %s at step %s%s", decimals(s.Best.Loss),
			thousands(float64(s.Best.Step)), perplexity(s, &s.Best.Loss))
	}
	return text
}
