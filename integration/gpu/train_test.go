//go:build cuda

package gpu

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tiny is a job of a few steps.
func tiny(extra ...string) []string {
	return append([]string{"train", "--json", "--max-tokens", "4000", "--hidden", "16", "--batch",
		"6", "--bptt", "8", "--layers", "1", "--dropout", "0", "--optimizer", "sgd",
		"--lr", "0.5", "--lr-schedule", "constant", "--validation-fraction", "0",
		"--clip-scope", "global", "--steps", "8", "--sample-tokens", "0",
		"--chunk-timeout", "20s", "--lease-ttl", "60s", "--step-timeout", "2m",
		"--regroup-timeout", "4m", "--checkpoint-dir", "none"}, extra...)
}

// tolerance is for float32 sums in another order, and other instructions for exp, over a tiny job's
// steps.
const tolerance = 1e-4

// same holds a loss curve against that of a job on the CPU.
func same(t *testing.T, got, want []float64) {
	t.Helper()
	if len(got) != len(want) || len(got) == 0 {
		t.Fatalf("%d steps, want %d", len(got), len(want))
	}
	worst := 0.0
	for i := range want {
		worst = max(worst, math.Abs(got[i]-want[i])/want[i])
	}
	t.Logf("largest relative difference of the loss: %.2g", worst)
	if !(worst <= tolerance) {
		t.Errorf("%g over the limit of %g:\n%v\n%v", worst, tolerance, got, want)
	}
}

func TestDevices(t *testing.T) {
	table := run(t, nil, "rondo", "devices")
	if table.code != 0 || !strings.Contains(table.stdout, "\ncuda:0  ") {
		t.Errorf("exit code %d\n%s%s", table.code, table.stdout, table.stderr)
	}
	listed := run(t, nil, "rondo", "devices", "-o", "json")
	var found struct {
		CUDA bool
		NCCL string
		GPUs []struct {
			Name, UUID, Driver, Problem string
			Capability                  string `json:"compute_capability"`
			Memory, Free                int64
			CUBLAS                      bool
		}
	}
	if err := json.Unmarshal([]byte(listed.stdout), &found); err != nil || !found.CUDA ||
		len(found.GPUs) == 0 {
		t.Fatalf("%v: %s", err, listed.stdout)
	}
	if shared.libraries != "" && found.NCCL != "2.23.4" {
		t.Errorf("NCCL %q", found.NCCL)
	}
	for _, g := range found.GPUs {
		if g.Name == "" || g.UUID == "" || g.Driver == "" || g.Problem != "" ||
			g.Capability == "" || g.Free <= 0 || g.Free > g.Memory {
			t.Errorf("%+v", g)
		}
	}
}

// A GPU that is too old is listed with its known properties.
func TestDeviceTooOld(t *testing.T) {
	emulated(t)
	r := run(t, []string{"RONDO_EMULATOR_CAPABILITY=37"}, "rondo", "devices")
	if r.code != 0 || !strings.Contains(r.stdout, "\ncuda:0 cannot be used: ") ||
		!strings.Contains(r.stdout, " 2.0 GiB  2.0 GiB  3.7 ") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// Without a driver a CUDA build computes on the CPU, and names the libraries that it looked for.
func TestNoDriver(t *testing.T) {
	emulated(t)
	nowhere := []string{"LD_LIBRARY_PATH="}
	refused := run(t, nowhere, "rondo", tiny("--device", "cuda")...)
	if refused.code != 1 || strings.Count(refused.stderr, "\n") != 1 ||
		!strings.Contains(refused.stderr, "--device cuda: ") ||
		!strings.Contains(refused.stderr, "libcuda.so.1") {
		t.Errorf("exit code %d, %q", refused.code, refused.stderr)
	}
	auto := run(t, nowhere, "rondo", tiny("--workers", "auto")...)
	if workers := auto.events(t, "worker"); auto.code != 0 || len(workers) != 1 ||
		!strings.HasPrefix(fmt.Sprint(workers[0]["device"]), "cpu") ||
		strings.Count(auto.stderr, "--device auto: the CPU, for want of a GPU") != 1 {
		t.Errorf("exit code %d, %v, %q", auto.code, workers, auto.stderr)
	}
}

// One worker on a GPU, two that share it, and one on each of two GPUs have the loss curve of one
// worker on the CPU. Their checkpoints work on both.
func TestTrain(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	want := run(t, nil, "rondo", tiny("--device", "cpu", "--workers", "1")...).losses(t)
	for _, c := range []struct {
		name     string
		settings []string
		flags    []string
		devices  []string
		says     string
	}{
		{"one", nil, []string{"--device", "cuda:0", "--workers", "1", "--checkpoint-dir", folder},
			[]string{"cuda:0"}, ""},
		{"two on one", nil, []string{"--device", "cuda:0", "--workers", "2"},
			[]string{"cuda:0", "cuda:0"}, "2 workers share cuda:0"},
		{"auto", []string{"RONDO_EMULATOR_DEVICES=2"}, []string{"--workers", "auto"},
			[]string{"cuda:0", "cuda:1"}, "--device auto: cuda:0, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.settings != nil {
				emulated(t)
			}
			got := run(t, c.settings, "rondo", tiny(c.flags...)...)
			same(t, got.losses(t), want)
			if devices := devicesOf(t, got); !slices.Equal(devices, c.devices) {
				t.Errorf("on %v, want %v", devices, c.devices)
			}
			if !strings.Contains(got.stderr, c.says) {
				t.Errorf("no %q in %q", c.says, got.stderr)
			}
		})
	}
	t.Run("use", func(t *testing.T) { testUse(t, folder) })
}

// testUse compares a GPU's text and evaluation with the CPU's.
func testUse(t *testing.T, folder string) {
	both := func(args ...string) (gpu, cpu result) {
		gpu = run(t, nil, "rondo", append(args, "--checkpoint", folder, "--device", "cuda")...)
		cpu = run(t, nil, "rondo", append(args, "--checkpoint", folder, "--device", "cpu")...)
		if gpu.code != 0 || cpu.code != 0 {
			t.Fatalf("%v: exit codes %d and %d\n%s%s", args, gpu.code, cpu.code, gpu.stderr,
				cpu.stderr)
		}
		return gpu, cpu
	}
	written, want := both("generate", "--greedy", "--tokens", "20", "--prefix", "light ")
	if written.stdout != want.stdout {
		t.Errorf("%q, want %q", written.stdout, want.stdout)
	}
	text := filepath.Join("..", "..", "go.mod")
	measured, expected := both("eval", "--json", "--corpus", text)
	loss := func(r result) []float64 {
		value, _ := r.events(t, "eval")[0]["loss"].(float64)
		return []float64{value}
	}
	same(t, loss(measured), loss(expected))
}

// devicesOf are those of a job's workers, in order.
func devicesOf(t *testing.T, r result) []string {
	t.Helper()
	var all []string
	for _, e := range r.events(t, "worker") {
		name, _, _ := strings.Cut(fmt.Sprint(e["device"]), " ")
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// A worker on a GPU and one on the CPU make one ring, and hold the same parameters to the bit, or
// --check-every would find it.
func TestMixed(t *testing.T) {
	want := run(t, nil, "rondo", tiny("--device", "cpu", "--workers", "1")...).losses(t)
	etcd := startEtcd(t)
	flags := []string{"--etcd", etcd, "--job", "mixed"}
	other := launch(t, nil, "worker", append(flags, "--device", "cuda:0")...)
	got := run(t, nil, "rondo", tiny(append(flags, "--device", "cpu", "--workers", "2",
		"--local-workers", "1", "--check-every", "1")...)...)
	same(t, got.losses(t), want)
	devices := devicesOf(t, got)
	if len(devices) != 2 || devices[0] != "cpu" || devices[1] != "cuda:0" {
		t.Errorf("on %v, want a CPU and a GPU", devices)
	}
	if r := other(); r.code != 0 {
		t.Errorf("the GPU's worker: exit code %d\n%s", r.code, r.stderr)
	}
}

func TestBench(t *testing.T) {
	r := run(t, nil, "rondo", "bench", "train", "--device", "cuda:0", "--json", "--hidden", "8",
		"--batch", "2", "--bptt", "3", "--seconds", "0.01", "--windows", "1")
	var rows []string
	for line := range strings.Lines(r.stdout) {
		var row struct {
			Precision, Device string
			Threads           int
			Rate              float64 `json:"tokens_per_second"`
			Peak              int64   `json:"peak_bytes"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.Rate <= 0 ||
			row.Peak <= 0 || row.Threads != 0 || !strings.HasPrefix(row.Device, "cuda:0 ") {
			t.Errorf("%v: %s", err, line)
		}
		rows = append(rows, row.Precision)
	}
	if want := []string{"fp32", "tf32", "bf16", "fp16"}; r.code != 0 || !slices.Equal(rows, want) {
		t.Errorf("exit code %d, rows %v; want %v\n%s", r.code, rows, want, r.stderr)
	}
}
