package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"rondo/bench"
	"rondo/internal/port"
)

// event has the members of a job's events that count here. A loss that is not finite is null.
type event struct {
	Event           string   `json:"event"`
	Rank            int      `json:"rank"`
	Device          string   `json:"device"`
	Step            int64    `json:"step"`
	Loss            *float64 `json:"loss"`
	TokensPerSecond float64  `json:"tokens_per_second"`
}

// curve compares a job's loss with that of the same job on the CPU.
type curve struct {
	Name      string         `json:"name"`
	Devices   []string       `json:"devices"`
	Losses    []bench.Figure `json:"losses"`
	Farthest  bench.Figure   `json:"farthest"`  // |loss - CPU's| / CPU's, the most of all steps
	Tolerance bench.Figure   `json:"tolerance"` // of Farthest
	Rate      float64        `json:"tokens_per_second"`
}

func (c curve) String() string {
	first, last := bench.Figure(math.NaN()), bench.Figure(math.NaN())
	if n := len(c.Losses); n > 0 {
		first, last = c.Losses[0], c.Losses[n-1]
	}
	return fmt.Sprintf("%-26s loss %.4f to %.4f in %d steps, farthest from the CPU's %.2g (%.2g "+
		"allowed), %.0f tokens/s; %s", c.Name, first, last, len(c.Losses), c.Farthest, c.Tolerance,
		c.Rate, strings.Join(c.Devices, ", "))
}

// jobSteps is long enough for a wrong gradient to show, and short enough for rounding not to.
const jobSteps = 120

// steps is how many a job takes.
func (s *session) steps() int {
	if s.Emulated {
		return jobSteps / 6
	}
	return jobSteps
}

// Tolerances of Farthest. Each sum rounds differently. With 16-bit numbers and tf32 the operands of
// hundreds of products are rounded, to 2^-9 to 2^-11, and the errors cancel in part.
const (
	tolerance32   = 0.002
	toleranceHalf = 0.05
)

// jobFlags are the flags that all jobs share.
func (s *session) jobFlags(cell string) []string {
	sizes := "--hidden 128 --batch 16 --bptt 32 "
	if s.Emulated {
		sizes = "--hidden 16 --batch 4 --bptt 8 "
	}
	return strings.Fields("--json --workers 2 " + sizes + "--embed 0 --layers 1 --dropout 0 " +
		"--lr-schedule constant --validation-fraction 0 --optimizer sgd --lr 1 --clip 1 " +
		"--seed 7 --resume never --sample-tokens 0 --check-every 10 --checkpoint-dir none " +
		"--dashboard off --steps " + strconv.Itoa(s.steps()) + " --cell " + cell)
}

// pair trains a job of two workers that share the GPU, and compares its losses with the CPU's.
func pair(ctx context.Context, s *session) (string, error) {
	err := s.beside(ctx, "lstm", "fp32", "bf16")
	return fmt.Sprintf("%d jobs of %d steps", len(s.results.Curves), s.steps()), err
}

// curves trains jobs of two workers on the CPU, on one GPU that both share, and on one of each, and
// compares their losses step by step.
func curves(ctx context.Context, s *session) (string, error) {
	errs := []error{s.beside(ctx, "lstm", "fp32", "tf32", "bf16", "fp16"),
		s.beside(ctx, "gru", "fp32")}
	if len(s.results.Curves) == 0 {
		return "", errors.Join(errs...)
	}
	c, err := s.mixed(ctx)
	errs = append(errs, err, s.compare(c, s.results.Curves[0], err))
	return fmt.Sprintf("%d jobs of %d steps", len(s.results.Curves), s.steps()),
		errors.Join(errs...)
}

// beside trains a cell on the CPU, and on the GPU in these precisions.
func (s *session) beside(ctx context.Context, cell string, precisions ...string) error {
	reference, err := s.job(ctx, "cpu "+cell, s.jobFlags(cell), "--device", "cpu")
	if err != nil {
		return err
	}
	s.results.Curves = append(s.results.Curves, reference)
	var errs []error
	for _, precision := range precisions {
		c, err := s.job(ctx, "gpu "+cell+" "+precision, s.jobFlags(cell), "--device", "cuda:0",
			"--precision", precision)
		errs = append(errs, err, s.compare(c, reference, err))
	}
	return errors.Join(errs...)
}

// kill kills a worker on the GPU with SIGKILL and returns how long the job stood still: until
// another worker has started, opened its GPU and received the state.
func kill(ctx context.Context, s *session) (string, error) {
	steps := s.steps()
	command := append([]string{s.program("rondo"), "train"}, s.jobFlags("lstm")...)
	command = append(command, "--device", "cuda:0", "--chunk-timeout", "5s", "--inject",
		fmt.Sprintf("kill rank=1 step=%d phase=all-gather", steps/2))
	var text timed
	err := s.into(ctx, &text, "kill", command...)
	lines := text.lines
	events, err := decode[event](&text, err)
	if err != nil {
		return "", err
	}
	longest, last, taken, rings := time.Duration(0), time.Time{}, int64(0), 0
	for i, e := range events {
		if e.Event == "generation" {
			rings++
		}
		if e.Event != "step" || i >= len(lines) {
			continue
		}
		if !last.IsZero() {
			longest = max(longest, lines[i].Sub(last))
		}
		last, taken = lines[i], e.Step
	}
	if taken != int64(steps) {
		return "", fmt.Errorf("the last step is %d, want %d", taken, steps)
	}
	if rings < 2 {
		return "", fmt.Errorf("%d rings: no worker was killed", rings)
	}
	return fmt.Sprintf("the longest time between two steps, with the kill: %v", longest), nil
}

// compare notes a curve, and says if it is too far from the CPU's.
func (s *session) compare(c, reference curve, failed error) error {
	if failed != nil {
		return nil // it has been said
	}
	c.Tolerance = toleranceHalf
	if !strings.HasSuffix(c.Name, "16") && !strings.HasSuffix(c.Name, "tf32") {
		c.Tolerance = tolerance32
	}
	c.Farthest = farthest(c.Losses, reference.Losses)
	s.results.Curves = append(s.results.Curves, c)
	fmt.Fprintln(s.out, c)
	if !(c.Farthest <= c.Tolerance) { // so that NaN fails
		return fmt.Errorf("%s: its loss is %.2g of the CPU's away from it; %.2g is allowed", c.Name,
			c.Farthest, c.Tolerance)
	}
	return nil
}

// farthest is the largest relative difference of two curves, NaN if one has more steps.
func farthest(a, b []bench.Figure) bench.Figure {
	if len(a) != len(b) || len(a) == 0 {
		return bench.Figure(math.NaN())
	}
	most := 0.0
	for i := range a {
		d := math.Abs(float64((a[i] - b[i]) / b[i]))
		if math.IsNaN(d) {
			return bench.Figure(d)
		}
		most = max(most, d)
	}
	return bench.Figure(most)
}

// jobLimit bounds one job: the GPU's driver may have to compile the kernels first.
const jobLimit = 40 * time.Second

// job trains one.
func (s *session) job(ctx context.Context, name string, flags []string, more ...string) (
	curve, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, jobLimit,
		fmt.Errorf("%s: it took longer than %v", name, jobLimit))
	defer cancel()
	command := append([]string{s.program("rondo"), "train"}, flags...)
	events, err := objects[event](ctx, s, "train-"+strings.ReplaceAll(name, " ", "-"),
		append(command, more...)...)
	c := read(name, events)
	if err == nil && len(c.Losses) != s.steps() {
		err = fmt.Errorf("%s: %d steps, want %d", name, len(c.Losses), s.steps())
	}
	return c, err
}

// read makes a curve of a job's events.
func read(name string, events []event) curve {
	c := curve{Name: name}
	for _, e := range events {
		switch e.Event {
		case "worker":
			c.Devices = append(c.Devices, e.Device)
		case "step":
			loss := math.NaN()
			if e.Loss != nil {
				loss = *e.Loss
			}
			c.Losses = append(c.Losses, bench.Figure(loss))
		case "done":
			c.Rate = e.TokensPerSecond
		}
	}
	return c
}

// mixed trains a job of two workers, one on the CPU and one on a GPU, which meet in an etcd.
func (s *session) mixed(ctx context.Context) (curve, error) {
	const name = "cpu and gpu lstm"
	var ports [3]*port.Port // of etcd's clients, its peers and its health
	for i := range ports {
		var err error
		if ports[i], err = port.Reserve(); err != nil {
			return curve{}, err
		}
		defer func() { _ = ports[i].Close() }()
	}
	folder, err := os.MkdirTemp("", "rondo-etcd-")
	if err != nil {
		return curve{}, err
	}
	defer os.RemoveAll(folder)
	endpoint := ports[0].Address()
	ctx, cancel := context.WithCancel(ctx)
	var both sync.WaitGroup
	beside := func(log string, command ...string) {
		both.Go(func() {
			_, _ = s.output(ctx, log, command...) // its log has the error, which ends the job
		})
	}
	defer both.Wait()
	defer cancel()
	beside("train-mixed-etcd", s.program("rondo"), "etcd", "--name", "a", "--peers",
		"a="+ports[1].Address(), "--listen", "127.0.0.1", "--client-port",
		strconv.Itoa(ports[0].Number()), "--health", ports[2].Address(), "--data",
		filepath.Join(folder, "a"))
	beside("train-mixed-worker", s.program("rondo"), "worker", "--etcd", endpoint, "--job", "mixed",
		"--device", "cuda:0", "--listen", "127.0.0.1:0")
	return s.job(ctx, name, s.jobFlags("lstm"), "--device", "cpu", "--job", "mixed", "--etcd",
		endpoint, "--local-workers", "1")
}
