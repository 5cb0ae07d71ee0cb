package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script writes a program that stands for one of the sides.
func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// testConfig has sides that report rates that are known: Rondo 300, PyTorch 100, and 150 in
// bfloat16.
func testConfig(t *testing.T) config {
	return config{
		Rondo: script(t, "rondo", `echo '{"event":"step","step":1,"loss":1}'
echo '{"event":"done","tokens_per_second":300}'`),
		Python: script(t, "python", `rate=100
for word in "$@"; do [ "$word" = bfloat16 ] && rate=150; done
echo '{"tokens_per_second":'$rate'}'`),
		Cells: "lstm,gru", Peers: "float32;bfloat16", Cores: "0", Threads: 1, Rounds: 2,
	}
}

func TestRun(t *testing.T) {
	c := testConfig(t)
	var out bytes.Buffer
	if err := run(context.Background(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"lstm     rondo                           300        300        300         \n",
		"lstm     torch float32                   100        100        100    3.00x\n",
		"gru      torch bfloat16                  150        150        150    2.00x\n",
	} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("%s\nlacks %q", &out, row)
		}
	}
	c.AtLeast = 1.99
	if err := run(context.Background(), c, io.Discard, io.Discard); err != nil {
		t.Errorf("at least 1.99x: %v", err)
	}
	c.AtLeast = 2.01
	err := run(context.Background(), c, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "lstm 2.00x, gru 2.00x") {
		t.Errorf("at least 2.01x: %v", err)
	}
}

func TestRunFails(t *testing.T) {
	failing, silent := script(t, "rondo", "exit 1"), script(t, "python", "echo {}")
	for name, c := range map[string]struct {
		change func(*config)
		want   string
	}{
		"setting":     {func(c *config) { c.Peers = "float64" }, `"float64" is not`},
		"rounds":      {func(c *config) { c.Rounds = 0 }, "-rounds"},
		"no rondo":    {func(c *config) { c.Rondo += "-gone" }, "rondo-gone"},
		"no python":   {func(c *config) { c.Python += "-gone" }, "python-gone"},
		"rondo fails": {func(c *config) { c.Rondo = failing }, "exit status 1"},
		"not a rate":  {func(c *config) { c.Python = silent }, "no tokens_per_second"},
	} {
		config := testConfig(t)
		c.change(&config)
		err := run(context.Background(), config, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		sorted []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{1, 2}, 1.5}, {[]float64{1, 2, 9}, 2}} {
		if got := median(c.sorted); got != c.want {
			t.Errorf("median(%v) = %v; want %v", c.sorted, got, c.want)
		}
	}
}

// Both sides get the same shape.
func TestCommands(t *testing.T) {
	c := config{Rondo: "rondo", Python: "python", Script: "lm.py", Cores: "0,1", Threads: 2,
		Hidden: 8, Layers: 3, Batch: 4, BPTT: 5}
	const shape = "--cell gru --hidden 8 --layers 3 --embed 0 --batch 4 --bptt 5 --threads 2"
	for start, line := range map[string][]string{
		"rondo train --json --workers 1 ":          c.rondoCommand("gru"),
		"python lm.py --dtype bfloat16 --vocab 28": c.peerCommand("gru", "bfloat16", true),
	} {
		start = "taskset --cpu-list 0,1 " + start
		text := strings.Join(line, " ")
		if !strings.HasPrefix(text, start) || !strings.Contains(text, shape) {
			t.Errorf("%s\nwant %q ... %q", text, start, shape)
		}
	}
}
