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

// cases are the ways, by their flags; the first is what the others are held against.
func cases() []string {
	return []string{"--wire fp32", "--wire bf16", "--wire bf16 --error-feedback", "--wire fp16",
		"--compress topk:0.1 --compress-after 300",
		"--compress topk:0.01 --compress-after 300",
		"--compress powersgd:4 --compress-after 300"}
}

// lossy are the cases that need not stay within the limit: they have no error feedback.
func lossy(flags string) bool {
	return flags == "--wire fp16"
}

// shared are the flags of all cases. Chunks go over TCP, so that the kernel counts them.
const shared = "--tokenizer char --cell lstm --hidden 256 --batch 32 --bptt 35 --seed 1 " +
	"--optimizer momentum --lr 0.5 --lr-schedule linear --warmup-steps 50 " +
	"--validation-fraction 0.05 --check-every 0 --sample-tokens 0 --intra-host grpc --resume never"

// command is the command line of a case. A flag that comes again replaces the first.
func (c config) command(flags string) []string {
	line := []string{c.Rondo, "train", "--json", "--corpus", c.Corpus,
		"--steps", strconv.Itoa(c.Steps), "--workers", strconv.Itoa(c.Workers)}
	line = append(line, strings.Fields(shared)...)
	line = append(line, strings.Fields(flags)...)
	return append(line, c.Extra...)
}

// run trains every case, one after the other, and prints a row for each. It fails if a case with
// error feedback, or of bfloat16, ends above the limit.
func run(ctx context.Context, c config, out, log io.Writer) error {
	fmt.Fprintf(out, "%-42s %8s %9s %12s %8s %10s\n", "", "loss", "beside", "bytes a step",
		"fewer", "tokens/s")
	var base trial.Result
	var baseBytes float64
	failed := 0
	for i, flags := range cases() {
		if i > 0 && !strings.Contains(flags, c.Only) {
			continue
		}
		before, err := sent(c.Counters)
		if err != nil {
			return err
		}
		result, err := trial.Run(ctx, log, c.command(flags)...)
		if err != nil {
			return fmt.Errorf("%s: %w", flags, err)
		}
		after, err := sent(c.Counters)
		if err != nil {
			return err
		}
		bytes := float64(after-before) / float64(result.Steps)
		if i == 0 {
			base, baseBytes = result, bytes
		}
		ratio := result.EvalLoss / base.EvalLoss
		verdict := ""
		if !lossy(flags) && !(ratio <= 1+c.Limit) { // so that NaN fails
			verdict = "  FAIL"
			failed++
		}
		fmt.Fprintf(out, "%-42s %8.4f %8.2f%% %12.0f %7.1fx %10.0f%s\n", flags, result.EvalLoss,
			100*(ratio-1), bytes, baseBytes/bytes, result.TokensPerSecond, verdict)
	}
	if failed > 0 {
		return fmt.Errorf("%d cases end more than %g%% above float32", failed, 100*c.Limit)
	}
	return nil
}

// sent is how many bytes have been sent over the loopback interface since it came up: the second
// group of numbers in its row.
func sent(counters string) (uint64, error) {
	text, err := os.ReadFile(counters)
	if err != nil {
		return 0, err
	}
	const column = 8 // bytes sent, behind the eight counters of what was received
	for row := range strings.Lines(string(text)) {
		name, counts, _ := strings.Cut(row, ":")
		if fields := strings.Fields(counts); strings.TrimSpace(name) == "lo" &&
			len(fields) > column {
			return strconv.ParseUint(fields[column], 10, 64)
		}
	}
	return 0, errors.New(counters + " has no row of the loopback interface")
}
