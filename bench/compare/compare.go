package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"rondo/bench/internal/trial"
)

// vocabulary is how many tokens --normalize letters gives: 26 letters, space and <unk>.
const vocabulary = 28

type config struct {
	Rondo, Python, Script string
	Cells, Peers, Cores   string
	Threads               int
	Hidden, Layers        int
	Batch, BPTT           int
	Steps, Rounds         int
	AtLeast               float64 // 0: any ratio will do
}

// A side is a program that trains a cell and tells how fast.
type side struct {
	name string
	rate func(ctx context.Context, cell string) (float64, error)
}

// sides returns Rondo first, then PyTorch under each of its settings.
func (c config) sides(log io.Writer) ([]side, error) {
	all := []side{{"rondo", func(ctx context.Context, cell string) (float64, error) {
		result, err := trial.Run(ctx, log, c.rondoCommand(cell)...)
		return result.TokensPerSecond, err
	}}}
	for setting := range strings.SplitSeq(c.Peers, ";") {
		dtype, compile, options := cutSetting(setting)
		if !options {
			return nil, fmt.Errorf("-peers: %q is not float32 or bfloat16, alone or with +compile",
				setting)
		}
		all = append(all, side{"torch " + setting,
			func(ctx context.Context, cell string) (float64, error) {
				return peerRate(ctx, log, c.peerCommand(cell, dtype, compile))
			}})
	}
	return all, nil
}

func cutSetting(setting string) (dtype string, compile, ok bool) {
	dtype, compile = strings.CutSuffix(setting, "+compile")
	return dtype, compile, dtype == "float32" || dtype == "bfloat16"
}

// shape is the flags that both sides have under the same names.
func (c config) shape(cell string) []string {
	return []string{"--cell", cell, "--hidden", strconv.Itoa(c.Hidden),
		"--layers", strconv.Itoa(c.Layers), "--embed", "0", "--batch", strconv.Itoa(c.Batch),
		"--bptt", strconv.Itoa(c.BPTT), "--threads", strconv.Itoa(c.Threads)}
}

// pinned runs a command on the cores.
func (c config) pinned(command ...string) []string {
	return append([]string{"taskset", "--cpu-list", c.Cores}, command...)
}

func (c config) rondoCommand(cell string) []string {
	line := c.pinned(c.Rondo, "train", "--json", "--workers", "1", "--normalize", "letters",
		"--optimizer", "sgd", "--lr", "0.1", "--clip", "1", "--steps", strconv.Itoa(c.Steps),
		"--sample-tokens", "0", "--resume", "never", "--device", "cpu")
	return append(line, c.shape(cell)...)
}

func (c config) peerCommand(cell, dtype string, compile bool) []string {
	line := c.pinned(c.Python, c.Script, "--dtype", dtype, "--vocab", strconv.Itoa(vocabulary))
	line = append(line, c.shape(cell)...)
	if compile {
		line = append(line, "--compile")
	}
	return line
}

// peerRate runs a peer's script and returns the rate in the JSON object that it prints.
func peerRate(ctx context.Context, log io.Writer, command []string) (float64, error) {
	job := exec.CommandContext(ctx, command[0], command[1:]...)
	job.Stderr = log
	output, err := job.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	var report struct {
		TokensPerSecond float64 `json:"tokens_per_second"`
	}
	if err := json.Unmarshal(output, &report); err != nil || report.TokensPerSecond <= 0 {
		return 0, fmt.Errorf("%s: no tokens_per_second in %q", strings.Join(command, " "), output)
	}
	return report.TokensPerSecond, nil
}

// run lets the sides take turns on every cell and prints a row for each side and cell. It fails if
// Rondo is not config.AtLeast times as fast as PyTorch under its best setting.
func run(ctx context.Context, c config, out, log io.Writer) error {
	if c.Rounds < 1 {
		return errors.New("-rounds: give at least 1")
	}
	all, err := c.sides(log)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "hidden %d, layers %d, batch %d, bptt %d, vocabulary %d, one-hot; "+
		"cores %s, %d threads; medians of %d turns\n\n",
		c.Hidden, c.Layers, c.Batch, c.BPTT, vocabulary, c.Cores, c.Threads, c.Rounds)
	fmt.Fprintf(out, "%-8s %-24s %10s %10s %10s %8s\n",
		"cell", "", "tokens/s", "lowest", "highest", "rondo is")
	var slow []string
	for cell := range strings.SplitSeq(c.Cells, ",") {
		rates, err := turns(ctx, all, cell, c.Rounds)
		if err != nil {
			return err
		}
		if ratio := printCell(out, cell, all, rates); ratio < c.AtLeast {
			slow = append(slow, fmt.Sprintf("%s %.2fx", cell, ratio))
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("below %.2fx of PyTorch's best: %s", c.AtLeast, strings.Join(slow, ", "))
	}
	return nil
}

// turns returns each side's rates, sorted. The sides alternate, so that whatever else the machine
// does touches all of them.
func turns(ctx context.Context, all []side, cell string, rounds int) ([][]float64, error) {
	rates := make([][]float64, len(all))
	for range rounds {
		for i, s := range all {
			rate, err := s.rate(ctx, cell)
			if err != nil {
				return nil, err
			}
			rates[i] = append(rates[i], rate)
		}
	}
	for i := range rates {
		slices.Sort(rates[i])
	}
	return rates, nil
}

// printCell prints a row for each side and returns Rondo's median over the best peer's.
func printCell(out io.Writer, cell string, all []side, rates [][]float64) float64 {
	rondo, best := median(rates[0]), 0.0
	for i, s := range all {
		ratio := ""
		if i > 0 {
			best = max(best, median(rates[i]))
			ratio = fmt.Sprintf("%.2fx", rondo/median(rates[i]))
		}
		fmt.Fprintf(out, "%-8s %-24s %10.0f %10.0f %10.0f %8s\n", cell, s.name, median(rates[i]),
			rates[i][0], rates[i][len(rates[i])-1], ratio)
	}
	return rondo / best
}

// median of sorted values, of which there is at least one.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
