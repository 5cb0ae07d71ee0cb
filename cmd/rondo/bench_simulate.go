package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rondo/allreduce"
	"rondo/bench/predict"
	"rondo/internal/app"
)

const simulateHelp = `Predicts training steps on many workers by a model: a message of n bytes
occupies its link for --message + n / --bandwidth, arrives --alpha later, and is reduced
at --reduce-bandwidth; chunks flow through reduce-scatter and all-gather without barriers.
Computing varies, workers fail, and buckets travel while backward runs. docs/scaling.md
has the equations, and a comparison with real rings.

  flat          one ring of all workers, host after host
  hierarchical  reduce-scatter within each host, rings of hosts, all-gather within

--measured takes --alpha and --bandwidth from the output of "rondo bench allreduce --json",
--measured-local those of links within hosts. The defaults are: 10 Gb/s Ethernet, with
gRPC's latency and cost of a message over TCP on one machine; within hosts, a processor's
shared memory; an MTBF of 50,000 hours, from the 419 failures in 54 days of 16,384 GPUs in
Llama 3's training (2024, table 5); buckets of 25 MB, as in PyTorch DDP (Li et al., 2020).

Efficiency is the throughput divided by that of as many independent workers; goodput
counts failures too. The same seed gives the same numbers.`

// simulateFlags are the flags, in the user's units.
type simulateFlags struct {
	config                                   predict.Config
	workers                                  []int
	parameters                               int
	wire                                     string
	chunk, bucket                            int
	alpha, message, localAlpha, localMessage time.Duration
	bandwidth, localBandwidth                float64 // Gb/s
	reduce                                   float64 // GB/s
	jitter, compute, mtbf, detect, regroup   time.Duration
	threshold                                float64
	measured, measuredLocal, computeSamples  string
	json                                     bool
}

func benchSimulateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Predict training steps on up to 16,384 workers",
		Long:  simulateHelp,
	}
	s := &simulateFlags{}
	s.add(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.complete(); err != nil {
			return app.Usage(err)
		}
		table := &simulateTable{out: cmd.OutOrStdout(), json: s.json}
		comparison := predict.Comparison{Threshold: s.threshold}
		for _, workers := range s.workers {
			for _, topology := range s.topologies() {
				if err := cmd.Context().Err(); err != nil {
					return err
				}
				row, err := predict.Run(s.config, workers, topology)
				if err != nil {
					return app.Usage(err)
				}
				comparison.Add(row)
				if err := table.add(row); err != nil {
					return err
				}
			}
		}
		return table.end(comparison.Verdict())
	}
	return c
}

// topologies are the different ones.
func (s *simulateFlags) topologies() []predict.Topology {
	if s.config.HostWorkers == 1 {
		return []predict.Topology{predict.Flat}
	}
	return []predict.Topology{predict.Flat, predict.Hierarchical}
}

func (s *simulateFlags) add(c *cobra.Command) {
	var workers []int
	for n := 1; n <= predict.MaxWorkers; n *= 2 {
		workers = append(workers, n)
	}
	f := c.Flags()
	f.IntSliceVar(&s.workers, "workers", workers, "numbers of workers, by commas")
	f.IntVar(&s.parameters, "parameters", 10_000_000, "parameters of the model")
	f.StringVar(&s.wire, "wire", "fp32", "format of gradients on the wire: fp32|bf16|fp16")
	f.IntVar(&s.bucket, "bucket-bytes", 25_000_000, "most bytes of the gradient in a "+
		"bucket; 0: all")
	f.IntVar(&s.chunk, "chunk-bytes", allreduce.MaxChunkBytes, "most bytes of a message")
	f.BoolVar(&s.config.Overlap, "overlap", true, "send buckets while backward runs")
	f.IntVar(&s.config.SyncEvery, "sync-every", 1, "steps between sums: local SGD")
	f.DurationVar(&s.alpha, "alpha", 30*time.Microsecond, "latency between hosts")
	f.DurationVar(&s.message, "message", 10*time.Microsecond, "sender's time per message")
	f.Float64Var(&s.bandwidth, "bandwidth", 10, "Gb/s of a host's link")
	f.IntVar(&s.config.HostWorkers, "host-workers", 8, "workers on a host")
	f.DurationVar(&s.localAlpha, "local-alpha", 5*time.Microsecond, "latency within a host")
	f.DurationVar(&s.localMessage, "local-message", 2*time.Microsecond, "sender's time per "+
		"message within a host")
	f.Float64Var(&s.localBandwidth, "local-bandwidth", 24, "Gb/s between two workers of a host")
	f.Float64Var(&s.reduce, "reduce-bandwidth", 10, "GB/s at which a worker adds")
	f.DurationVar(&s.jitter, "link-jitter", 10*time.Microsecond, "mean extra latency of messages "+
		"between hosts, exponentially distributed")
	f.DurationVar(&s.compute, "compute", 100*time.Millisecond, "mean computing time of a "+
		"worker's step")
	f.Float64Var(&s.config.Compute.Sigma, "compute-jitter", 0.05, "standard deviation of the "+
		"logarithm of computing times")
	f.StringVar(&s.computeSamples, "compute-samples", "", "JSON file with a list of seconds, "+
		"used instead of --compute and --compute-jitter")
	f.Float64Var(&s.config.Compute.Forward, "forward", 1.0/3, "fraction of a step before backward")
	f.Float64Var(&s.config.Compute.Stragglers, "stragglers", 0, "fraction of workers' steps that "+
		"are slow")
	f.Float64Var(&s.config.Compute.StragglerFactor, "straggler-factor", 2, "how many times as "+
		"long slow steps take")
	f.DurationVar(&s.mtbf, "mtbf", 50_000*time.Hour, "mean time between a worker's failures; 0: "+
		"none fails")
	f.DurationVar(&s.detect, "detect", 5*time.Second, "time to detect a failure: a job's "+
		"--chunk-timeout")
	f.DurationVar(&s.regroup, "regroup", time.Second, "time to form a new ring")
	f.Float64Var(&s.threshold, "threshold", 0.9, "efficiency below which a topology does not pay")
	f.StringVar(&s.measured, "measured", "", "file of `rondo bench allreduce --json`")
	f.StringVar(&s.measuredLocal, "measured-local", "", "the same for links within a host")
	f.Uint64Var(&s.config.Seed, "seed", 1, "seed of jitter and stragglers")
	f.BoolVar(&s.json, "json", false, "print one JSON object per row, and one with the verdict")
}

// complete converts the flags to the configuration, in seconds and bytes.
func (s *simulateFlags) complete() error {
	if len(s.workers) == 0 {
		return errors.New("--workers is empty: give numbers of workers, by commas")
	}
	size, known := map[string]int{"fp32": 4, "bf16": 2, "fp16": 2}[s.wire]
	if !known {
		return fmt.Errorf("--wire %q: must be fp32 or bf16 or fp16", s.wire)
	}
	for flag, rate := range map[string]float64{"--bandwidth": s.bandwidth,
		"--local-bandwidth": s.localBandwidth, "--reduce-bandwidth": s.reduce} {
		if !(rate > 0) {
			return fmt.Errorf("%s %v: must be more than 0", flag, rate)
		}
	}
	if !(s.threshold > 0 && s.threshold <= 1) {
		return fmt.Errorf("--threshold %v: must be more than 0, and at most 1", s.threshold)
	}
	const gigabit, gigabyte = 1e9 / 8, 1e9
	c := &s.config
	c.Bytes, c.BucketBytes = float64(s.parameters)*float64(size), float64(s.bucket)
	c.ChunkBytes = float64(s.chunk)
	c.Link = predict.Link{Alpha: s.alpha.Seconds(), Beta: 1 / (s.bandwidth * gigabit),
		Message: s.message.Seconds()}
	c.Local = predict.Link{Alpha: s.localAlpha.Seconds(), Beta: 1 / (s.localBandwidth * gigabit),
		Message: s.localMessage.Seconds()}
	c.Gamma, c.Jitter = 1/(s.reduce*gigabyte), s.jitter.Seconds()
	c.Compute.Seconds = s.compute.Seconds()
	c.Failures = predict.Failures{MTBF: s.mtbf.Seconds(), Detect: s.detect.Seconds(),
		Regroup: s.regroup.Seconds()}
	if err := c.Validate(); err != nil {
		return err
	}
	return s.readFiles()
}

// readFiles reads the measurements from files.
func (s *simulateFlags) readFiles() error {
	c := &s.config
	for _, from := range []struct {
		flag, file string
		link       *predict.Link
	}{{"--measured", s.measured, &c.Link}, {"--measured-local", s.measuredLocal, &c.Local}} {
		if from.file == "" {
			continue
		}
		rows, err := predict.ReadMeasured(from.file)
		if err == nil {
			*from.link, err = predict.Fit(rows, from.link.Message, c.Gamma, c.ChunkBytes)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", from.flag, from.file, err)
		}
	}
	if s.computeSamples == "" {
		return nil
	}
	text, err := os.ReadFile(s.computeSamples)
	if err == nil {
		err = json.Unmarshal(text, &c.Compute.Samples)
	}
	if err != nil {
		return fmt.Errorf("--compute-samples %s: %w", s.computeSamples, err)
	}
	return c.Validate()
}

// simulateTable prints rows and a verdict.
type simulateTable struct {
	out    io.Writer
	json   bool
	headed bool
}

func (t *simulateTable) add(r predict.Row) error {
	if t.json {
		return json.NewEncoder(t.out).Encode(r)
	}
	head := ""
	if !t.headed {
		head = fmt.Sprintf("%7s  %-12s %11s %11s %9s %10s %10s %8s %5s\n", "workers", "topology",
			"step ms", "compute", "wait", "exposed", "efficiency", "goodput", "steps")
		t.headed = true
	}
	_, err := fmt.Fprintf(t.out, "%s%7d  %-12s %11.3f %11.3f %9.3f %10.3f %10.3f %8.3f %5d\n", head,
		r.Workers, r.Topology, 1e3*r.Step, 1e3*r.Compute, 1e3*r.Wait, 1e3*r.Exposed, r.Efficiency,
		r.Goodput, r.Steps)
	return err
}

func (t *simulateTable) end(v predict.Verdict) error {
	if t.json {
		return json.NewEncoder(t.out).Encode(v)
	}
	_, err := fmt.Fprintln(t.out, strings.TrimSpace(v.Sentence))
	return err
}
