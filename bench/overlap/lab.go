package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"rondo/bench/internal/hosts"
	"rondo/internal/netns"
	"rondo/internal/procgroup"
)

// stopTimeout is how long a process may take to end when it is asked to.
const stopTimeout = 20 * time.Second

// lab is where jobs run: two hosts, and an etcd on the first.
type lab struct {
	config
	folder string
	hosts  []*netns.Host // two
	jobs   int
	log    hosts.Notes // what the processes of the sum alone write
}

// measured is what a job's steps took, in seconds: medians.
type measured struct {
	step, exposed, waiting float64
	share                  float64 // of a step that is exposed
	backward               float64
	gradient               int // bytes; 0: it did not travel in one piece
}

// command is rondo's on a host, to be started by a goroutine that has its thread for as long as
// the command runs.
func (l *lab) command(ctx context.Context, host int, args ...string) *exec.Cmd {
	argv := l.hosts[host].Command(append([]string{l.rondo}, args...))
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	// The kernel ends it with the thread that starts it, so that nothing is left if this is killed.
	procgroup.Bind(c, syscall.SIGTERM)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = stopTimeout
	return c
}

// endpoint is where the etcd is.
func (l *lab) endpoint() string { return l.hosts[0].Address + ":2379" }

// store starts the etcd. stop ends it.
func (l *lab) store(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := l.command(ctx, 0, "etcd", "--name", "one", "--peers", "one="+l.hosts[0].Address+":2380",
		"--data", filepath.Join(l.folder, "etcd"))
	var log bytes.Buffer
	c.Stderr = &log
	if err := c.Start(); err != nil {
		cancel()
		return nil, err
	}
	return func() { cancel(); _ = c.Wait() }, nil
}

// train runs a job on both hosts and reads what it says.
func (l *lab) train(ctx context.Context, flags ...string) (measured, error) {
	l.jobs++
	job := fmt.Sprintf("overlap-%d", l.jobs)
	traces := filepath.Join(l.folder, job)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	worker := l.command(ctx, 1, "worker", "--etcd", l.endpoint(), "--job", job)
	var log bytes.Buffer
	worker.Stderr = &log
	if err := worker.Start(); err != nil {
		return measured{}, err
	}
	m, err := l.follow(l.job(ctx, 0, l.batch, traces, append([]string{"--etcd", l.endpoint(),
		"--job", job, "--workers", "2", "--local-workers", "1"}, flags...)...), traces)
	cancel()
	_ = worker.Wait() // it ends with its job, or is asked to
	if err != nil {
		return m, fmt.Errorf("%w\n%s", err, log.Bytes())
	}
	return m, nil
}

// alone runs a job of one worker on each host at the same time, with the lanes that it has in a job
// of both, and returns the means.
func (l *lab) alone(ctx context.Context) (mean measured, err error) {
	each, errs := make([]measured, len(l.hosts)), make([]error, len(l.hosts))
	var running sync.WaitGroup
	for i := range l.hosts {
		running.Go(func() {
			traces := filepath.Join(l.folder, fmt.Sprintf("alone-%d", i))
			each[i], errs[i] = l.follow(l.job(ctx, i, l.batch/len(l.hosts), traces, "--workers",
				"1"), traces)
		})
	}
	running.Wait()
	for _, m := range each {
		mean.step += m.step / float64(len(each))
		mean.backward += m.backward / float64(len(each))
	}
	return mean, errors.Join(errs...)
}

// job is the command line of a job with so many lanes on a host.
func (l *lab) job(ctx context.Context, host, lanes int, traces string, more ...string) *exec.Cmd {
	return l.command(ctx, host, append([]string{"train", "--json", "--device", "cpu",
		"--threads", "1", "--cell", "lstm", "--layers", strconv.Itoa(l.layers),
		"--hidden", strconv.Itoa(l.hidden), "--batch", strconv.Itoa(lanes),
		"--bptt", strconv.Itoa(l.bptt), "--steps", strconv.Itoa(l.steps), "--epochs", "1000",
		"--optimizer", "sgd", "--lr", "0.1", "--lr-schedule", "constant", "--dropout", "0",
		"--validation-fraction", "0", "--check-every", "0", "--sample-tokens", "0",
		"--checkpoint-dir", "none", "--dashboard", "off", "--trace", traces}, more...)...)
}

// follow runs a job to its end, and reads what it and its workers' traces say.
func (l *lab) follow(job *exec.Cmd, traces string) (measured, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var log bytes.Buffer
	job.Stderr = &log
	output, err := job.StdoutPipe()
	if err != nil {
		return measured{}, err
	}
	if err := job.Start(); err != nil {
		return measured{}, err
	}
	m, err := l.read(output)
	if err != nil {
		_, _ = io.Copy(io.Discard, output) // a job that nobody reads would wait for ever
	}
	if ended := job.Wait(); err == nil {
		err = ended
	}
	if err != nil {
		return m, fmt.Errorf("%w\n%s", err, log.Bytes())
	}
	err = l.readTraces(traces, &m)
	return m, err
}

// read reads a job's events.
func (l *lab) read(output io.Reader) (m measured, err error) {
	var steps, exposed, waiting, share []float64
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Event   string
			Step    int
			Compute float64 `json:"compute_seconds"`
			Exposed float64 `json:"exposed_seconds"`
			Waiting float64 `json:"waiting_seconds"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return m, err
		}
		if e.Event != "step" || e.Step <= l.steps/4 {
			continue
		}
		steps = append(steps, e.Compute+e.Exposed)
		exposed, waiting = append(exposed, e.Exposed), append(waiting, e.Waiting)
		share = append(share, e.Exposed/(e.Compute+e.Exposed))
	}
	if len(steps) == 0 {
		return m, errors.Join(errors.New("the job has told of no step"), lines.Err())
	}
	return measured{step: median(steps), exposed: median(exposed), waiting: median(waiting),
		share: median(share)}, lines.Err()
}

// readTraces reads the backward passes' times and the gradient's bytes, of the last buckets.
func (l *lab) readTraces(folder string, m *measured) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	var backward []float64
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var events []struct {
			Name string
			Dur  float64
		}
		if err := json.Unmarshal(text, &events); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		seen := 0
		for _, e := range events {
			if e.Name == "backward" {
				if seen++; seen > l.steps/4 {
					backward = append(backward, e.Dur/1e6)
				}
			}
			if kib, ok := strings.CutPrefix(e.Name, "bucket 1 of 1, "); ok {
				n, _ := strconv.Atoi(strings.TrimSuffix(kib, " KiB"))
				m.gradient = n * 1024
			}
		}
	}
	if len(backward) == 0 {
		return fmt.Errorf("%s: no backward pass is in the traces", folder)
	}
	m.backward = median(backward)
	return nil
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
