package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"rondo/bench/busbw"
	"rondo/bench/internal/hosts"
	"rondo/internal/netns"
)

// config is the flags of a measurement.
type config struct {
	rondo                       string // the program
	layers, hidden, batch, bptt int
	steps                       int
	share                       float64 // of backward alone that the sum alone takes
	most                        float64 // of a step that may be exposed
}

// run measures and prints the result.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.rondo, err = filepath.Abs(c.rondo); err != nil {
		return err
	}
	if c.steps < 12 || !(c.share > 0) || c.batch < 2 || c.batch%2 > 0 {
		return errors.New("-steps must be at least 12, -share above 0, and -batch even")
	}
	folder, err := os.MkdirTemp("", "rondo-overlap-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	return hosts.Run(2, func(all []*netns.Host) error {
		l := lab{config: c, folder: folder, hosts: all}
		return l.measure(ctx, out)
	})
}

const onePiece = "--bucket-bytes=1099511627776"

// The search for the links' rate: the number of tries, how near the sum's time must come to the
// wanted one, and how long sums are measured each time.
const (
	tries     = 8
	tolerance = 0.02
	window    = 2 * time.Second
)

// links are shaped links, and the time that the gradient's sum alone takes over them.
type links struct {
	kilobits int
	sum      float64 // seconds
}

// shape finds the rate at which the sum of bytes, alone, takes seconds, and leaves the links at it.
func (l *lab) shape(ctx context.Context, bytes int, seconds float64) (at links, err error) {
	// Of two ranks each sends as many bytes as there are.
	at.kilobits = int(float64(bytes) * 8 / 1000 / seconds)
	for range tries {
		if err := hosts.ShapeKilobits(l.hosts, at.kilobits); err != nil {
			return at, err
		}
		err := hosts.AllReduce(ctx, l.rondo, l.hosts, []int{bytes}, window, &l.log,
			func(r busbw.Row) error {
				at.sum = r.MS / 1e3
				return nil
			})
		if err != nil {
			return at, fmt.Errorf("%w\n%s", err, l.log.String())
		}
		if math.Abs(at.sum/seconds-1) <= tolerance {
			return at, nil
		}
		at.kilobits = int(float64(at.kilobits) * at.sum / seconds)
	}
	return at, fmt.Errorf("no rate was found at which the sum takes %.1f ms: the last took %.1f",
		1e3*seconds, 1e3*at.sum)
}

// measure does the runs.
func (l *lab) measure(ctx context.Context, out io.Writer) error {
	alone, err := l.alone(ctx)
	if err != nil {
		return fmt.Errorf("workers with nobody to sum with: %w", err)
	}
	free, err := l.train(ctx, "--clip-scope", "global", onePiece)
	if err != nil {
		return fmt.Errorf("one piece on links as they are: %w", err)
	}
	at, err := l.shape(ctx, free.gradient, l.share*alone.backward)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d layers of %d, %d lanes, %d tokens, 1 thread a worker: a gradient of %.1f "+
		"MB\nalone, two workers compute a step in %.1f ms, backward in %.1f ms of it; the sum "+
		"alone takes %.1f ms over links of %.1f Mbit/s: %.0f%% of backward\n\n"+
		"%-22s %8s %9s %9s %9s %9s %9s %9s\n", l.layers, l.hidden, l.batch, l.bptt,
		float64(free.gradient)/1e6, 1e3*alone.step, 1e3*alone.backward, 1e3*at.sum,
		float64(at.kilobits)/1e3, 100*at.sum/alone.backward, "ms", "step", "backward",
		"sum/back", "exposed", "waiting", "of step", "lost")
	var tuned measured
	for _, r := range []struct {
		name  string
		flags []string
	}{
		{"--clip-scope worker", []string{"--clip-scope", "worker"}},
		{"one piece", []string{"--clip-scope", "global", onePiece}},
		{"as soon as finished", []string{"--clip-scope", "global", "--bucket-bytes=1"}},
		{"buckets as tuned", []string{"--clip-scope", "global"}},
	} {
		m, err := l.train(ctx, r.flags...)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprintf(out, "%-22s %8.1f %9.1f %8.0f%% %9.1f %9.1f %8.1f%% %8.1f%%\n", r.name,
			1e3*m.step, 1e3*m.backward, 100*at.sum/m.backward, 1e3*m.exposed, 1e3*m.waiting,
			100*m.share, 100*(1-alone.step/m.step))
		tuned = m
	}
	again, err := l.alone(ctx)
	if err != nil {
		return fmt.Errorf("workers with nobody to sum with, again: %w", err)
	}
	fmt.Fprintf(out, "\nbackward beside a sum in buckets takes %.0f%% more than alone: what the "+
		"sum takes of the processors and their caches. \"lost\" has that too: how much longer a "+
		"step takes than alone, of itself. Measured again at the end, backward alone takes %.1f "+
		"ms: where that is another time, the machine was not quiet\n",
		100*(tuned.backward/alone.backward-1), 1e3*again.backward)
	if l.most > 0 && tuned.share > l.most {
		return fmt.Errorf("%.1f%% of a step is exposed to the ring, more than %.1f%%",
			100*tuned.share, 100*l.most)
	}
	return nil
}
