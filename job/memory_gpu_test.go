//go:build cuda

package job

import (
	"os"
	"os/exec"
	"testing"

	"rondo/compute/cuda/emulator"
	rondov1 "rondo/proto/rondo/v1"
)

// onGPU has a test run by itself on the emulated driver where there is no GPU, and then returns
// false.
func onGPU(t *testing.T) bool {
	t.Helper()
	const marker = "RONDO_TEST_ON_EMULATOR"
	found, err := GPUs()
	if len(found) > 0 {
		return true
	}
	if os.Getenv(marker) != "" {
		t.Fatalf("the emulated driver shows no GPU: %v", err)
	}
	folder, err := emulator.Build("")
	if err != nil {
		t.Fatal(err)
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
	again.Env = append(os.Environ(), marker+"=1", "LD_LIBRARY_PATH="+folder)
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("on the emulated driver: %v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
	return false
}

// TestGPUMemory holds the estimate against what a GPU counts when a segment of that shape has run.
// It is for advice, so it may be somewhat off.
func TestGPUMemory(t *testing.T) {
	if !onGPU(t) {
		return
	}
	type change = func(*rondov1.JobSpec)
	for name, c := range map[string]struct {
		vocabulary int
		change     change
	}{
		"char":       {60, func(*rondov1.JobSpec) {}},
		"two layers": {60, func(s *rondov1.JobSpec) { s.Layers, s.Hidden = 2, 256 }},
		"long": {60, func(s *rondov1.JobSpec) {
			s.Batch, s.Bptt, s.Hidden, s.Cell = 32, 256, 64, "gru"
		}},
		"one lane": {60, func(s *rondov1.JobSpec) {
			s.Batch, s.Bptt, s.Hidden = 1, 1500, 64
		}},
		"recompute": {60, func(s *rondov1.JobSpec) { s.Batch, s.Bptt, s.Recompute = 32, 256, 32 }},
		"rnn, bf16": {60, func(s *rondov1.JobSpec) { s.Cell, s.Precision = "rnn", "bf16" }},
		"words":     {3000, func(s *rondov1.JobSpec) { s.Embed, s.Bptt = 64, 16 }},
	} {
		t.Run(name, func(t *testing.T) {
			spec := memorySpec(c.change)
			spec.Device = "cuda"
			on, err := GPUSizer(GPU{}, spec.Precision)
			if err != nil {
				t.Fatal(err)
			}
			want, err := GPUMemory(spec, on, Extent{Tokens: c.vocabulary}, int(spec.Batch))
			if err != nil {
				t.Fatal(err)
			}
			got := measured(t, spec, c.vocabulary)
			t.Logf("%s estimated, %s held", mib(want), mib(got))
			if want < got || want > got*4/3+gpuReserve/2 {
				t.Errorf("%s estimated, and the GPU held %s", mib(want), mib(got))
			}
		})
	}
}
