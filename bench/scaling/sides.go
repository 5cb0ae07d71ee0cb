package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"rondo/bench/internal/hosts"
	"rondo/bench/internal/side"
	"rondo/bench/internal/trial"
	"rondo/internal/netns"
)

// job returns the command line of a job with this many workers and lanes.
func (c config) job(workers, batch int, more ...string) []string {
	argv := []string{c.Rondo, "train", "--json", "--normalize", "letters", "--epochs", "0",
		"--sample-tokens", "0", "--device", "cpu", "--threads", "1",
		"--optimizer", "sgd", "--lr", "0.1", "--lr-schedule", "constant", "--dropout", "0",
		"--validation-fraction", "0",
		"--steps", fmt.Sprint(c.Steps), "--workers", fmt.Sprint(workers),
		"--cell", c.Cell, "--hidden", fmt.Sprint(c.Hidden), "--layers", fmt.Sprint(c.Layers),
		"--batch", fmt.Sprint(batch), "--bptt", fmt.Sprint(c.BPTT),
		"--checkpoint-dir", "none", "--dashboard", "off"}
	return append(append(argv, c.Flags...), more...)
}

// pinned is the command line that runs argv, of a worker, on its core.
func (c config) pinned(worker int, argv []string) []string {
	if c.Cores == "" {
		return argv
	}
	cores := strings.Split(c.Cores, ",")
	return append([]string{"taskset", "--cpu-list", cores[worker%len(cores)]}, argv...)
}

// rondoAlone returns the seconds of a step of jobs of one worker, as many at once as there are
// hosts.
func (c config) rondoAlone(
	ctx context.Context, workers []*netns.Host, log io.Writer,
) (float64, error) {
	return hosts.AtOnce(ctx, len(workers), func(ctx context.Context, i int) (float64, error) {
		r, err := trial.Run(ctx, log, workers[i].Command(c.pinned(i, c.job(1, c.Batch)))...)
		return float64(c.Batch*c.BPTT) / r.TokensPerSecond, err
	})
}

// rondoTogether returns the seconds of a step of one job with a worker on each host, and with more
// flags.
func (c config) rondoTogether(
	ctx context.Context, workers []*netns.Host, lead *netns.Host, log io.Writer, more ...string,
) (seconds float64, err error) {
	job := hosts.Job{Rondo: c.Rondo, Lead: lead, Workers: workers, Pinned: c.pinned, Log: log}
	r, err := job.Train(ctx, c.job(len(workers), c.Batch*len(workers), more...)...)
	return c.tokens() / r.TokensPerSecond, err
}

// torchRow is the output of a PyTorch rank.
type torchRow struct {
	StepSeconds float64 `json:"step_seconds"`
	Parameters  int     `json:"parameters"`
}

// torch returns the seconds of a step of PyTorch, a rank on each host.
func (c config) torch(
	ctx context.Context, workers []*netns.Host, alone bool, log io.Writer,
) (float64, error) {
	world := len(workers)
	if alone {
		world = 1
	}
	return hosts.AtOnce(ctx, len(workers), func(ctx context.Context, i int) (float64, error) {
		rank := i
		if alone {
			rank = 0
		}
		rows, err := side.Run[torchRow](ctx, workers[i].Command(c.pinned(i, []string{"env",
			fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", world),
			"MASTER_ADDR=" + workers[0].Address, "MASTER_PORT=29500", "GLOO_SOCKET_IFNAME=eth0",
			c.Python, c.Script, "--cell", c.Cell, "--hidden", fmt.Sprint(c.Hidden),
			"--layers", fmt.Sprint(c.Layers), "--vocab", fmt.Sprint(vocabulary),
			"--batch", fmt.Sprint(c.Batch), "--bptt", fmt.Sprint(c.BPTT),
			"--steps", fmt.Sprint(c.Steps)})), log)
		if err != nil {
			return 0, err
		}
		if len(rows) != 1 || !(rows[0].StepSeconds > 0) || 4*rows[0].Parameters != c.bytes() {
			return 0, fmt.Errorf("rank %d printed %+v, want one row of %d parameters", rank, rows,
				c.bytes()/4)
		}
		return rows[0].StepSeconds, nil
	})
}
