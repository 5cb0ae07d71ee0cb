// Package hosts has the network on which benchmarks run real processes: hosts that are network
// namespaces, with links of a rate. It decides nothing about the processes.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"rondo/bench/busbw"
	"rondo/internal/netns"
)

// A link's burst is how many bytes may go at once after a pause. It is as few as `tc` shapes well,
// since a message's first bytes would else arrive sooner than the rate lets them; and as many as
// pass in a millisecond, since a link whose timer comes late, as on a machine whose processors are
// busy, has lost what exceeds it.
const (
	leastBurst = 10_000
	burstTime  = time.Millisecond
)

// congestion is the algorithm that every Linux has, whatever this machine's default is. On links
// that lose nothing it fills them; others, such as BBR, look for the rate by trying, and find
// another each time.
const congestion = "reno"

// Run has f use a network of so many hosts, and removes it when f returns. f must end with ctx.
func Run(count int, f func([]*netns.Host) error) (err error) {
	n, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	var all []*netns.Host
	for i := range count {
		h, err := n.Host(fmt.Sprintf("host%d", i))
		if err != nil {
			return err
		}
		if err := h.Congestion(congestion); err != nil {
			return err
		}
		all = append(all, h)
	}
	return f(all)
}

// Shape limits what each host sends to so many megabits a second.
func Shape(all []*netns.Host, megabits int) error {
	return ShapeKilobits(all, 1000*megabits)
}

// ShapeKilobits is Shape in finer steps.
func ShapeKilobits(all []*netns.Host, kilobits int) error {
	burst := max(leastBurst, int(float64(kilobits)*1000/8*burstTime.Seconds()))
	for _, h := range all {
		if err := h.Throttle(kilobits, burst); err != nil {
			return err
		}
	}
	return nil
}

// AllReduce measures the all-reduce of sizes, a rank on each host: `rondo bench allreduce` with
// the ring alone.
func AllReduce(
	ctx context.Context, rondo string, all []*netns.Host, sizes []int, window time.Duration,
	log io.Writer, each func(busbw.Row) error,
) error {
	c := busbw.Config{World: len(all), Sizes: sizes, Link: "tcp", Wire: "fp32",
		Window: window, Log: log, Alone: true}
	for _, h := range all {
		c.Addresses = append(c.Addresses, h.Address)
	}
	c.Rank = func(rank int) []string {
		return all[rank].Command([]string{rondo, "bench", "allreduce-rank"})
	}
	return busbw.Measure(ctx, c, each)
}
