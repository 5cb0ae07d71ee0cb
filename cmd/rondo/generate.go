package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/job"
	"rondo/model"
	"rondo/task"
	"rondo/task/lm"
)

// maxPrefix is the largest file that --prefix-file reads.
const maxPrefix = 16 << 20

// maxTexts bounds --number.
const maxTexts = 10000

// generated is one text in the output of rondo generate --json.
type generated struct {
	Checkpoint string `json:"checkpoint"`
	Step       int64  `json:"step"`
	Text       string `json:"text"`
	// LogProbabilities are natural logarithms, one for each generated token.
	Tokens           []string  `json:"tokens,omitempty"`
	LogProbabilities []float64 `json:"log_probabilities,omitempty"`
}

// generateFlags are the flags of rondo generate.
type generateFlags struct {
	prefix, prefixFile       string
	tokens, number           int
	asJSON, logProbabilities bool
	how                      model.Sampling
}

func (f *generateFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.prefix, "prefix", "", "text to continue")
	flags.StringVar(&f.prefixFile, "prefix-file", "", "file with the text to continue; -: "+
		"standard input")
	c.MarkFlagsMutuallyExclusive("prefix", "prefix-file")
	flags.IntVar(&f.tokens, "tokens", 200, "how many tokens to write")
	flags.IntVarP(&f.number, "number", "n", 1, "how many texts to write, each with the next --seed")
	flags.Float64Var(&f.how.Temperature, "temperature", 1,
		"below 1 prefers likely tokens, above 1 unlikely ones")
	flags.IntVar(&f.how.TopK, "top-k", 0, "draw among the K most likely tokens; 0: all")
	flags.Float64Var(&f.how.TopP, "top-p", 0, "draw among the most likely tokens whose "+
		"probabilities add up to P; 0: all")
	flags.BoolVar(&f.how.Greedy, "greedy", false, "always take the most likely token")
	flags.Uint64Var(&f.how.Seed, "seed", 1, "of the random draws")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object per text")
	flags.BoolVar(&f.logProbabilities, "log-probabilities", false,
		"add each token and the logarithm of its probability (needs --json)")
}

func (f *generateFlags) check() error {
	switch {
	case f.tokens < 1:
		return app.Usagef("--tokens %d: must be at least 1", f.tokens)
	case f.number < 1 || f.number > maxTexts:
		return app.Usagef("--number %d: must be in [1, %d]", f.number, maxTexts)
	case f.logProbabilities && !f.asJSON:
		return app.Usagef("--log-probabilities needs --json: give both")
	}
	return app.Usage(f.how.Validate())
}

// text returns the text to continue.
func (f *generateFlags) text(stdin io.Reader) (string, error) {
	if f.prefixFile == "" {
		return f.prefix, nil
	}
	if f.prefixFile != "-" {
		file, err := os.Open(f.prefixFile)
		if err != nil {
			return "", app.Usage(fmt.Errorf("--prefix-file: %w", err))
		}
		defer file.Close()
		stdin = file
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxPrefix+1))
	if err != nil {
		return "", fmt.Errorf("--prefix-file %s: %w", f.prefixFile, err)
	}
	if len(text) > maxPrefix {
		return "", app.Usagef("--prefix-file %s has more than %d MiB: give the end of the text",
			f.prefixFile, maxPrefix>>20)
	}
	return string(text), nil
}

func generateCommand() *cobra.Command {
	var location string
	f := &generateFlags{}
	c := &cobra.Command{
		Use:   "generate",
		Short: "Let a trained model write text",
	}
	use := addUseFlags(c.Flags())
	addCheckpointFlag(c, &location)
	f.add(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		prefix, err := f.text(cmd.InOrStdin())
		if err != nil {
			return err
		}
		t, texts, err := openTexts(cmd, &location, *use, 1)
		if err != nil {
			return err
		}
		defer t.Close()
		defer texts.Close()
		write, err := texts.Read(prefix)
		if err != nil {
			return err
		}
		for number := range f.number {
			if number > 0 && !f.asJSON {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			how := f.how
			how.Seed += uint64(number)
			if err := f.write(cmd, t, write, how); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// openTexts opens a model that writes so many texts at a time, from a checkpoint at a location or
// of the newest run.
func openTexts(
	cmd *cobra.Command, location *string, use job.Use, together int,
) (*job.Trained, *job.Texts, error) {
	if err := orNewestRun(cmd, location); err != nil {
		return nil, nil, err
	}
	t, err := job.LoadTrained(cmd.Context(), *location, use, task.LM, task.NGram, task.HMM,
		task.MLP)
	if err != nil {
		return nil, nil, err
	}
	sayStep(cmd, t)
	texts, err := t.Texts(together)
	if err != nil {
		t.Close()
		return nil, nil, err
	}
	return t, texts, nil
}

// write writes one text: as it is generated, or as JSON.
func (f *generateFlags) write(
	cmd *cobra.Command, t *job.Trained, write lm.Continue, how model.Sampling,
) error {
	out := cmd.OutOrStdout()
	if !f.asJSON {
		err := write(cmd.Context(), f.tokens, how, func(p lm.Piece) error {
			_, err := io.WriteString(out, p.Text)
			return err
		})
		fmt.Fprintln(out)
		return err
	}
	one := generated{Checkpoint: t.Path, Step: t.Step}
	var text strings.Builder
	first := true
	err := write(cmd.Context(), f.tokens, how, func(p lm.Piece) error {
		text.WriteString(p.Text)
		if f.logProbabilities && !first && p.Tokens > 0 {
			one.Tokens = append(one.Tokens, p.Text)
			one.LogProbabilities = append(one.LogProbabilities, p.LogProbability)
		}
		first = false
		return nil
	})
	if err != nil {
		return err
	}
	one.Text = text.String()
	return json.NewEncoder(out).Encode(one)
}
