package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"rondo/bench/internal/trial"
)

type config struct {
	Rondo    string  // the program
	Corpus   string  // its --corpus
	Only     string  // part of a case; empty: all
	Steps    int     // of every case
	Workers  int     // of every case
	Limit    float64 // of the loss above fp32's, as a share of that
	Counters string  // the file in which the kernel counts
	Extra    []string
}

// optimizers are the rules that each way is trained with. Of the rates 0.5, 1 and 2, and of 0.002
// to 0.016, these end best without a way.
func optimizers() []string {
	return []string{"--optimizer momentum --lr 2", "--optimizer adam --lr 0.008"}
}

// ways returns the flags of each way of sending gradients. The others are compared with the first.
func ways() []string {
	return []string{"--wire fp32", "--wire bf16", "--wire bf16 --error-feedback", "--wire fp16",
		"--compress topk:0.1", "--compress topk:0.01", "--compress powersgd:4",
		"--compress powersgd:8"}
}

// shared are the flags of all cases. Chunks go over TCP, so that the kernel counts them.
const shared = "--tokenizer char --cell lstm --hidden 128 --layers 1 --dropout 0 " +
	"--batch 32 --bptt 35 --seed 1 " +
	"--lr-schedule linear --warmup-steps 50 --epochs 0 --threads 1 " +
	"--validation-fraction 0.05 --check-every 0 --sample-tokens 0 --link tcp --resume never"

// command is the command line of a case. A flag that comes again replaces the first.
func (c config) command(flags string) []string {
	line := []string{c.Rondo, "train", "--json", "--corpus", c.Corpus,
		"--steps", strconv.Itoa(c.Steps), "--workers", strconv.Itoa(c.Workers),
		"--checkpoint-dir", "none", "--dashboard", "off"}
	line = append(line, strings.Fields(shared)...)
	line = append(line, strings.Fields(flags)...)
	return append(line, c.Extra...)
}

// outcome is the result of a case.
type outcome struct {
	trial.Result
	bytes float64 // a step
}

// run trains every case, one after the other, and prints a row for each. It fails if a case ends
// above the limit.
func run(ctx context.Context, c config, out, log io.Writer) error {
	failed := 0
	for _, optimizer := range optimizers() {
		fmt.Fprintf(out, "%-30s %8s %8s %13s %7s %9s  within %g%%\n", optimizer, "loss", "beside",
			"bytes a step", "fewer", "tokens/s", 100*c.Limit)
		var base outcome
		for i, flags := range ways() {
			if i > 0 && !strings.Contains(optimizer+" "+flags, c.Only) {
				continue
			}
			got, err := c.train(ctx, optimizer+" "+flags, log)
			if err != nil {
				return err
			}
			if i == 0 {
				base = got
			}
			ratio := got.EvalLoss / base.EvalLoss
			verdict := "yes"
			if !(ratio <= 1+c.Limit) { // so that NaN fails
				verdict = "no"
				failed++
			}
			fmt.Fprintf(out, "%-30s %8.4f %+7.2f%% %13.0f %6.1fx %9.0f  %s\n", flags,
				got.EvalLoss, 100*(ratio-1), got.bytes, base.bytes/got.bytes, got.TokensPerSecond,
				verdict)
		}
	}
	if failed > 0 {
		return fmt.Errorf("cases that end more than %g%% above float32: %d", 100*c.Limit, failed)
	}
	return nil
}

// train runs a case and counts the bytes that it sends.
func (c config) train(ctx context.Context, flags string, log io.Writer) (outcome, error) {
	before, err := sent(c.Counters)
	if err != nil {
		return outcome{}, err
	}
	result, err := trial.Run(ctx, log, c.command(flags)...)
	if err != nil {
		return outcome{}, fmt.Errorf("%s: %w", flags, err)
	}
	after, err := sent(c.Counters)
	return outcome{result, float64(after-before) / float64(result.Steps)}, err
}

// sent is how many bytes have been sent over the loopback interface since it came up: the second
// group of numbers in its row.
func sent(counters string) (uint64, error) {
	text, err := os.ReadFile(counters)
	if err != nil {
		return 0, err
	}
	const column = 8 // bytes sent: it follows the eight counters of received data
	for row := range strings.Lines(string(text)) {
		name, counts, _ := strings.Cut(row, ":")
		if fields := strings.Fields(counts); strings.TrimSpace(name) == "lo" &&
			len(fields) > column {
			return strconv.ParseUint(fields[column], 10, 64)
		}
	}
	return 0, errors.New(counters + " has no row of the loopback interface")
}
