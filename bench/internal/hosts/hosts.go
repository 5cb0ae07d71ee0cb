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

// A link's burst is the number of bytes that may be sent at once after a pause. It is as small as
// `tc` can shape well, because the first bytes of a message would otherwise arrive too early. It is
// at least the bytes of a millisecond, because a link whose timer is late, as on a busy machine,
// loses any excess.
const (
	leastBurst = 10_000
	burstTime  = time.Millisecond
)

// congestion is an algorithm that every Linux has, so that this machine's default does not matter.
// On links without loss it fills them. Others, such as BBR, probe for the rate, and find another
// each time.
const congestion = "reno"

// Run calls f with a network of count hosts, and removes it when f returns. f must end with ctx.
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

// Shape limits each host to a rate in megabits a second.
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
