// Package predict predicts how long a training step takes on more workers than there are: a model
// of the ring in package allreduce with Hockney's alpha and beta for links, jitter, stragglers,
// failures, buckets that travel during backward, and hosts whose workers have faster links between
// them. docs/scaling.md derives it and holds it against real rings.
//
// It is pure: no sockets, no clock, and the same numbers for the same seed. Of ours it imports
// [allreduce], for how buffers are cut into blocks and chunks.
package predict

import (
	"fmt"
	"math"
	"math/rand/v2"

	"rondo/allreduce"
)

// Limits of a simulation.
const (
	MaxWorkers   = allreduce.MaxWorld
	MaxSyncEvery = 10_000
	MaxBytes     = 1 << 40
	MaxBuckets   = 1 << 12

	// usualMessages is the number of a ring's messages to simulate for a number of workers. If one
	// step has more, only that step is simulated, up to maxMessages.
	usualMessages = 1 << 27
	maxMessages   = 1 << 34
	mostSteps     = 50 // that are simulated for one number of workers
)

// Topology is how ranks on hosts with several workers sum.
type Topology string

const (
	// Flat is one ring of all workers, host after host.
	Flat Topology = "flat"
	// Hierarchical is a reduce-scatter within each host, an all-reduce around a ring of hosts for
	// each of the parts, all at once over the host's one link, and an all-gather within each host.
	Hierarchical Topology = "hierarchical"
)

// Config describes the workers and their network. Times are in seconds.
type Config struct {
	Bytes       float64 // of the gradient on the wire
	BucketBytes float64 // of a part that travels by itself; 0: the whole gradient
	ChunkBytes  float64 // of a message at most
	Overlap     bool    // buckets travel as backward finishes them, else behind it
	SyncEvery   int     // steps between sums: 1, or the k of local SGD

	Link        Link    // between hosts; each host has one
	Local       Link    // between workers of a host
	HostWorkers int     // workers on a host
	Gamma       float64 // to reduce a byte
	Jitter      float64 // mean extra latency of a message between hosts

	Compute  Compute
	Failures Failures
	Seed     uint64
}

// Row is the result for a number of workers. Seconds are means over the simulated steps.
type Row struct {
	Workers  int      `json:"workers"`
	Topology Topology `json:"topology"`
	Step     float64  `json:"step_s"`
	Compute  float64  `json:"compute_s"`  // of a worker, the mean
	Wait     float64  `json:"wait_s"`     // compute time of the slowest worker beyond the mean
	Exposed  float64  `json:"exposed_s"`  // the rest of the step: communication
	Sent     float64  `json:"sent_bytes"` // by each worker in a step

	// Efficiency is the throughput, failures not counted, against that of as many workers each
	// alone; Goodput is the same with them.
	Efficiency float64 `json:"efficiency"`
	Goodput    float64 `json:"goodput"`
	Steps      int     `json:"steps"` // that were simulated
}

// Validate names the flag of the command that is wrong.
func (c Config) Validate() error {
	for _, check := range []struct {
		flag     string
		value    float64
		from, to float64
	}{
		{"--parameters times --wire's bytes", c.Bytes, 4, MaxBytes},
		{"--bucket-bytes", c.BucketBytes, 0, MaxBytes},
		{"--chunk-bytes", c.ChunkBytes, 4, MaxBytes},
		{"--sync-every", float64(c.SyncEvery), 1, MaxSyncEvery},
		{"--alpha", c.Link.Alpha, 0, 3600},
		{"--bandwidth (as seconds a byte)", c.Link.Beta, 0, 1},
		{"--message", c.Link.Message, 0, 3600},
		{"--local-alpha", c.Local.Alpha, 0, 3600},
		{"--local-bandwidth (as seconds a byte)", c.Local.Beta, 0, 1},
		{"--host-workers", float64(c.HostWorkers), 1, MaxWorkers},
		{"--reduce-bandwidth (as seconds a byte)", c.Gamma, 0, 1},
		{"--link-jitter", c.Jitter, 0, 3600},
		{"--compute", c.Compute.Seconds, 0, 1e6},
		{"--compute-jitter", c.Compute.Sigma, 0, 5},
		{"--stragglers", c.Compute.Stragglers, 0, 1},
		{"--straggler-factor", c.Compute.StragglerFactor, 1, 1e6},
		{"--forward", c.Compute.Forward, 0, 1},
		{"--mtbf", c.Failures.MTBF, 0, 1e12},
		{"--detect", c.Failures.Detect, 0, 1e6},
		{"--regroup", c.Failures.Regroup, 0, 1e6},
	} {
		if math.IsNaN(check.value) || check.value < check.from || check.value > check.to {
			return fmt.Errorf("%s %v: must be %v to %v", check.flag, check.value, check.from,
				check.to)
		}
	}
	if buckets := len(c.buckets()); buckets > MaxBuckets {
		return fmt.Errorf("--bucket-bytes %v: cuts %v bytes into %d, more than %d buckets",
			c.BucketBytes, c.Bytes, buckets, MaxBuckets)
	}
	if !(c.Compute.mean() > 0) {
		return fmt.Errorf("--compute %v: a step must take time", c.Compute.Seconds)
	}
	return nil
}

// allows returns an error that says why a number of workers cannot be simulated.
func (c Config) allows(workers int) error {
	switch {
	case workers < 1 || workers > MaxWorkers:
		return fmt.Errorf("--workers %d: must be 1 to %d", workers, MaxWorkers)
	case workers > c.HostWorkers && workers%c.HostWorkers != 0:
		return fmt.Errorf("--workers %d: more than a host has, and not a multiple of "+
			"--host-workers %d", workers, c.HostWorkers)
	}
	return nil
}

// Run simulates a number of workers.
func Run(c Config, workers int, topology Topology) (Row, error) {
	if err := c.Validate(); err != nil {
		return Row{}, err
	}
	if err := c.allows(workers); err != nil {
		return Row{}, err
	}
	places := workers
	if !c.Compute.varies() && (c.Jitter == 0 || workers <= c.HostWorkers) {
		places = 1 // all hosts are equal
		if topology == Flat {
			places = min(workers, c.HostWorkers) // and so is each of their workers to its likes
		}
	}
	var net network
	if topology == Hierarchical {
		net = newHierarchical(c, workers, places)
	} else {
		net = newFlat(c, workers, places)
	}
	buckets := c.buckets()
	each := 0.0
	for _, bytes := range buckets {
		each += net.messages(bytes)
	}
	if each > maxMessages {
		return Row{}, fmt.Errorf("--workers %d: a step of %d buckets is %.2g messages, more than "+
			"%.2g: take larger --bucket-bytes", workers, len(buckets), each, float64(maxMessages))
	}
	const drawCost = 10 // of a time of computing, in messages
	drawn := max(each, drawCost*float64(places*c.SyncEvery))
	steps := int(min(max(usualMessages/drawn, 1), mostSteps))
	if !c.Compute.varies() && c.Jitter == 0 {
		steps = 1
	}
	return c.run(workers, places, topology, net, buckets, steps), nil
}

// buckets returns the bytes of each, in the order in which they are ready.
func (c Config) buckets() []float64 {
	if c.BucketBytes == 0 || c.BucketBytes >= c.Bytes || !c.Overlap || c.SyncEvery > 1 {
		return []float64{c.Bytes}
	}
	count := int(math.Ceil(c.Bytes / c.BucketBytes))
	buckets := make([]float64, count)
	for i := range buckets {
		buckets[i] = c.Bytes / float64(count)
	}
	return buckets
}

// run simulates steps of workers on such a network.
func (c Config) run(
	workers, places int, topology Topology, net network, buckets []float64, steps int,
) Row {
	source := rand.New(rand.NewPCG(c.Seed, uint64(workers)))
	clock, began := make([]float64, places), make([]float64, places)
	took, begin := make([]float64, places), make([]float64, places)
	slowest, sum := 0.0, 0.0
	for range steps {
		most := 0.0
		for i := range took {
			took[i] = c.Compute.draw(source, c.SyncEvery)
			sum += took[i]
			most = max(most, took[i])
		}
		slowest += most
		copy(began, clock)
		for b, bytes := range buckets {
			ready := c.Compute.Forward + // of a step; the last bucket is ready at its end
				(1-c.Compute.Forward)*float64(b+1)/float64(len(buckets))
			for i := range begin {
				begin[i] = began[i] + ready*took[i]
			}
			net.sum(bytes, begin, clock)
		}
	}
	end := 0.0
	for _, at := range clock {
		end = max(end, at)
	}
	all := float64(steps * c.SyncEvery)
	row := Row{Workers: workers, Topology: topology, Steps: steps * c.SyncEvery,
		Step: end / all, Compute: sum / float64(places) / all}
	row.Wait = slowest/all - row.Compute
	row.Exposed = max(0, row.Step-row.Compute-row.Wait)
	for _, bytes := range buckets {
		row.Sent += net.sent(bytes) / float64(c.SyncEvery)
	}
	row.Efficiency = row.Compute / row.Step
	row.Goodput = row.Efficiency * c.Failures.productive(row.Step*float64(c.SyncEvery), workers)
	return row
}
