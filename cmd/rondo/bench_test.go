package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"rondo/bench"
	"rondo/compute/cpu"
	"rondo/internal/app"
)

// runBench runs `rondo bench` with the words of a line.
func runBench(ctx context.Context, line string) (code int, stdout, stderr string) {
	var out, complaint bytes.Buffer
	command := root()
	command.SetOut(&out)
	code = app.Run(ctx, command, append([]string{"bench"}, strings.Fields(line)...), &complaint)
	return code, out.String(), complaint.String()
}

const tinyBench = "--hidden 8 --batch 2 --bptt 3 --seconds 0.005 --threads 1 "

func TestBenchTrain(t *testing.T) {
	code, out, complaint := runBench(t.Context(),
		"train --cell lstm,gru --precision fp32,bf16 --windows 2 --json "+tinyBench)
	if code != 0 {
		t.Fatal(complaint)
	}
	decoder := json.NewDecoder(strings.NewReader(out))
	for _, want := range []string{"lstm fp32", "lstm bf16", "gru fp32", "gru bf16"} {
		var r bench.TrainRow
		if err := decoder.Decode(&r); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := r.Cell + " " + r.Precision; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if r.Hidden != 8 || r.Vocab != 28 || r.Threads != 1 || len(r.Windows) != 2 ||
			r.TokensPerSecond <= 0 || r.OfPeak <= 0 || r.PeakBytes <= r.ParameterBytes {
			t.Errorf("%+v", r)
		}
	}
	if err := decoder.Decode(&struct{}{}); err != io.EOF {
		t.Errorf("after the last row: %v", err)
	}
}

func TestBenchTables(t *testing.T) {
	code, out, complaint := runBench(t.Context(), "train --precision fp32 --windows 1 "+tinyBench)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "fp32, threads 1: cpu (") ||
		len(lines[1]) != len(lines[2]) || len(lines[1]) > 100 {
		t.Errorf("%d, %s\n%s", code, complaint, out)
	}
	code, out, complaint = runBench(t.Context(), "kernels --precision fp32 "+tinyBench)
	if code != 0 {
		t.Error(complaint)
	}
	for _, want := range []string{"lstm H 8, L 1, B 2, T 3, V 28, E 0, fp32, 1 thread, peak ",
		"\n" + bench.PartOutput + " ", "\n" + bench.PartStep + " "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	code, out, _ = runBench(t.Context(), "kernels --json --precision fp32 "+tinyBench)
	var r bench.KernelRow
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil || code != 0 ||
		r.Part == "" || r.Hidden != 8 {
		t.Errorf("%d, %v, %+v", code, err, r)
	}
}

// Threads 0 are as many as there are cores; more than those are measured, with a word about it.
func TestBenchThreads(t *testing.T) {
	cores := runtime.GOMAXPROCS(0)
	for threads, crowded := range map[int]bool{0: false, cores: false, cores + 1: true} {
		code, out, complaint := runBench(t.Context(), fmt.Sprintf("train --json --hidden 8 "+
			"--batch 2 --bptt 3 --seconds 0.001 --windows 1 --precision fp32 --threads %d",
			threads))
		var r bench.TrainRow
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
			t.Fatalf("%d, %v, %s", code, err, complaint)
		}
		device, err := cpu.New(cpu.Config{Threads: max(threads, 1)})
		if err != nil {
			t.Fatal(err)
		}
		want := device.Threads() // without cgo it has one
		if device.Close(); threads == 0 {
			want = min(cores, r.Threads) // and with cgo all cores
		}
		if r.Threads != want || (complaint != "") != crowded || strings.Count(complaint, "\n") > 1 {
			t.Errorf("--threads %d: %d threads, %q", threads, r.Threads, complaint)
		}
	}
}

// The table has a column for embedding or recomputation only if a shape has it.
func TestBenchTrainColumns(t *testing.T) {
	const flags = "train --cell gru-reset-before --precision bf16 --windows 1 " + tinyBench
	for _, more := range []string{"", "--embed 0,4", "--recompute 0,2"} {
		code, out, complaint := runBench(t.Context(), flags+more)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		want := 3
		if more != "" {
			want = 4
		}
		if code != 0 || len(lines) != want {
			t.Fatalf("%q: %d, %s\n%s", more, code, complaint, out)
		}
		head := lines[1]
		if strings.Contains(head, " E ") != strings.Contains(more, "embed") ||
			strings.Contains(head, "recompute") != strings.Contains(more, "recompute") {
			t.Errorf("%q: %s", more, head)
		}
		for _, line := range lines[2:] {
			if len(line) != len(head) {
				t.Errorf("%q:\n%s\n%s", more, head, line)
			}
		}
	}
}

// A part below the noise is n/a, and a figure without meaning is empty.
func TestKernelTable(t *testing.T) {
	var out bytes.Buffer
	unknown := bench.Figure(math.NaN())
	rows := []bench.KernelRow{
		{Part: "gates", Seconds: unknown, Share: unknown, TokensPerSecond: unknown},
		{Part: "update", Seconds: 0.001, Share: 0.5, TokensPerSecond: 1000, GBPerSecond: 2,
			AddGBPerSecond: 3, InCache: true}}
	if err := newKernelTable(&out, false).add(rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if got := strings.Join(strings.Fields(lines[2]), " "); got != "gates n/a n/a n/a" {
		t.Errorf("%q", got)
	}
	const want = "update 1.000 50.0% 1,000 2.0 3.0 (cache)"
	if got := strings.Join(strings.Fields(lines[3]), " "); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A wrong flag is one line, before any measurement.
func TestBenchRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"train --cell lstm,transformer": `--cell "transformer" is not one of rnn`,
		"train --hidden 0":              "--hidden 0: must be",
		"train --hidden 8,x":            "--hidden",
		"train --precision fp64":        `--precision "fp64" is not one of fp32, bf16, tf32`,
		"train --precision= --hidden 8": "nothing to measure",
		"train --cell= ":                "no shape to measure",
		"train --threads -1":            "--threads -1 is below its least value, 0",
		"train --threads 5000":          "--threads 5000 is above its greatest value, 1024",
		"train --recompute -1":          "--recompute -1: must be at least 0",
		"kernels --recompute 2":         "unknown flag: --recompute",
		"train --seconds 0":             "--seconds 0: must be",
		"train --seconds NaN":           "--seconds NaN: must be more than 0",
		"kernels --seconds -Inf":        "--seconds -Inf: must be",
		"train --windows 0":             "--windows 0: must be",
		"train --large --hidden 8":      "leave out --hidden",
		"train extra":                   `unexpected argument "extra"`,
		"kernels --seconds -1":          "--seconds -1: must be",
		"kernels --windows 3":           "unknown flag: --windows",
		"kernels --vocab 1":             "--vocab 1: must be at least 2",
		"kernel":                        "did you mean kernels?",
	} {
		code, out, complaint := runBench(t.Context(), line)
		if code != app.ExitUsage || out != "" || strings.Count(complaint, "\n") != 1 ||
			!strings.Contains(complaint, want) {
			t.Errorf("%s: exit %d, %q, %q; want %q", line, code, out, complaint, want)
		}
	}
}

func TestBenchIsInterrupted(t *testing.T) {
	for _, command := range []string{"train", "kernels"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		code, _, complaint := runBench(ctx, command+" --seconds 60 --precision fp32 --threads 1")
		if want := "rondo bench " + command + ": interrupted; the rows above are whole\n"; code !=
			1 || complaint != want {
			t.Errorf("exit %d, %q; want %q", code, complaint, want)
		}
	}
}

// Without flags of the shape it is the textbook's, and with --large more.
func TestBenchShapes(t *testing.T) {
	for line, want := range map[string]int{
		"":                              len(bench.Textbook()),
		"--large":                       len(bench.Textbook()) + len(bench.Large()),
		"--hidden 8,16 --cell gru,lstm": 4,
	} {
		set := pflag.NewFlagSet("bench", pflag.ContinueOnError)
		flags := addBenchFlags(set, time.Second)
		if err := set.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if shapes, err := flags.shapes(); err != nil || len(shapes) != want {
			t.Errorf("%q: %d shapes, %v; want %d", line, len(shapes), err, want)
		}
	}
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "", 999.4: "999", 999.5: "1,000",
		1234567: "1,234,567"} {
		if got := thousands(v); got != want {
			t.Errorf("thousands(%v) = %s; want %s", v, got, want)
		}
	}
}
