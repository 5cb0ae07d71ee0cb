package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rondo/corpus"
	"rondo/corpus/zipfplot"
	"rondo/internal/app"
	"rondo/internal/drawing"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

func corpusCommand() *cobra.Command {
	c := &cobra.Command{Use: "corpus", Short: "Inspect a text as training reads it"}
	c.AddCommand(statsCommand())
	return c
}

func statsCommand() *cobra.Command {
	var top int
	var plot string
	var asJSON bool
	spec := jobspec.Default()
	c := &cobra.Command{
		Use:   "stats",
		Short: "Count tokens, bigrams and trigrams, and fit Zipf's law",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := jobspec.Validate(spec); err != nil {
				return err
			}
			if plot != "" && !drawing.Draws(plot) {
				return app.Usagef("--plot %s: the name must end in .png or .svg", plot)
			}
			stats, err := measure(cmd.Context(), spec, top)
			if err != nil {
				return err
			}
			if plot != "" {
				if err := zipfplot.Save(plot, spec.Corpus, stats); err != nil {
					return err
				}
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(stats)
			}
			return writeStats(cmd.OutOrStdout(), stats)
		},
	}
	flags := c.Flags()
	flags.StringVar(&spec.Corpus, "corpus", spec.Corpus, "text: a path, a blob URL, or "+
		corpus.Opticks)
	flags.StringVar(&spec.Tokenizer, "tokenizer", "word", "what a token is: "+
		"char|word|bpe, or a tokenizer.json")
	flags.Int64Var(&spec.VocabularySize, "vocabulary-size", spec.VocabularySize,
		"tokens that --tokenizer bpe learns")
	flags.StringVar(&spec.Normalize, "normalize", spec.Normalize, "none|letters|punctuation")
	flags.Int64Var(&spec.MinFrequency, "min-frequency", 0, "rarer tokens become <unk>")
	flags.Int64Var(&spec.MaxTokens, "max-tokens", 0, "only the first N tokens; 0: all")
	flags.IntVar(&top, "top", 10, "how many of the most frequent to list")
	flags.StringVar(&plot, "plot", "", "draw the rank-frequency curves to this .png or .svg")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func measure(
	ctx context.Context, spec *rondov1.JobSpec, top int,
) (*corpus.Stats, error) {
	if top < 0 {
		return nil, app.Usagef("--top %d is negative", top)
	}
	text, err := job.OpenCorpus(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }()
	return corpus.Measure(ctx, text.Tokens(), text.Vocabulary(), top, "")
}

func writeStats(w io.Writer, s *corpus.Stats) error {
	fmt.Fprintf(w, "%d tokens, vocabulary of %d\n", s.Tokens, s.Vocabulary)
	for _, grams := range []corpus.NGrams{s.Unigrams, s.Bigrams, s.Trigrams} {
		fmt.Fprintf(w, "\n%d-grams: %d, %d distinct; Zipf exponent %.3f, R^2 %.3f\n",
			grams.N, grams.Total, grams.Distinct, grams.Zipf.Alpha, grams.Zipf.R2)
		table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		for rank, g := range grams.Top {
			quoted := make([]string, len(g.Tokens))
			for i, token := range g.Tokens {
				quoted[i] = fmt.Sprintf("%q", token)
			}
			fmt.Fprintf(table, "%d\t%s\t%d\n", rank+1, strings.Join(quoted, " "), g.Count)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}
