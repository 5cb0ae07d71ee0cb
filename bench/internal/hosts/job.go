package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"rondo/bench/internal/trial"
	"rondo/internal/netns"
	"rondo/internal/procgroup"
)

// endTimeout is how long a process that was killed may take to be gone.
const endTimeout = 30 * time.Second

// Job is a job of real processes: an etcd and the coordinator on Lead, and a worker on each host of
// Workers.
type Job struct {
	Rondo   string // the program
	Lead    *netns.Host
	Workers []*netns.Host
	Pinned  func(worker int, argv []string) []string // nil: the system moves workers about
	Log     io.Writer                                // of all processes
}

// Train runs a command line of `rondo train` as the job, and returns its result.
func (j Job) Train(ctx context.Context, train ...string) (r trial.Result, err error) {
	data, err := os.MkdirTemp("", "rondo-hosts-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	const name = "bench"
	end, err := start(j.Log, j.Lead.Command([]string{j.Rondo, "etcd", "--name", name, "--peers",
		name + "=" + j.Lead.Address + ":2380", "--listen", j.Lead.Address, "--data", data,
		"--insecure"}))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	where := []string{"--etcd", j.Lead.Address + ":2379", "--job", name, "--insecure"}
	for i, h := range j.Workers {
		argv := append([]string{j.Rondo, "worker", "--allow-path=/"}, where...)
		if j.Pinned != nil {
			argv = j.Pinned(i, argv)
		}
		end, err := start(j.Log, h.Command(argv))
		if err != nil {
			return r, err
		}
		defer func() { _ = end() }() // it has ended with the job, or is killed
	}
	train = append(append(train, where...), "--local-workers", "0")
	return trial.Run(ctx, j.Log, j.Lead.Command(train)...)
}

// AtOnce runs f for each of n at the same time, and returns the mean of their results. The first
// error ends the others.
func AtOnce(ctx context.Context, n int, f func(ctx context.Context, i int) (float64, error)) (
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
		// A cancelled one ended because of another's failure.
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
			_ = d.Wait() // it was killed, or ended by itself; the job's output says why
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
