package predict

import (
	"math"
	"strings"
	"testing"
)

func testConfig() Config {
	return Config{
		Bytes: 40e6, BucketBytes: 10e6, ChunkBytes: 1 << 20, Overlap: true, SyncEvery: 1,
		Link: Link{Alpha: 50e-6, Beta: 8e-10, Message: 10e-6}, HostWorkers: 1,
		Local: Link{Alpha: 5e-6, Beta: 1e-10, Message: 2e-6}, Gamma: 1e-10,
		Compute: Compute{Seconds: 0.1, StragglerFactor: 1, Forward: 1.0 / 3}, Seed: 1,
	}
}

func mustRun(t *testing.T, c Config, workers int, topology Topology) Row {
	t.Helper()
	row, err := Run(c, workers, topology)
	if err != nil {
		t.Fatal(err)
	}
	if sum := row.Compute + row.Wait + row.Exposed; math.Abs(sum/row.Step-1) > 1e-9 &&
		row.Exposed > 0 {
		t.Errorf("%+v: the parts are %v", row, sum)
	}
	return row
}

// A worker alone computes and nothing else.
func TestAlone(t *testing.T) {
	for _, topology := range []Topology{Flat, Hierarchical} {
		c := testConfig()
		c.Compute.Sigma = 0.2
		row := mustRun(t, c, 1, topology)
		if !near(row.Efficiency, 1) || row.Exposed > 1e-12 || row.Sent != 0 {
			t.Errorf("%+v", row)
		}
	}
}

// What travels during backward costs nothing but the last bucket, where the link is fast enough.
func TestOverlap(t *testing.T) {
	c := testConfig()
	hidden := mustRun(t, c, 4, Flat)
	last := AllReduce(4, 10e6, c.ChunkBytes, c.Link, c.Gamma)
	if !near(hidden.Exposed, last) {
		t.Errorf("exposed %v, want the last bucket's %v", hidden.Exposed, last)
	}
	c.Overlap = false
	open := mustRun(t, c, 4, Flat)
	if want := AllReduce(4, 40e6, c.ChunkBytes, c.Link, c.Gamma); !near(open.Exposed, want) {
		t.Errorf("exposed behind backward %v, want %v", open.Exposed, want)
	}
	if open.Sent != 60e6 {
		t.Errorf("sent %v, want 2*3/4 of 40e6", open.Sent)
	}
}

// With local SGD communication is paid every k steps, and so are its bytes.
func TestSyncEvery(t *testing.T) {
	c := testConfig()
	c.SyncEvery = 10
	row := mustRun(t, c, 4, Flat)
	want := AllReduce(4, 40e6, c.ChunkBytes, c.Link, c.Gamma) / 10
	if !near(row.Exposed, want) || row.Sent != 6e6 {
		t.Errorf("exposed %v, want %v; sent %v", row.Exposed, want, row.Sent)
	}
}

// A hierarchy sums blocks: while one crosses between hosts the next is summed within.
func TestBlocks(t *testing.T) {
	c := testConfig()
	c.HostWorkers, c.Overlap, c.Link.Alpha, c.Link.Message = 4, false, 0, 0
	c.Gamma, c.Local.Alpha, c.Local.Message = 0, 0, 0
	const block = 4 << 20
	c.Bytes = 10 * block
	row := mustRun(t, c, 8, Hierarchical)
	within, across := block*2*0.75*c.Local.Beta, block*c.Link.Beta // of a block, between two hosts
	if slow := 10*across + within; row.Exposed < 0.999*slow || row.Exposed > 1.1*slow {
		t.Errorf("exposed %v: want the crossing of all blocks and the ends within, %v", row.Exposed,
			slow)
	}
}

// With one worker a host there is no hierarchy to have.
func TestHostsOfOne(t *testing.T) {
	c := testConfig()
	c.Compute.Sigma, c.Jitter = 0.1, 20e-6
	for _, workers := range []int{2, 8} {
		flat, hierarchical := mustRun(t, c, workers, Flat), mustRun(t, c, workers, Hierarchical)
		// Links draw other jitter, and blocks have more messages.
		if math.Abs(flat.Step/hierarchical.Step-1) > 0.02 {
			t.Errorf("flat %v, hierarchical %v", flat.Step, hierarchical.Step)
		}
	}
}

// Without variation few places say what all would.
func TestFewPlaces(t *testing.T) {
	c := testConfig()
	c.HostWorkers = 4
	varied := c
	varied.Compute.Samples = []float64{c.Compute.Seconds, c.Compute.Seconds}
	for _, workers := range []int{2, 4, 8, 32} {
		for _, topology := range []Topology{Flat, Hierarchical} {
			few, all := mustRun(t, c, workers, topology), mustRun(t, varied, workers, topology)
			if math.Abs(few.Step/all.Step-1) > 0.05 {
				t.Errorf("%d workers, %s: %v by few places, %v by all", workers, topology, few.Step,
					all.Step)
			}
		}
	}
}

// The slowest of many is slower than that of few, and the ring waits for it.
func TestStragglers(t *testing.T) {
	c := testConfig()
	c.Compute.Stragglers, c.Compute.StragglerFactor = 0.01, 3
	few, many := mustRun(t, c, 4, Flat), mustRun(t, c, 1024, Flat)
	if !(few.Step < 0.2) || !(many.Step > 0.3) || !(many.Wait > 0.19) {
		t.Errorf("4 workers %+v\n1024 workers %+v", few, many)
	}
}

func TestSeed(t *testing.T) {
	c := testConfig()
	c.Compute.Sigma, c.Jitter = 0.1, 1e-4
	once, again := mustRun(t, c, 16, Flat), mustRun(t, c, 16, Flat)
	c.Seed++
	if other := mustRun(t, c, 16, Flat); once != again || other == once {
		t.Errorf("seed 1 %+v\nand again %+v\nseed 2 %+v", once, again, other)
	}
}

func TestFit(t *testing.T) {
	want := Link{Alpha: 80e-6, Beta: 1e-8, Message: 5e-6}
	const gamma, chunk = 1e-10, 1 << 20
	var all []Measured
	for _, bytes := range []float64{4096, 1e5, 1e6, 2e7} {
		all = append(all, Measured{2, bytes, AllReduce(2, bytes, chunk, want, gamma)})
	}
	got, err := Fit(all, want.Message, gamma, chunk)
	if err != nil || math.Abs(got.Alpha/want.Alpha-1) > 1e-3 ||
		math.Abs(got.Beta/want.Beta-1) > 1e-3 {
		t.Errorf("%v, %+v, want %+v", err, got, want)
	}
	if _, err := Fit(all[:1], 0, 0, chunk); err == nil ||
		!strings.HasPrefix(err.Error(), "all-reduces of at least two sizes are needed") {
		t.Errorf("of one size: %v", err)
	}
	if _, err := Fit(append(all, Measured{1, 4, 1}), 0, 0, chunk); err == nil ||
		!strings.HasPrefix(err.Error(), "not an all-reduce: 1 ranks") {
		t.Errorf("of one rank: %v", err)
	}
}

func TestValidate(t *testing.T) {
	for want, wrong := range map[string]func(*Config){
		"--parameters times --wire's bytes 0: must be": func(c *Config) { c.Bytes = 0 },
		"--alpha -1: must be 0 to 3600":                func(c *Config) { c.Link.Alpha = -1 },
		"--compute 0: a step must take time":           func(c *Config) { c.Compute.Seconds = 0 },
		"--workers 6: more than a host has":            func(c *Config) { c.HostWorkers = 4 },
		"--bucket-bytes 4: cuts 4e+07 bytes into":      func(c *Config) { c.BucketBytes = 4 },
	} {
		c := testConfig()
		wrong(&c)
		if _, err := Run(c, 6, Flat); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A ring that would take minutes to simulate is refused.
func TestTooMuch(t *testing.T) {
	c := testConfig()
	c.BucketBytes, c.Jitter = 1e6, 1e-6
	_, err := Run(c, MaxWorkers, Flat)
	if err == nil || !strings.Contains(err.Error(), "a step of 40 buckets is 2.1e+10 messages") {
		t.Error(err)
	}
}

// The largest ring, with everything that varies, takes seconds: its messages are bounded.
func TestLargest(t *testing.T) {
	c := testConfig()
	c.Bytes, c.HostWorkers, c.BucketBytes = 4e6, 8, 0
	row := mustRun(t, c, MaxWorkers, Flat)
	if want := 2 * (MaxWorkers - 1) * (7*5e-6 + 50e-6) / 8; !(row.Exposed > want) {
		t.Errorf("%+v: exposed less than latency alone, %v", row, want)
	}
	if _, err := Run(c, 2*MaxWorkers, Flat); err == nil {
		t.Error("more workers than a ring has")
	}
}
