package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"rondo/bench/internal/side"
	"rondo/bench/internal/trial"
	"rondo/internal/netns"
	"rondo/internal/procgroup"
)

// endTimeout is how long a process that was killed may take to be gone.
const endTimeout = 30 * time.Second

// job is the command line of a job with so many workers and lanes.
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

// atOnce runs a function for each of n, all at once, and returns the mean of what they return. The
// first that fails ends the others.
func atOnce(ctx context.Context, n int, f func(ctx context.Context, i int) (float64, error)) (
	float64, error,
) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	values, errs := make([]float64, n), make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			if values[i], errs[i] = f(ctx, i); errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	sum := 0.0
	for i, v := range values {
		// What was cancelled came of another's failure.
		if errs[i] != nil && !errors.Is(errs[i], context.Canceled) {
			return 0, errs[i]
		}
		sum += v
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return sum / float64(n), nil
}

// rondoAlone returns the seconds of a step of jobs of one worker, as many at once as there are
// hosts.
func (c config) rondoAlone(
	ctx context.Context, workers []*netns.Host, log io.Writer,
) (float64, error) {
	return atOnce(ctx, len(workers), func(ctx context.Context, i int) (float64, error) {
		r, err := trial.Run(ctx, log, workers[i].Command(c.pinned(i, c.job(1, c.Batch)))...)
		return float64(c.Batch*c.BPTT) / r.TokensPerSecond, err
	})
}

// rondoTogether returns the seconds of a step of one job with a worker on each host, and with more
// flags.
func (c config) rondoTogether(
	ctx context.Context, workers []*netns.Host, lead *netns.Host, log io.Writer, more ...string,
) (seconds float64, err error) {
	data, err := os.MkdirTemp("", "rondo-scaling-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	const name = "scaling"
	etcd := lead.Address + ":2379"
	end, err := start(log, lead.Command([]string{c.Rondo, "etcd", "--name", name, "--peers",
		name + "=" + lead.Address + ":2380", "--listen", lead.Address, "--data", data}))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	where := []string{"--etcd", etcd, "--job", name}
	for i, h := range workers {
		end, err := start(log, h.Command(c.pinned(i,
			append([]string{c.Rondo, "worker"}, where...))))
		if err != nil {
			return 0, err
		}
		defer func() { _ = end() }() // it has ended with the job, or is killed
	}
	r, err := trial.Run(ctx, log, lead.Command(c.job(len(workers), c.Batch*len(workers),
		append(append(where, "--local-workers", "0"), more...)...))...)
	return c.tokens() / r.TokensPerSecond, err
}

// start starts a daemon, which the kernel ends with the thread that started it, and so with this
// program; end kills it and waits for that.
func start(log io.Writer, argv []string) (end func() error, err error) {
	d := exec.Command(argv[0], argv[1:]...)
	procgroup.Bind(d, syscall.SIGKILL)
	d.Stderr, d.WaitDelay = log, endTimeout
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // until the daemon has ended
		defer runtime.UnlockOSThread()
		err := d.Start()
		started <- err
		if err == nil {
			_ = d.Wait() // it is killed, or has ended by itself with what the job says
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() error {
		_ = procgroup.Signal(d.Process.Pid, syscall.SIGKILL) // it may have ended
		timer := time.NewTimer(endTimeout)
		defer timer.Stop()
		select {
		case <-ended:
			return nil
		case <-timer.C:
			return fmt.Errorf("%v does not end", argv)
		}
	}, nil
}

// torchRow is what a rank of PyTorch prints.
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
	return atOnce(ctx, len(workers), func(ctx context.Context, i int) (float64, error) {
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
