// Overlap measures how much of the gradient's way around the ring is hidden behind the backward
// pass. Two workers on two hosts, network namespaces of this machine, train a deep LSTM over a link
// that is shaped so that the gradient's way takes a share of the backward pass: first without a
// limit, to measure that pass; then in one piece, in buckets, and with --clip-scope worker, where
// nothing can overlap.
//
// It needs root, and the commands ip and tc (iproute2), nft and unshare.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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

func main() {
	var c config
	flag.StringVar(&c.rondo, "rondo", "bin/rondo", "the program")
	flag.IntVar(&c.layers, "layers", 4, "recurrent layers")
	flag.IntVar(&c.hidden, "hidden", 256, "hidden units per layer")
	flag.IntVar(&c.batch, "batch", 64, "lanes, of which each worker has half")
	flag.IntVar(&c.bptt, "bptt", 64, "tokens of each lane in a step")
	flag.IntVar(&c.steps, "steps", 60, "steps of each run, of which the first quarter does not count")
	flag.Float64Var(&c.share, "share", 0.8, "how much of the backward pass the gradient's way takes")
	flag.Float64Var(&c.most, "at-most", 0, "fail if more of a step than this is exposed; 0: never")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "overlap:", err)
		os.Exit(1)
	}
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

// tries is how often the links are shaped anew, by what the gradient's way was beside backward.
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
		"ms; links of %.0f Mbit/s\n\n%-22s %8s %9s %9s %9s %9s\n", l.layers, l.hidden, l.batch,
		l.bptt, free.gradient/1e6, 1e3*m.backward, kilobits/1e3, "ms", "step", "backward",
		"exposed", "waiting", "of step")
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
		fmt.Fprintf(out, "%-22s %8.1f %9.1f %9.1f %9.1f %8.1f%%\n", r.name, 1e3*m.step,
			1e3*m.backward, 1e3*m.exposed, 1e3*m.waiting, 100*m.share)
		if r.name == "one piece" {
			fmt.Fprintf(out, "%-22s the way takes %.0f%% of backward\n", "", 100*l.way(m))
		}
		exposed = m.share
	}
	if l.most > 0 && exposed > l.most {
		return fmt.Errorf("%.1f%% of a step is exposed to the ring, more than %.1f%%",
			100*exposed, 100*l.most)
	}
	return nil
}
