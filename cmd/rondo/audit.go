package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rondo/audit"
	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
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
			report, err := proveLogs(cmd.Context(), args[0], folder, spec)
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

// proveLogs checks the logs of a folder. It compares them with the checkpoints of another folder,
// unless that is "", and with the text, if the spec names one.
func proveLogs(
	ctx context.Context, dir, checkpoints string, spec *rondov1.JobSpec,
) (report *audit.Report, err error) {
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, app.Usagef("there is no folder %s: give the job's --audit-dir", dir)
	} else if err != nil {
		return nil, app.Usage(err)
	} else if !info.IsDir() {
		return nil, app.Usagef("%s is not a folder: give the job's --audit-dir", dir)
	}
	var tokens corpus.Tokens
	if spec.Corpus != "" {
		text, err := job.OpenCorpus(ctx, spec, nil)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, text.Close()) }()
		if tokens, _, err = corpus.Split(text.Tokens(), spec.ValidationFraction); err != nil {
			return nil, app.Usage(err)
		}
	}
	var states []audit.State
	if checkpoints != "" {
		if states, err = savedStates(ctx, checkpoints); err != nil {
			return nil, err
		}
	}
	report, err = audit.Prove(ctx, os.DirFS(dir), tokens, states)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return report, nil
}

// savedStates reads the checkpoints of a folder.
func savedStates(ctx context.Context, folder string) (states []audit.State, err error) {
	store, err := checkpoint.Open(ctx, folder, checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return nil, app.Usage(err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	steps, err := store.Steps(ctx)
	if err == nil && len(steps) == 0 {
		err = app.Usagef("--checkpoint-dir: %w in %s", checkpoint.ErrNone, folder)
	}
	if err != nil {
		return nil, err
	}
	return statesOf(ctx, store, steps)
}

// statesOf reads the checkpoints of some steps, the damaged ones too. It passes over those that
// have been deleted meanwhile.
func statesOf(
	ctx context.Context, store *checkpoint.Store, steps []int64,
) ([]audit.State, error) {
	var states []audit.State
	for _, step := range steps {
		state, err := savedState(ctx, store, step)
		var damage *checkpoint.DamageError
		if errors.As(err, &damage) {
			state = audit.State{Step: step, Path: damage.Path, Damage: damage.Error()}
			// One that is being deleted looks damaged until its manifest is gone.
			if _, gone := store.Load(ctx, step); errors.Is(gone, checkpoint.ErrNone) {
				err = gone
			}
		} else if err != nil && !errors.Is(err, checkpoint.ErrNone) {
			return nil, err
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			states = append(states, state)
		}
	}
	return states, nil
}

// savedState reads a checkpoint's parameters.
func savedState(
	ctx context.Context, store *checkpoint.Store, step int64,
) (state audit.State, err error) {
	saved, err := store.Load(ctx, step)
	if err != nil {
		return state, err
	}
	state = audit.State{Step: step, Path: saved.Path}
	if saved.Digest == 0 { // an older version saved it
		return state, nil
	}
	if state.Digest, err = job.SavedDigest(ctx, saved); err != nil {
		return state, err
	}
	if state.Digest != saved.Digest {
		state.Damage = fmt.Sprintf("%s in %s has parameters of digest %d, and its manifest says %d",
			job.ModelFile, saved.Path, state.Digest, saved.Digest)
	}
	return state, nil
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
