package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rondo/bench/busbw"
	"rondo/internal/app"
)

// allReduceRank is the hidden command that runs one rank.
const allReduceRank = "allreduce-rank"

func benchAllReduceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "allreduce",
		Short: "Measure the ring that sums gradients",
		Long: "Measures the all-reduce of workers' gradients on this machine, with one process\n" +
			"per rank. By turns it measures a ring of the same schedule on bare TCP, and one\n" +
			"direction of a TCP connection on loopback. A repetition takes as long as its\n" +
			"slowest rank; sums and bits are checked first.\n\n" +
			"--link tcp     gRPC on loopback, as between hosts\n" +
			"       unix    gRPC on a unix socket, between ranks on one host\n" +
			"       shm     shared memory, as between a job's neighbours on one host; fails\n" +
			"               where that cannot be\n" +
			"       tls     tcp with TLS 1.3, as with a job's --tls, and the bound that its\n" +
			"               cipher sets on busbw on these cores\n" +
			"       grpc    tcp by gRPC's own connections, without allreduce/grpclink/framing,\n" +
			"               which tcp and unix use\n" +
			"       memory  goroutines of one process that pass slices: the cost of the ring\n" +
			"               without a link\n\n" +
			"busbw is nccl-tests': 2(N-1)/N * bytes / time, of the median, in GB/s (10^9). With\n" +
			"16 bits on the wire, bytes are still those of float32; the bare ring then sums\n" +
			"half as many numbers, so that as many bytes travel.\n\n" +
			"--reduce canonical has a job's --reduce canonical in the same turns: the sum of 8\n" +
			"lane groups, in the order of one tree.",
	}
	var config busbw.Config
	c.Flags().IntVar(&config.World, "world", 2, "ranks N")
	c.Flags().IntSliceVar(&config.Sizes, "sizes", []int{64 << 10, 1 << 20, 16 << 20},
		"bytes of the buffer, by commas")
	c.Flags().StringVar(&config.Link, "link", "tcp", strings.Join(busbw.Links(), "|"))
	c.Flags().StringVar(&config.Wire, "wire", "fp32",
		"format on the wire: "+strings.Join(busbw.Wires(), "|"))
	c.Flags().StringVar(&config.Reduce, "reduce", busbw.ReduceRing,
		strings.Join(busbw.Reduces(), "|")+": canonical measures that sum beside the ring's")
	seconds := c.Flags().Float64("seconds", 2, "seconds to measure each ring at each size")
	asJSON := c.Flags().Bool("json", false, "print one JSON object per row")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		const longest = float64(1 << 30) // seconds, so that no duration overflows
		if math.IsNaN(*seconds) || math.Abs(*seconds) > longest {
			return app.Usagef("--seconds %v: must be more than 0, and no more than an hour",
				*seconds)
		}
		config.Window = time.Duration(*seconds * float64(time.Second))
		if err := config.Validate(); err != nil {
			return app.Usage(err)
		}
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("the program of the ranks: %w", err)
		}
		config.Rank = func(int) []string { return []string{self, "bench", allReduceRank} }
		config.Log = cmd.ErrOrStderr()
		print := printBusBW(cmd.OutOrStdout())
		if config.Reduce == busbw.ReduceCanonical {
			print = printCanonical(cmd.OutOrStdout())
		}
		if *asJSON {
			lines := json.NewEncoder(cmd.OutOrStdout())
			print = func(r busbw.Row) error { return lines.Encode(r) }
		}
		return busbw.Measure(cmd.Context(), config, print)
	}
	return c
}

// printBusBW returns a printer of rows as a table.
func printBusBW(out io.Writer) func(busbw.Row) error {
	head := fmt.Sprintf("%-6s %-5s %5s %10s %9s %9s %6s %8s %7s %8s %11s\n", "link",
		"wire", "world", "bytes", "ms", "p99 ms", "busbw", "raw ring", "of raw", "loopback",
		"of loopback")
	return func(r busbw.Row) error {
		_, err := fmt.Fprintf(out,
			"%s%-6s %-5s %5d %10d %9.3f %9.3f %6.3f %8.3f %6.2fx %8.3f %10.2fx\n", head, r.Link,
			r.Wire, r.World, r.Bytes, r.MS, r.P99MS, r.BusBW, r.RawBusBW, r.OfRaw, r.Loopback,
			r.OfLoopback)
		head = ""
		if err == nil && r.Cipher > 0 {
			_, err = fmt.Fprintf(out, "AES-128-GCM: %.2f GB/s a core, which bounds busbw at %.3f\n",
				r.Cipher, r.CipherBusBW)
		}
		return err
	}
}

// printCanonical returns a printer of rows with the canonical sum beside the ring's.
func printCanonical(out io.Writer) func(busbw.Row) error {
	head := fmt.Sprintf("%-6s %5s %10s %9s %9s %12s %9s %7s\n", "link", "world", "bytes",
		"ring ms", "p99 ms", "canonical ms", "p99 ms", "of ring")
	return func(r busbw.Row) error {
		_, err := fmt.Fprintf(out, "%s%-6s %5d %10d %9.3f %9.3f %12.3f %9.3f %6.2fx\n", head,
			r.Link, r.World, r.Bytes, r.MS, r.P99MS, r.TreeMS, r.TreeP99MS, r.OfRing)
		head = ""
		return err
	}
}

// benchAllReduceRankCommand runs one rank for `rondo bench allreduce`, which leads it. It ends with
// its leader.
func benchAllReduceRankCommand() *cobra.Command {
	return &cobra.Command{
		Use:    allReduceRank,
		Short:  "Run one rank for `rondo bench allreduce`",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return busbw.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
