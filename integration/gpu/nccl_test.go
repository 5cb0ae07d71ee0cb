//go:build cuda

package gpu

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const twoGPUs = "RONDO_EMULATOR_DEVICES=2"

// sums returns the job's notices about the way in which gradients are summed.
func (r result) sums(t *testing.T) (told []string) {
	t.Helper()
	for _, e := range r.events(t, "notice") {
		if text := fmt.Sprint(e["text"]); strings.Contains(text, "gradients are summed ") {
			told = append(told, text)
		}
	}
	return told
}

// Two workers, each on a GPU of its own, sum by NCCL, in either scope of clipping, and agree; the
// losses are those of the ring.
func TestNCCL(t *testing.T) {
	emulated(t)
	for _, scope := range []string{"global", "worker"} {
		flags := []string{"--workers", "2", "--device", "cuda", "--clip-scope", scope}
		want := run(t, []string{twoGPUs}, "rondo", tiny(append(flags, "--intra-host",
			"grpc")...)...)
		got := run(t, []string{twoGPUs}, "rondo", tiny(append(flags, "--intra-host", "nccl",
			"--check-every", "1")...)...)
		same(t, got.losses(t), want.losses(t))
		if told := got.sums(t); len(told) != 1 ||
			told[0] != "gradients are summed between the GPUs, by NCCL 2.23.4" {
			t.Errorf("told: %q", told)
		}
		if told := want.sums(t); len(told) != 0 {
			t.Errorf("--intra-host grpc: told %q", told)
		}
	}
}

// A worker that is killed while NCCL sums, or before, is missed by the others within their
// deadlines, and they do its step again: the text is read once, and the losses are the same.
func TestNCCLKilled(t *testing.T) {
	emulated(t)
	flags := []string{"--workers", "2", "--steps", "12", "--chunk-timeout", "5s"}
	want := run(t, nil, "rondo", tiny(append(flags, "--device", "cpu")...)...).losses(t)
	for _, phase := range []string{"backward", "all-gather", "update"} {
		t.Run(phase, func(t *testing.T) {
			read := filepath.Join(t.TempDir(), "audit")
			got := run(t, []string{twoGPUs}, "rondo", tiny(append(flags, "--device", "cuda",
				"--intra-host", "nccl", "--check-every", "1", "--audit-dir", read, "--inject",
				"kill rank=1 step=4 phase="+phase)...)...)
			same(t, got.losses(t), want)
			if rings := got.events(t, "generation"); len(rings) < 2 {
				t.Errorf("rings: %v", rings)
			}
			if told := got.sums(t); len(told) == 0 {
				t.Error("NCCL has summed nothing")
			}
			if r := run(t, nil, "rondo", "audit", read); r.code != 0 {
				t.Errorf("the audit: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
			}
		})
	}
}

// A rank whose part of a sum fails, before the other has come to the end of its wait for it, puts
// nobody else out: by auto the same ring does the step and sums from then on, by nccl that rank
// leaves, and only it.
func TestNCCLFails(t *testing.T) {
	emulated(t)
	flags := []string{"--workers", "2", "--steps", "6", "--chunk-timeout", "4s", "--step-timeout",
		"20s"}
	want := run(t, nil, "rondo", tiny(append(flags, "--device", "cpu")...)...).losses(t)
	for how, c := range map[string]struct {
		ring    float64 // the last one's generation
		reason  string
		notices int
	}{
		"auto": {1, "2 of 2 workers have joined", 1},
		"nccl": {2, "rank 1, host ", 0},
	} {
		t.Run(how, func(t *testing.T) {
			got := run(t, []string{twoGPUs, "RONDO_EMULATOR_NCCL_FAILS=1:4"}, "rondo",
				tiny(append(flags, "--device", "cuda", "--intra-host", how)...)...)
			same(t, got.losses(t), want)
			formed := got.events(t, "generation")
			last := formed[len(formed)-1]
			reason := fmt.Sprint(last["reason"])
			if last["generation"] != c.ring || !strings.Contains(reason, c.reason) {
				t.Errorf("rings: %v", formed)
			}
			told := 0
			for _, e := range got.events(t, "notice") {
				if strings.HasSuffix(fmt.Sprint(e["text"]), "; the ring sums from now on") {
					told++
				}
			}
			if told != c.notices {
				t.Errorf("%d notices, want %d:\n%s", told, c.notices, got.stdout)
			}
		})
	}
}

// If a rank cannot be in a group, --intra-host nccl fails with the rank, the reason and the remedy;
// auto goes on with the ring, and reports it.
func TestNCCLCannot(t *testing.T) {
	emulated(t)
	for name, c := range map[string]struct {
		settings []string
		device   string
		why      string
	}{
		"one GPU": {nil, "cuda:0", "it computes on the same GPU as rank 0, GPU-"},
		"no NCCL": {[]string{twoGPUs, "RONDO_EMULATOR_NCCL=0"}, "cuda",
			"NCCL cannot be used: libnccl.so.2: "},
		"CPU": {nil, "cpu", "NCCL sums between GPUs, and its device is cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			flags := []string{"--workers", "2", "--device", c.device, "--intra-host"}
			refused := run(t, c.settings, "rondo", tiny(append(flags, "nccl")...)...)
			failed := refused.events(t, "failed")
			if refused.code != 1 || len(failed) != 1 {
				t.Fatalf("exit code %d\n%s\n%s", refused.code, refused.stdout, refused.stderr)
			}
			reason := fmt.Sprint(failed[0]["reason"])
			for _, want := range []string{"--intra-host nccl: rank ", " (host ", c.why,
				"--intra-host auto"} {
				if !strings.Contains(reason, want) {
					t.Errorf("no %q in %q", want, reason)
				}
			}
			auto := run(t, c.settings, "rondo", tiny(append(flags, "auto", "--steps", "3")...)...)
			told := auto.sums(t)
			if n := len(auto.losses(t)); n != 3 {
				t.Errorf("auto: %d steps, want 3", n)
			}
			if name == "one GPU" && (len(told) != 1 || !strings.Contains(told[0], c.why)) ||
				name != "one GPU" && len(told) != 0 {
				t.Errorf("auto: told %q", told)
			}
		})
	}
}
