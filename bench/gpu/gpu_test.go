package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/bench"
	"rondo/compute"
	"rondo/compute/cpu"
)

// folder makes one with programs that are scripts.
func folder(t *testing.T, scripts map[string]string) string {
	t.Helper()
	path := t.TempDir()
	for name, text := range scripts {
		file := filepath.Join(path, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// A part that fails does not keep the others from being done, and all is in the file.
func TestRun(t *testing.T) {
	c := config{Out: t.TempDir(), Python: "false", Limit: time.Minute, Only: "devices,tests,speed",
		Folder: folder(t, map[string]string{
			"tests/cuda.test": `echo "--- PASS: TestA (0.1s)"; echo "    --- FAIL: TestB/c"
				echo "--- FAIL: TestB (0.1s)"; exit 1`,
			"gpu": `case "$*" in *-list*) echo "cuda:0 Test" ;;
				*) echo '{"precision":"fp32","tokens_per_second":200,"floor":400}' ;; esac`,
		})}
	var out bytes.Buffer
	err := run(context.Background(), c, &out)
	if err == nil || !strings.Contains(err.Error(), "failed: tests") {
		t.Errorf("%v", err)
	}
	var got results
	text, err := os.ReadFile(filepath.Join(c.Out, "results.json"))
	if err != nil || json.Unmarshal(text, &got) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var verdicts []string
	for _, o := range got.Parts {
		verdicts = append(verdicts, o.Part+" "+o.Verdict)
	}
	if want := []string{"devices ok", "tests FAILED", "speed ok"}; !slices.Equal(verdicts, want) {
		t.Errorf("%q, want %q", verdicts, want)
	}
	if text := got.Parts[1].Error; !strings.Contains(text, "TestB/c") {
		t.Errorf("the test that failed is not named: %s", text)
	}
	for _, part := range []string{"cuda RONDO_CUDA_PTX=70: 1 passed, 1 failed, 0 skipped",
		"| textbook LSTM | fp32 | 200 | 0 |  |  | 400 | 50% |"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%s\nlacks %q", &out, part)
		}
	}
}

// A part that hangs ends at its limit, and one for which no time is left is skipped.
func TestLimits(t *testing.T) {
	s := &session{config: config{Out: t.TempDir()}, out: io.Discard}
	hang := func(ctx context.Context, s *session) (string, error) {
		_, err := s.output(ctx, "hang", "sh", "-c", "sleep 600 & sleep 600")
		return "", err
	}
	began := time.Now()
	s.do(context.Background(), part{"hang", 100 * time.Millisecond, hang})
	late, cancel := context.WithCancel(context.Background())
	cancel()
	s.do(late, part{"late", time.Minute, hang})
	s.do(context.Background(), part{"absent", time.Minute,
		func(context.Context, *session) (string, error) {
			return "", fmt.Errorf("%w: not here", errSkipped)
		}})
	for i, want := range []struct{ verdict, text string }{{"FAILED", "longer than 100ms"},
		{"skipped", "no time"}, {"skipped", "not here"}} {
		if o := s.results.Parts[i]; o.Verdict != want.verdict ||
			!strings.Contains(o.Error, want.text) {
			t.Errorf("%+v, want %v", o, want)
		}
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	for text, c := range map[string]config{
		"-minutes": {}, "-only": {Limit: time.Hour, Only: "speed,other"},
	} {
		if err := run(context.Background(), c, io.Discard); err == nil ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestCurves(t *testing.T) {
	figures := func(values ...float64) (all []bench.Figure) {
		for _, v := range values {
			all = append(all, bench.Figure(v))
		}
		return all
	}
	nan := math.NaN()
	for name, c := range map[string]struct {
		a, b []bench.Figure
		want float64
	}{
		"same":    {figures(2, 1), figures(2, 1), 0},
		"apart":   {figures(2.2, 1.05), figures(2, 1), 0.1},
		"nan":     {figures(nan, 1), figures(2, 1), nan},
		"nan too": {figures(2, nan, 1), figures(2, 1, 1), nan},
		"shorter": {figures(2), figures(2, 1), nan},
		"none":    {nil, nil, nan},
	} {
		got := float64(farthest(c.a, c.b))
		if math.IsNaN(c.want) != math.IsNaN(got) || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	s := &session{out: io.Discard}
	reference := curve{Losses: figures(2, 1)}
	for _, c := range []struct {
		name string
		last float64
		ok   bool
	}{{"gpu lstm fp32", 1.001, true}, {"gpu lstm fp32", 1.01, false},
		{"gpu lstm bf16", 1.01, true}, {"gpu lstm tf32", 1.06, false},
		{"gpu lstm fp16", nan, false}, {"cpu and gpu lstm", 1.01, false}} {
		err := s.compare(curve{Name: c.name, Losses: figures(2, c.last)}, reference, nil)
		if (err == nil) != c.ok {
			t.Errorf("%s, %v: %v", c.name, c.last, err)
		}
	}
	if _, err := json.Marshal(s.results); err != nil {
		t.Error(err)
	}
	if err := s.compare(curve{}, reference, errors.New("said before")); err != nil {
		t.Error(err)
	}
}

// A job's command is one that rondo train takes, and its events make a curve.
func TestJob(t *testing.T) {
	s := &session{config: config{Out: t.TempDir(), Folder: folder(t, map[string]string{"rondo": `
		echo '{"event":"worker","rank":0,"device":"cuda:0 X"}'
		for i in $(seq 120); do echo '{"event":"step","step":'$i',"loss":2.5}'; done
		echo '{"event":"step","loss":null}' | head -c ${EXTRA:-0}
		echo '{"event":"done","tokens_per_second":10}'`})}, out: io.Discard}
	c, err := s.job(context.Background(), "gpu lstm", jobFlags("lstm"), "--device", "cuda:0")
	if err != nil || len(c.Losses) != jobSteps || c.Rate != 10 || c.Devices[0] != "cuda:0 X" {
		t.Errorf("%v, %v", c, err)
	}
	t.Setenv("EXTRA", "1000")
	if _, err = s.job(context.Background(), "gpu lstm", jobFlags("lstm")); err == nil ||
		!strings.Contains(err.Error(), "121 steps, want 120") {
		t.Errorf("%v", err)
	}
}

func TestSanitized(t *testing.T) {
	for text, want := range map[string]string{
		"--- PASS: TestA\n========= ERROR SUMMARY: 0 errors\n": "memcheck: 0 errors, 1 tests",
		"========= Invalid __global__ read of size 4 bytes\n":  "memcheck: 1 errors",
		"========= Error: Race reported between\n":             "memcheck: 1 errors",
	} {
		got, found := sanitized("memcheck", []byte(text), false)
		if !strings.HasPrefix(got, want) || found == strings.Contains(want, "0 errors") {
			t.Errorf("%q: %s, %v", text, got, found)
		}
	}
}

// The peer's best setting counts, whatever the weights are made of.
func TestRows(t *testing.T) {
	var r row
	r.add(peerRow{Dtype: "bfloat16", Mode: "eager", Windows: []float64{1, 3, 2}})
	r.add(peerRow{Dtype: "bfloat16-weights", Mode: "graph", Windows: []float64{5, 4, 6}})
	r.add(peerRow{Dtype: "bfloat16", Mode: "graph", Failed: "no"})
	if r.Torch != 5 || r.Best != "bfloat16-weights graph" || len(r.Peers) != 3 {
		t.Errorf("%+v", r)
	}
	for _, c := range contests() {
		if err := c.shape.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// hostless is a CPU that claims to have memory of its own.
type hostless struct{ *cpu.Device }

func (hostless) Record(func() error) (compute.Recording, error) {
	return nil, errors.New("a CPU has no graphs")
}

// What a GPU is measured with runs on any device.
func TestMeasure(t *testing.T) {
	d, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	g := gpu{hostless{d}, d.Bytes, compute.FP32, 64}
	s := bench.Shape{Cell: compute.LSTM, Hidden: 8, Layers: 1, Batch: 2, BPTT: 4, Vocab: 5}
	var held [2]int64
	for i := range held {
		m, err := g.measure(t.Context(), s, bench.Windows{Length: time.Millisecond, Count: 1})
		if err != nil || !(m.TokensPerSecond > 0) || !(m.PeakGFLOPS > 0) {
			t.Errorf("%+v, %v", m, err)
		}
		held[i], _ = d.Bytes()
	}
	if held[0] != held[1] {
		t.Errorf("bytes held after the first time and the second: %d", held)
	}
}
