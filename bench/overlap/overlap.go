package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"rondo/internal/netns"
)

// config is what is measured.
type config struct {
	rondo                       string // the program
	layers, hidden, batch, bptt int
	steps                       int
	share                       float64 // of the backward pass that the gradient's way takes
	most                        float64 // of a step that may be exposed
}

// run measures, and writes what came of it.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.rondo, err = filepath.Abs(c.rondo); err != nil {
		return err
	}
	if c.steps < 12 || !(c.share > 0) {
		return errors.New("-steps must be at least 12, and -share above 0")
	}
	folder, err := os.MkdirTemp("", "rondo-overlap-")
	if err != nil {
		return err
	}
	network, err := netns.New()
	if err != nil {
		return errors.Join(err, os.RemoveAll(folder))
	}
	defer func() { err = errors.Join(err, network.Close(), os.RemoveAll(folder)) }()
	l := lab{config: c, folder: folder}
	for i, name := range []string{"a", "b"} {
		if l.hosts[i], err = network.Host(name); err != nil {
			return err
		}
	}
	stop, err := l.store(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return l.measure(ctx, out)
}

const onePiece = "--bucket-bytes=1099511627776"

// tries is how often the links are shaped anew, by what the way was beside backward.
const tries = 2

// shape limits what the hosts send.
func (l *lab) shape(kilobits float64) error {
	const burst = 32 << 10
	for _, h := range l.hosts {
		if err := h.Throttle(int(kilobits), burst); err != nil {
			return err
		}
	}
	return nil
}

// way is how long the gradient's way takes beside the backward pass, where nothing of it is hidden.
func (l *lab) way(m measured) float64 { return (m.exposed - m.waiting) / m.backward }

// measure does the runs.
func (l *lab) measure(ctx context.Context, out io.Writer) error {
	free, err := l.train(ctx, "--clip-scope", "global", onePiece)
	if err != nil {
		return err
	}
	kilobits, m := free.gradient*8/1000/(l.share*free.backward), free
	for range tries {
		if err := l.shape(kilobits); err != nil {
			return err
		}
		if m, err = l.train(ctx, "--clip-scope", "global", onePiece); err != nil {
			return err
		}
		if got := l.way(m); got > 0 {
			kilobits *= got / l.share
		}
	}
	if err := l.shape(kilobits); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d layers of %d, %d lanes, %d tokens: a gradient of %.1f MB; backward %.1f "+
		"ms; links of %.0f Mbit/s\n\n%-22s %8s %9s %9s %9s %9s %9s\n", l.layers, l.hidden, l.batch,
		l.bptt, free.gradient/1e6, 1e3*m.backward, kilobits/1e3, "ms", "step", "backward",
		"the way", "exposed", "waiting", "of step")
	var exposed float64
	for _, r := range []struct {
		name  string
		flags []string
	}{
		{"one piece", []string{"--clip-scope", "global", onePiece}},
		{"clip-scope worker", []string{"--clip-scope", "worker"}},
		{"each layer", []string{"--clip-scope", "global", "--bucket-bytes=1"}},
		{"buckets as measured", []string{"--clip-scope", "global"}},
	} {
		m, err := l.train(ctx, r.flags...)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		way := free.gradient * 8 / 1000 / kilobits / m.backward // by the link's rate alone
		fmt.Fprintf(out, "%-22s %8.1f %9.1f %8.0f%% %9.1f %9.1f %8.1f%%\n", r.name, 1e3*m.step,
			1e3*m.backward, 100*way, 1e3*m.exposed, 1e3*m.waiting, 100*m.share)
		exposed = m.share
	}
	if l.most > 0 && exposed > l.most {
		return fmt.Errorf("%.1f%% of a step is exposed to the ring, more than %.1f%%",
			100*exposed, 100*l.most)
	}
	return nil
}
