package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"rondo/bench/internal/trial"
)

// bookEpochs is how long the book trains.
const bookEpochs = 500

type config struct {
	Rondo     string   // the program
	Corpus    string   // its --corpus
	Only      string   // part of a case's name; empty: all
	Epochs    int      // of every case
	Workers   int      // of every case
	Precision string   // of every case
	Extra     []string // more flags for all cases
}

// A textCase is a model and how well it must learn its corpus by heart.
type textCase struct {
	name  string
	flags string
	limit float64 // of the last epoch's training perplexity, inclusive
}

// cases leave some room above the perplexities of PyTorch with the same settings on The Time
// Machine.
func cases() []textCase {
	return []textCase{
		{"GRU", "--cell gru --sampling sequential", 1.06},
		{"LSTM", "--cell lstm --sampling sequential", 1.06},
		{"LSTM, 2 layers, lr 2", "--cell lstm --sampling sequential --layers 2 --lr 2", 1.05},
		{"RNN", "--cell rnn --sampling sequential", 1.40},
		{"GRU, random", "--cell gru --sampling random", 1.40},
		{"LSTM, random", "--cell lstm --sampling random", 1.50},
	}
}

// bookFlags are the flags that all cases share: the 28 symbols of the book's first 10,000
// characters.
const bookFlags = "--normalize letters --tokenizer char --max-tokens 10000 --embed 0 " +
	"--hidden 256 --layers 1 --init uniform --batch 32 --bptt 35 --optimizer sgd --lr 1 " +
	"--dropout 0 --lr-schedule constant --validation-fraction 0 " +
	"--clip 1 --sample-tokens 60 --sample-temperature 0 --resume never"

// prefix is the text that the trained models continue.
const prefix = "time traveller"

// command is the command line of a case. A flag that comes again replaces the first.
func (c config) command(t textCase) []string {
	line := []string{c.Rondo, "train", "--json", "--corpus", c.Corpus,
		"--epochs", strconv.Itoa(c.Epochs), "--workers", strconv.Itoa(c.Workers),
		"--precision", c.Precision, "--sample-prefix", prefix,
		"--checkpoint-dir", "none", "--dashboard", "off"}
	line = append(line, strings.Fields(bookFlags)...)
	line = append(line, strings.Fields(t.flags)...)
	return append(line, c.Extra...)
}

// run trains every case, one after the other, and prints a row for each. It fails if a case does.
func run(ctx context.Context, c config, out, log io.Writer) error {
	failed, ran := 0, 0
	for _, t := range cases() {
		if !strings.Contains(t.name, c.Only) {
			continue
		}
		if ran++; ran == 1 {
			fmt.Fprintf(out, "%-22s %10s %6s %-5s %10s  %s\n",
				"case", "perplexity", "limit", "", "tokens/s", "continuation of "+prefix)
		}
		result, err := trial.Run(ctx, log, c.command(t)...)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		verdict := "pass"
		if !(result.Perplexity <= t.limit) { // so that NaN fails
			verdict = "FAIL"
			failed++
		}
		fmt.Fprintf(out, "%-22s %10.3f %6.2f %-5s %10.0f  %q\n", t.name, result.Perplexity,
			t.limit, verdict, result.TokensPerSecond, continuation(result.Sample))
	}
	switch {
	case ran == 0:
		return fmt.Errorf("no case has %q in its name", c.Only)
	case failed > 0:
		return fmt.Errorf("%d of %d cases are above their limit", failed, ran)
	}
	return nil
}

// continuation is the sample after its prefix.
func continuation(sample string) string { return strings.TrimPrefix(sample, prefix) }
