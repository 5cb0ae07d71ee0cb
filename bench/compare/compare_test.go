package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/bench"
	"rondo/compute"
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

// options has $cell and $threads from the command line.
const options = `
cell= threads= last=
for word in "$@"; do
	case $last in --cell) cell=$word ;; --threads) threads=$word ;; esac
	last=$word
done
`

// testConfig has sides that report rates that are known. On one thread Rondo has 300 and in bf16
// 500; PyTorch 100, in bfloat16 80, and compiled 120 and a failure. A second thread doubles all of
// Rondo's, and does nothing for PyTorch. Rondo's GRU with reset before is at 250 in fp32.
func testConfig(t *testing.T) config {
	return config{
		Rondo: script(t, "rondo", options+`
rate=300
[ $cell = gru-reset-before ] && rate=250
echo '{"precision":"fp32","threads":'$threads',"windows":['$((rate*threads))','$((rate*threads))']}'
echo '{"precision":"bf16","threads":'$threads',"windows":['$((500*threads))'],"of_peak":0.5}'`),
		Python: script(t, "python", options+`
row() { echo '{"dtype":"'$1'","mode":"'$2'","threads":'$threads','$3'}'; }
[ $cell = gru-reset-before ] && exit 1
row float32 eager '"windows":[90,100,110]'
row float32 compile '"windows":[120]'
row bfloat16 eager '"windows":[80]'
row bfloat16 compile '"failed":"RuntimeError: no C++ compiler"'`),
		Cores: "0,1", Modes: "eager,compile", Precisions: "fp32,bf16", Quick: true, Seconds: 0.1,
		Only: "gru",
	}
}

func TestRun(t *testing.T) {
	c := testConfig(t)
	c.Cores = "0,0" // a machine of one core will do
	var out bytes.Buffer
	if err := run(context.Background(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"cores 0,0; both sides with 1 to 2 threads, PyTorch eager,compile; tokens/s: medians",
		"gru H256 L1 B32 T35 V28 E0\n",
		"  rondo fp32, threads 2                   600       600       600  ",
		"  torch fp32, threads 1, eager            100        90       110  \n",
		"  torch bf16, threads 2, compile    skipped: RuntimeError: no C++ compiler\n",
		"| gru | 256 | 1 | 32 | 35 | 28 | 600 (2) | 120 (1, compiled) | 5.00x " +
			"| 1000 (2) | 80 (1) | 12.50x | 8.33x |\n",
		"| gru-reset-before | 256 | 1 | 32 | 35 | 28 | 500 (2) | 120 (1, compiled) | 4.17x |",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%s\nlacks %q", &out, line)
		}
	}
	c.AtLeast = 4.1
	if err := run(context.Background(), c, io.Discard, io.Discard); err != nil {
		t.Errorf("at least 4.1x: %v", err)
	}
	c.AtLeast = 4.2
	err := run(context.Background(), c, io.Discard, io.Discard)
	const want = "below 4.20x of PyTorch's best: gru-reset-before H256 L1 B32 T35 V28 E0 fp32 4.17x"
	if err == nil || err.Error() != want {
		t.Errorf("at least 4.2x: %v; want %q", err, want)
	}
}

// Several turns of one precision: the ratio has its spread, and the other precision no figures.
func TestTurns(t *testing.T) {
	c := testConfig(t)
	c.Cores, c.Precisions, c.Turns, c.Only = "0", "fp32", 3, "gru H256"
	count := filepath.Join(t.TempDir(), "count")
	c.Rondo = script(t, "rondo", "echo >>"+count+`
echo '{"precision":"fp32","threads":1,"windows":['$(($(wc -l <`+count+`) * 60))']}'`)
	var out bytes.Buffer
	if err := run(t.Context(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	const row = "| gru | 256 | 1 | 32 | 35 | 28 | 120 (1) | 120 (1, compiled) | 1.00x " +
		"(0.50 to 1.50) | none | none |  | 1.00x (0.50 to 1.50) |\n"
	if !strings.Contains(out.String(), row) || strings.Contains(out.String(), "torch bf16") {
		t.Errorf("%s\nlacks %q", &out, row)
	}
}

// What was measured before a failure is printed as a table.
func TestRunKeepsWhatItHas(t *testing.T) {
	c := testConfig(t)
	c.Only, c.Cores = "L1", "0"
	text, err := os.ReadFile(c.Python)
	if err != nil {
		t.Fatal(err)
	}
	c.Python = script(t, "python", options+"[ $cell = gru ] && exit 3\n"+string(text))
	var out bytes.Buffer
	err = run(t.Context(), c, &out, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "no setting works: exit status 3") {
		t.Errorf("%v", err)
	}
	const row = "| lstm | 256 | 1 | 32 | 35 | 28 | 300 (1) | 120 (1, compiled) | 2.50x |"
	if !strings.Contains(out.String(), row) || strings.Contains(out.String(), "| gru |") {
		t.Errorf("%s\nlacks %q", &out, row)
	}
}

func TestRunFails(t *testing.T) {
	failing := script(t, "failing", "exit 1")
	for name, c := range map[string]struct {
		change func(*config)
		want   string
	}{
		"modes":       {func(c *config) { c.Modes = "fast" }, `"fast" is not eager or compile`},
		"precisions":  {func(c *config) { c.Precisions = "fp64" }, `"fp64" is not fp32 or bf16`},
		"turns":       {func(c *config) { c.Turns = -1 }, "-turns"},
		"cores":       {func(c *config) { c.Cores = "0,x" }, `"x" is not the number of a core`},
		"seconds":     {func(c *config) { c.Seconds = 0 }, "-seconds"},
		"only":        {func(c *config) { c.Only = "transformer" }, `"transformer" in its name`},
		"no rondo":    {func(c *config) { c.Rondo += "-gone" }, "rondo-gone"},
		"no python":   {func(c *config) { c.Python += "-gone" }, "no setting works: exit status"},
		"rondo fails": {func(c *config) { c.Rondo = failing }, "exit status 1"},
		"torch fails": {func(c *config) { c.Python = failing }, "no setting works: exit status 1"},
		"not JSON": {func(c *config) { c.Rondo = script(t, "text", "echo hello") },
			"row 1 is not JSON"},
		"no rates": {func(c *config) { c.Rondo = script(t, "empty", "echo {}") },
			"a row without rates"},
	} {
		config := testConfig(t)
		config.Cores = "0"
		c.change(&config)
		err := run(context.Background(), config, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// PyTorch ends before it has said all: what it said counts, and the rest has the reason.
func TestTorchEndsEarly(t *testing.T) {
	c := testConfig(t)
	c.Cores = "0"
	c.Python = script(t, "python", `
echo '{"dtype":"float32","mode":"eager","threads":1,"windows":[100]}'
exit 7`)
	rows, err := c.runTorch(t.Context(), bench.Textbook()[0], plan{windows: 1}, 1, io.Discard)
	if err != nil || len(rows) != 4 {
		t.Fatalf("%v, %v", rows, err)
	}
	for i, m := range rows {
		if worked := i == 0; (m.rate() == 100) != worked ||
			!worked && m.failed != "exit status 7" {
			t.Errorf("%v: %v, %q", m.setting, m.windows, m.failed)
		}
	}
}

func TestInterrupted(t *testing.T) {
	c := testConfig(t)
	c.Cores = "0"
	ctx, cancel := context.WithCancel(t.Context())
	c.Rondo = script(t, "rondo", "cat") // which waits for ever, or for its input's end
	cancel()
	if err := run(ctx, c, io.Discard, io.Discard); err == nil {
		t.Error("it ran to its end")
	}
}

func TestGroups(t *testing.T) {
	all, err := config{Cores: "4,6"}.groups()
	if err != nil {
		t.Fatal(err)
	}
	shapes := 0
	for _, g := range all {
		shapes += len(g.shapes)
		if g.peer.Cell == compute.GRUResetBefore {
			t.Errorf("PyTorch has no %v", g.peer)
		}
		if want := g.peer.Cell == compute.GRU; (len(g.shapes) == 2) != want {
			t.Errorf("%v is held against %v", g.peer, g.shapes)
		}
		if !slices.Equal(g.threads, []int{1, 2}) {
			t.Errorf("%v with threads %v", g.peer, g.threads)
		}
	}
	if want := len(bench.Textbook()) + len(bench.Large()); shapes != want {
		t.Errorf("%d shapes, want %d", shapes, want)
	}
	all, err = config{Cores: "4,6", Quick: true, Only: "lstm"}.groups()
	if err != nil || len(all) != 3 || all[0].turns != 1 {
		t.Fatalf("quick: %+v, %v", all, err)
	}
	last := all[2]
	if last.peer.Hidden != 1024 || last.peer.Layers != 2 || !slices.Equal(last.threads, []int{2}) {
		t.Errorf("quick ends with %+v", last)
	}
}

// Turns add up, and one failure is enough.
func TestResults(t *testing.T) {
	var r results
	at := setting{precision: compute.FP32, threads: 1}
	other := setting{precision: compute.FP32, threads: 2}
	r.add(measured{setting: at, windows: []float64{1, 9}})
	r.add(measured{setting: other, windows: []float64{8}})
	r.add(measured{setting: at, windows: []float64{2, 3}})
	if best, ok := r.best(compute.FP32); !ok || best.setting != other || best.rate() != 8 {
		t.Errorf("%+v, %t", best, ok)
	}
	if got := r[0].rate(); got != 2.5 {
		t.Errorf("the median over both turns is %v", got)
	}
	r.add(measured{setting: other, failed: "killed"})
	if best, ok := r.best(compute.FP32); !ok || best.setting != at {
		t.Errorf("%+v, %t", best, ok)
	}
	if _, ok := r.best(compute.BF16); ok {
		t.Error("there is a best of nothing")
	}
	lone := newRow(bench.Textbook()[0], r, nil)
	if ratio := lone.overall().ratio(); ratio != 0 {
		t.Errorf("%v times nothing", ratio)
	}
}

// Both sides get the same shape and as many cores as threads.
func TestCommands(t *testing.T) {
	c := config{Rondo: "rondo", Python: "python", Script: "lm.py", Precisions: "fp32,bf16",
		Cores: "4,6", Modes: "eager", Seconds: 0.25}
	s := bench.Shape{Cell: compute.GRU, Hidden: 8, Layers: 3, Batch: 4, BPTT: 5, Vocab: 7, Embed: 6}
	const shape = "--cell gru --hidden 8 --layers 3 --batch 4 --bptt 5 --vocab 7 --embed 6 "
	for threads, cores := range map[int]string{1: "4", 2: "4,6"} {
		p := plan{windows: 9}
		end := shape + "--threads " + string(rune('0'+threads)) + " --seconds 0.25 --windows 9"
		for _, want := range []struct {
			line  []string
			start string
		}{
			{c.rondoCommand(s, p, threads), "rondo bench train --json --precision fp32,bf16 "},
			{c.torchCommand(s, p, threads),
				"python lm.py --dtype float32,bfloat16 --mode eager "},
		} {
			whole := "taskset --cpu-list " + cores + " " + want.start + end
			if text := strings.Join(want.line, " "); text != whole {
				t.Errorf("%s\nwant %s", text, whole)
			}
		}
	}
}
