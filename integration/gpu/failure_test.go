//go:build cuda

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A job whose only GPU lacks memory fails at once, with the sizes and with flags that would fit.
func TestNoMemory(t *testing.T) {
	emulated(t)
	r := run(t, []string{memory(240)}, "rondo", tiny("--device", "cuda", "--workers", "1",
		"--hidden", "512", "--batch", "256", "--bptt", "64", "--max-tokens", "30000")...)
	failed := r.events(t, "failed")
	if r.code == 0 || len(failed) != 1 {
		t.Fatalf("exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	reason := fmt.Sprint(failed[0]["reason"])
	for _, want := range []string{"cuda:0 ", "no memory for ", " bytes or more", "are free",
		"a worker of 256 lanes takes about ", "it would fit with --batch ", "--recompute "} {
		if !strings.Contains(reason, want) {
			t.Errorf("no %q in %q", want, reason)
		}
	}
	if !strings.Contains(r.stderr, "cuda:0 may have too little memory; a worker of 256 lanes") {
		t.Errorf("nobody was warned: %q", r.stderr)
	}
}

// memory is the setting of an emulated GPU's, in MiB.
func memory(mebibytes int) string {
	return fmt.Sprintf("RONDO_EMULATOR_MEMORY=%d", mebibytes<<20)
}

// A job goes on without a worker whose GPU lacks memory, and reports the reason.
func TestGoesOnWithoutMemory(t *testing.T) {
	emulated(t)
	etcd := startEtcd(t)
	flags := []string{"--etcd", etcd, "--job", "lack"}
	poor := launch(t, []string{memory(40)}, "worker", append(flags, "--device", "cuda:0")...)
	rich := run(t, nil, "rondo", tiny(append(flags, "--device", "cpu", "--workers", "2",
		"--local-workers", "1", "--hidden", "512", "--batch", "64", "--max-tokens", "8000")...)...)
	if n := len(rich.losses(t)); n != 8 {
		t.Errorf("%d steps, want 8", n)
	}
	rings := rich.events(t, "generation")
	last := rings[len(rings)-1]
	if last["world_size"] != 1.0 || !strings.Contains(fmt.Sprint(last["reason"]), "no memory for") {
		t.Errorf("the last ring: %v", last)
	}
	if r := poor(); r.code != 1 || strings.Count(r.stderr, "worker: ") != 1 ||
		!strings.Contains(r.stderr, "no memory for") {
		t.Errorf("the worker without memory: exit code %d\n%s", r.code, r.stderr)
	}
}

// A GPU's worker that dies is missed, and the one that comes instead is given the state, in its
// GPU's memory.
func TestReplacement(t *testing.T) {
	flags := []string{"--workers", "2", "--steps", "20", "--chunk-timeout", "5s"}
	want := run(t, nil, "rondo", tiny(append(flags, "--device", "cpu")...)...).losses(t)
	got := run(t, nil, "rondo", tiny(append(flags, "--device", "cuda", "--check-every", "1",
		"--inject", "kill rank=1 step=4 phase=all-gather; delay rank=* for=200ms phase=forward "+
			"times=0")...)...)
	same(t, got.losses(t), want)
	rings := got.events(t, "generation")
	if n := len(rings); n < 2 || rings[n-1]["world_size"] != 2.0 {
		t.Errorf("rings: %v", rings)
	}
	if n := len(got.events(t, "worker")); n < 4 {
		t.Errorf("%d workers were in rings, want two and, after the death, two again", n)
	}
}

// A GPU that fails ends its worker with the reason. The worker is started again, because only a new
// process can use the GPU, and the job goes on as if nothing had been.
func TestBrokenGPU(t *testing.T) {
	emulated(t)
	file := filepath.Join(t.TempDir(), "breaks")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--workers", "2", "--steps", "20", "--chunk-timeout", "5s"}
	want := run(t, nil, "rondo", tiny(append(flags, "--device", "cpu")...)...).losses(t)
	got := run(t, []string{"RONDO_EMULATOR_BREAKS=" + file, "RONDO_EMULATOR_KERNELS=100"}, "rondo",
		tiny(append(flags, "--device", "cuda", "--check-every", "1")...)...)
	if _, err := os.Stat(file); err == nil {
		t.Fatal("no GPU has failed")
	}
	same(t, got.losses(t), want)
	if n := len(got.events(t, "worker")); n < 3 {
		t.Errorf("%d workers were in rings, want two and the one that was started again", n)
	}
	for _, part := range []string{"CUDA_ERROR_LAUNCH_FAILED (719)", "it is started again (1 of"} {
		if !strings.Contains(got.stdout+got.stderr, part) {
			t.Errorf("nothing says %q:\n%s", part, got.stderr)
		}
	}
}
