package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"rondo/audit"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/job/proof"
)

func auditCommand() *cobra.Command {
	var asJSON bool
	var folder string
	spec := jobspec.Default()
	spec.Corpus = ""
	c := &cobra.Command{
		Use: "audit DIR",
		Short: "Prove from the logs in --audit-dir that a job computed every step from every " +
			"segment once",
		Long: "Audit reads the logs that a job's workers wrote into its --audit-dir. It proves\n" +
			"that every lane read its segment of the text exactly once at every step, despite\n" +
			"any failures, and that all workers had the same parameters. It names the steps\n" +
			"that were skipped because they were not finite. With --checkpoint-dir it proves\n" +
			"that each checkpoint there has the parameters of its step. With --corpus, and the\n" +
			"job's other text flags, it also compares the tokens with the text. Where lanes\n" +
			"read examples, it proves by their numbers that no epoch read one twice or left one\n" +
			"out; then there is no --corpus.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usagef("%d arguments; give the job's --audit-dir", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := jobspec.Validate(spec); err != nil {
				return err
			}
			report, err := proof.Of(cmd.Context(), args[0], folder, spec)
			if err != nil {
				return err
			}
			return showProof(cmd.OutOrStdout(), report, asJSON)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	flags.StringVar(&folder, "checkpoint-dir", "", "the job's checkpoints, to prove them too: a "+
		"folder or a blob URL")
	flags.StringVar(&spec.Corpus, "corpus", "", "the job's text, to compare the tokens with: a "+
		"path, a blob URL, or "+corpus.Opticks)
	flags.StringVar(&spec.Task, "task", spec.Task, "as the job had it")
	flags.StringVar(&spec.Tokenizer, "tokenizer", spec.Tokenizer, "as the job had it: char|word")
	flags.StringVar(&spec.Normalize, "normalize", spec.Normalize,
		"as the job had it: none|letters|punctuation")
	flags.Int64Var(&spec.MinFrequency, "min-frequency", 0, "as the job had it")
	flags.Int64Var(&spec.MaxTokens, "max-tokens", 0, "as the job had it")
	flags.Float64Var(&spec.ValidationFraction, "validation-fraction", spec.ValidationFraction,
		"as the job had it; 0 if it had --eval-corpus")
	return c
}

// showProof prints a report. A failed proof also returns an error of one line.
func showProof(w io.Writer, r *audit.Report, asJSON bool) error {
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(r)
	} else {
		err = writeProof(w, r)
	}
	if err != nil || r.Sound() {
		return err
	}
	return fmt.Errorf("the logs do not prove that every step was computed from every segment "+
		"once: %d findings", int64(len(r.Findings))+r.More)
}

func writeProof(w io.Writer, r *audit.Report) error {
	for _, finding := range r.Findings {
		if _, err := fmt.Fprintln(w, finding); err != nil {
			return err
		}
	}
	if r.More > 0 {
		_, err := fmt.Fprintf(w, "and %d more\n", r.More)
		return err
	}
	if !r.Sound() {
		return nil
	}
	if r.Last < r.First {
		_, err := fmt.Fprintf(w, "no step is in the logs (%d rings)\n", r.Rings)
		return err
	}
	if r.First > 1 {
		_, err := fmt.Fprintf(w, "steps 1..%d were done before these logs began\n", r.First-1)
		if err != nil {
			return err
		}
	}
	runs, hint := "", ""
	if r.Runs > 1 {
		runs = fmt.Sprintf("%d runs, ", r.Runs)
	}
	if r.Examples {
		hint = fmt.Sprintf("; no example twice in an epoch, and all of them in %d whole epochs",
			r.Epochs)
	} else if !r.Tokens {
		hint = " (tokens not compared: give --corpus)"
	}
	_, err := fmt.Fprintf(w, "steps %d..%d: each of %d lanes read exactly once (%d segments, "+
		"%s%d rings, %d attempts repeated)%s\n", r.First, r.Last, r.Lanes, r.Segments, runs,
		r.Rings, r.Repeated, hint)
	if err == nil {
		err = writeUpdates(w, r)
	}
	return err
}

// writeUpdates says what became of the steps' updates.
func writeUpdates(w io.Writer, r *audit.Report) error {
	lines := []string{fmt.Sprintf("%d steps, each computed from each segment once, %d skipped; "+
		"%d segments repeated, %d replayed for lost states", r.Last-r.First+1, r.Skipped, r.Again,
		r.Replayed)}
	for _, skip := range r.Skips {
		lines = append(lines, "skipped: "+skip.String())
	}
	for _, corrupt := range r.Corrupt {
		lines = append(lines, "other parameters than the others', and used by none: "+corrupt)
	}
	if r.States > 0 {
		lines = append(lines, fmt.Sprintf("%d checkpoints have the parameters of their steps",
			r.States))
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
