package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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

// torch answers as torch_gpu.py does.
const torch = `case "$*" in *--versions*) echo '{"torch":"2","cudnn":90000,"gpu":true}' ;;
	*) echo '{"shape":"lstm:256:1:32:35:28:0","dtype":"float32","mode":"graph","windows":[100]}' ;;
	esac`

// A part that fails does not keep the others from being done, and all is in the archive.
func TestRun(t *testing.T) {
	c := config{Command: "facts", Out: t.TempDir(), Work: t.TempDir(), Limit: time.Minute,
		Only: "versions,core,rondo,torch", Folder: folder(t, map[string]string{
			"rondo": `echo "DEVICE"; echo "cuda:0 Test"`,
			"tests/cuda.test": `echo "--- PASS: TestA (0.1s)"; echo "    --- FAIL: TestB/c"
				echo "--- FAIL: TestB (0.1s)"; exit 1`,
			"gpu": `echo '{"shape":"lstm:256:1:32:35:28:0","precision":"fp32",` +
				`"tokens_per_second":200,"floor":400}'`,
			"python3": torch,
		})}
	c.Python = filepath.Join(c.Folder, "python3")
	var out bytes.Buffer
	err := run(context.Background(), c, &out)
	if err == nil || !strings.Contains(err.Error(), "failed: core") {
		t.Errorf("%v", err)
	}
	var got results
	text := unpack(t, filepath.Join(c.Out, "rondo-gpu-facts.tar.gz"))["results.json"]
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var verdicts []string
	for _, o := range got.Parts {
		verdicts = append(verdicts, o.Part+" "+o.Verdict)
	}
	if want := []string{"versions ok", "core FAILED", "rondo ok", "torch ok"}; !slices.Equal(
		verdicts, want) {
		t.Errorf("%q, want %q", verdicts, want)
	}
	if text := got.Parts[1].Error; !strings.Contains(text, "TestB/c") {
		t.Errorf("the test that failed is not named: %s", text)
	}
	for _, part := range []string{"cuda RONDO_CUDA_SPINS=: 1 passed, 1 failed, 0 skipped",
		"torch 2 (CUDA , cuDNN",
		"| textbook LSTM | fp32 | 200 | 100 | float32 graph | 2.00x | 400 | 50% |"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%s\nlacks %q", &out, part)
		}
	}
}

// A kernel that hangs is run again in a debug build, which says who waits.
func TestHang(t *testing.T) {
	var out bytes.Buffer
	s := &session{config: config{Work: t.TempDir(), Folder: folder(t, map[string]string{
		"tests/cuda.test": `echo "--- FAIL: TestPersistent (0.1s)"
			case "$RONDO_CUDA_SPINS $RONDO_CUDA_KERNELS" in
			" ") echo "it has not come to an end in 20s" ;;
			"16777216 "*/debug) echo "a persistent kernel's block (3, 0) looked" ;;
			esac
			exit 1`})}, out: &out}
	if _, err := core(t.Context(), s); err == nil ||
		!strings.Contains(out.String(), "\na persistent kernel's block (3, 0) looked\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// Without a GPU the first part fails, and the others are not done.
func TestNoGPU(t *testing.T) {
	c := config{Command: "tools", Out: t.TempDir(), Work: t.TempDir(), Limit: time.Minute,
		Folder: folder(t, map[string]string{"rondo": `echo "DEVICE"; echo cpu`})}
	err := run(context.Background(), c, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "no GPU, so that nothing else was run") {
		t.Errorf("%v", err)
	}
}

// What this machine lacks is skipped, with the reason.
func TestLacks(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	s := &session{config: config{Work: t.TempDir(), Folder: t.TempDir()}, out: io.Discard}
	for want, do := range map[string]func(context.Context, *session) (string, error){
		"no python3 here": peering(facts, "eager"), "RONDO_GPU_TEXT": textbook,
	} {
		if _, err := do(t.Context(), s); !errors.Is(err, errSkipped) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if path := tool("no-such-tool"); path != "" {
		t.Errorf("a tool that is nowhere was found: %s", path)
	}
}

// unpack returns an archive's files.
func unpack(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for reader := tar.NewReader(unzipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

// An archive has the ends of long files, and no more than its limit.
func TestArchive(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "all.tar.gz")
	long := []byte("begins" + strings.Repeat("x", 3*keptBytes) + "ends")
	for name, text := range map[string][]byte{"long": long, "short": []byte("short")} {
		if err := os.WriteFile(filepath.Join(from, name), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive(from, to); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, to)
	if text := got["long"]; len(text) != 2*keptBytes || !bytes.HasPrefix(text, []byte("begins")) ||
		!bytes.HasSuffix(text, []byte("ends")) || !bytes.Contains(text, []byte("\n[...]\n")) ||
		string(got["short"]) != "short" || len(got) != 2 {
		t.Errorf("%d files, %d bytes of the long one", len(got), len(text))
	}
	for i := range archiveFiles {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprint(i)), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive(from, to); err == nil || !strings.Contains(err.Error(), "more than 40") {
		t.Errorf("42 files: %v", err)
	}
}

// The parts of a command end within its limit, and each command begins with the versions.
func TestParts(t *testing.T) {
	for _, command := range []string{"facts", "tests", "tools"} {
		sum, all := time.Duration(0), parts(command)
		for _, p := range all {
			sum += p.limit
		}
		if len(all) < 2 || all[0].name != first || sum > commandLimit {
			t.Errorf("%s: %d parts, %v together", command, len(all), sum)
		}
	}
}

// A part that hangs ends at its limit, and one for which no time is left is skipped.
func TestLimits(t *testing.T) {
	s := &session{config: config{Work: t.TempDir()}, out: io.Discard}
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
		"not a command": {Command: "all"}, "-only": {Command: "facts", Only: "core,other"},
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
	s := &session{config: config{Work: t.TempDir(), Folder: folder(t, map[string]string{"rondo": `
		echo '{"event":"worker","rank":0,"device":"cuda:0 X"}'
		for i in $(seq 120); do echo '{"event":"step","step":'$i',"loss":2.5}'; done
		echo '{"event":"step","loss":null}' | head -c ${EXTRA:-0}
		echo '{"event":"done","tokens_per_second":10}'`})}, out: io.Discard}
	c, err := s.job(context.Background(), "gpu lstm", s.jobFlags("lstm"), "--device", "cuda:0")
	if err != nil || len(c.Losses) != jobSteps || c.Rate != 10 || c.Devices[0] != "cuda:0 X" {
		t.Errorf("%v, %v", c, err)
	}
	t.Setenv("EXTRA", "1000")
	if _, err = s.job(context.Background(), "gpu lstm", s.jobFlags("lstm")); err == nil ||
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

// A killed worker's job says how long its steps stood still, and one that does not end fails.
func TestKill(t *testing.T) {
	s := &session{config: config{Work: t.TempDir(), Emulated: true,
		Folder: folder(t, map[string]string{"rondo": `case "$*" in *"kill rank=1 step=10 "*) ;; *)
			exit 1 ;; esac
		for i in $(seq ${STEPS:-20}); do
			[ $i != 11 ] || sleep 0.3
			[ $i != ${RING:-11} ] || echo '{"event":"generation"}'
			echo '{"event":"step","step":'$i',"loss":2.5}'
		done
		echo '{"event":"generation"}'`})}, out: io.Discard}
	said, err := kill(context.Background(), s)
	took, _ := time.ParseDuration(said[strings.LastIndex(said, " ")+1:])
	if err != nil || took < 300*time.Millisecond || took > time.Minute {
		t.Errorf("%q, %v", said, err)
	}
	t.Setenv("RING", "0")
	if _, err := kill(context.Background(), s); err == nil ||
		!strings.Contains(err.Error(), "no worker was killed") {
		t.Errorf("%v", err)
	}
	t.Setenv("STEPS", "12")
	if _, err := kill(context.Background(), s); err == nil ||
		!strings.Contains(err.Error(), "the last step is 12, want 20") {
		t.Errorf("%v", err)
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
	for _, c := range slices.Concat(contests().contests, facts().small().contests) {
		if got, err := parseShape(key(c.shape)); err != nil || got != c.shape {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
	for _, text := range []string{"lstm", "lstm:1:2", "cow:1:1:1:1:2:0", "lstm:1:1:1:1:2:0:3"} {
		if _, err := parseShape(text); err == nil {
			t.Errorf("%q is taken for a shape", text)
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
	g := gpu{hostless{d}, d.Bytes, func() (int64, error) { return 7, nil }, compute.FP32,
		64}
	s := bench.Shape{Cell: compute.LSTM, Hidden: 8, Layers: 1, Batch: 2, BPTT: 4, Vocab: 5}
	var held [2]int64
	for i := range held {
		m, err := g.measure(t.Context(), s, bench.Windows{Length: time.Millisecond, Count: 1})
		if err != nil || !(m.TokensPerSecond > 0) || !(m.PeakGFLOPS > 0) ||
			m.UsedBytes != 7 || m.Shape != "lstm:8:1:2:4:5:0" {
			t.Errorf("%+v, %v", m, err)
		}
		held[i], _ = d.Bytes()
	}
	if held[0] != held[1] {
		t.Errorf("bytes held after the first time and the second: %d", held)
	}
}

// TestPack unpacks what was packed.
func TestPack(t *testing.T) {
	text := strings.Repeat("a program ", 1<<16)
	var packed, unpacked strings.Builder
	if err := compress(&packed, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	err := decompress(&unpacked, strings.NewReader(packed.String()))
	if err != nil || unpacked.String() != text || packed.Len() > 1<<10 {
		t.Errorf("%v: %d bytes, packed %d", err, unpacked.Len(), packed.Len())
	}
	half := packed.String()[:packed.Len()/2]
	if err := decompress(&unpacked, strings.NewReader(half)); err == nil {
		t.Error("half a pack is unpacked")
	}
}
