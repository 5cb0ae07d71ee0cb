package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rondo/bench"
	"rondo/bench/internal/hosts"
	"rondo/bench/internal/trial"
	"rondo/internal/netns"
)

// lab is where jobs run: two hosts.
type lab struct {
	config
	folder string
	hosts  []*netns.Host // two
	jobs   int
	log    hosts.Notes // output of the processes
}

// measured is the times of a job's steps, in seconds: medians.
type measured struct {
	step, exposed, waiting float64
	share                  float64 // of a step that is exposed
	backward               float64
	gradient               int // bytes; 0: it did not travel in one piece
}

// train runs a job on both hosts.
func (l *lab) train(ctx context.Context, flags ...string) (measured, error) {
	l.jobs++
	traces := filepath.Join(l.folder, fmt.Sprintf("job-%d", l.jobs))
	job := hosts.Job{Rondo: l.rondo, Lead: l.hosts[0], Workers: l.hosts, Log: &l.log}
	r, err := job.Train(ctx, l.job(l.batch, traces, append(flags, "--workers", "2")...)...)
	return l.read(r, err, traces)
}

// alone runs a job of one worker on each host at the same time, with the lanes that it has in a job
// of both, and returns the means.
func (l *lab) alone(ctx context.Context) (mean measured, err error) {
	l.jobs++
	each := make([]measured, len(l.hosts))
	mean.step, err = hosts.AtOnce(ctx, len(l.hosts), func(ctx context.Context, i int) (
		float64, error) {
		traces := filepath.Join(l.folder, fmt.Sprintf("alone-%d-%d", l.jobs, i))
		r, err := trial.Run(ctx, &l.log, l.hosts[i].Command(l.job(l.batch/len(l.hosts), traces,
			"--workers", "1"))...)
		each[i], err = l.read(r, err, traces)
		return each[i].step, err
	})
	for _, m := range each {
		mean.backward += m.backward / float64(len(each))
	}
	return mean, err
}

// job returns the command line of a job with this many lanes.
func (l *lab) job(lanes int, traces string, more ...string) []string {
	return append([]string{l.rondo, "train", "--json", "--device", "cpu",
		"--threads", "1", "--cell", "lstm", "--layers", strconv.Itoa(l.layers),
		"--hidden", strconv.Itoa(l.hidden), "--batch", strconv.Itoa(lanes),
		"--bptt", strconv.Itoa(l.bptt), "--steps", strconv.Itoa(l.steps), "--epochs", "1000",
		"--optimizer", "sgd", "--lr", "0.1", "--lr-schedule", "constant", "--dropout", "0",
		"--validation-fraction", "0", "--check-every", "0", "--sample-tokens", "0",
		"--checkpoint-dir", "none", "--dashboard", "off", "--trace", traces}, more...)
}

// read returns the medians of a job's events and of its workers' traces. The first quarter of the
// steps does not count.
func (l *lab) read(r trial.Result, failed error, traces string) (m measured, err error) {
	if failed != nil {
		return m, fmt.Errorf("%w\n%s", failed, l.log.String())
	}
	if len(r.Timings) != l.steps {
		return m, fmt.Errorf("the job has reported %d steps, want %d", len(r.Timings), l.steps)
	}
	var steps, exposed, waiting, share []float64
	for _, t := range r.Timings[l.steps/4:] {
		step := t.Compute + t.Exposed
		steps, share = append(steps, step), append(share, t.Exposed/step)
		exposed, waiting = append(exposed, t.Exposed), append(waiting, t.Waiting)
	}
	m = measured{step: bench.Median(steps), exposed: bench.Median(exposed),
		waiting: bench.Median(waiting), share: bench.Median(share)}
	return m, l.readTraces(traces, &m)
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
	m.backward = bench.Median(backward)
	return nil
}
