package job

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/internal/app"
	"rondo/job/jobspec"
)

// A device computes where the spec says, or where the worker was told, and not at all where that
// cannot be.
func TestOpenDevice(t *testing.T) {
	for _, c := range []struct{ device, own, precision, want string }{
		{"auto", "cpu", "fp32", ""},
		{"cuda", "cpu", "bf16", ""},
		{"cpu", "", "tf32", "--precision tf32 needs a GPU"},
		{"auto", "cpu", "fp16", "--precision fp16 needs a GPU"},
		{"cpu", "tpu", "fp32", `--device "tpu" is not one of auto, cpu, cuda, cuda:N`},
	} {
		spec := jobspec.Textbook()
		spec.Device, spec.Precision = c.device, c.precision
		device, err := OpenDevice(On(spec, c.own), 1)
		if c.want == "" && err == nil {
			if !HostMemory(device) || !strings.HasPrefix(device.Name(), "cpu") {
				t.Errorf("%+v: %s", c, device.Name())
			}
			device.Close()
			continue
		}
		var usage *jobspec.UsageError
		if err == nil || !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if spec.Device != c.device {
			t.Errorf("%+v: the job's device is %s now", c, spec.Device)
		}
	}
}

// The workers of a machine take its GPUs in turn.
func TestChoiceOf(t *testing.T) {
	two := Choice{GPUs: []GPU{{Index: 0}, {Index: 1}}}
	for worker, want := range []string{"cuda:0", "cuda:1", "cuda:0"} {
		if got := two.Of(worker); got != want {
			t.Errorf("worker %d of two GPUs: %s, want %s", worker, got, want)
		}
	}
	if got := (Choice{}).Of(7); got != "cpu" {
		t.Errorf("a worker without a GPU: %s", got)
	}
}

// --device auto takes no GPU that there are no kernels for, and says so.
func TestChooseAuto(t *testing.T) {
	k80 := GPU{Index: 0, Name: "Tesla K80", Capability: "3.7"}
	v100 := GPU{Index: 1, Name: "Tesla V100", Capability: "7.0"}
	next := GPU{Index: 2, Name: "Next", Capability: "10.0"}
	const out = "; left out, for a compute capability below 7.0: cuda:0, Tesla K80"
	for _, c := range []struct {
		found       []GPU
		first, note string
	}{
		{[]GPU{k80}, "cpu", "--device auto: the CPU" + out},
		{[]GPU{k80, v100}, "cuda:1", "--device auto: cuda:1, Tesla V100" + out},
		{[]GPU{k80, v100, next}, "cuda:1",
			"--device auto: cuda:1, Tesla V100, and 1 more GPUs" + out},
		{[]GPU{next}, "cuda:2", "--device auto: cuda:2, Next"},
	} {
		got, err := chooseAuto(c.found)
		if err != nil || got.Of(0) != c.first || got.Note != c.note {
			t.Errorf("%v: %s, %q, %v; want %s, %q", c.found, got.Of(0), got.Note, err, c.first,
				c.note)
		}
	}
	if _, err := chooseAuto([]GPU{{Capability: "new"}}); err == nil {
		t.Error("a GPU whose capability nobody can read is taken")
	}
}

// What a person is advised fits by the same estimate, and the next larger number does not.
func TestAdviseOnGPU(t *testing.T) {
	spec := jobspec.Textbook()
	spec.Hidden, spec.Batch, spec.Bptt, spec.Workers = 1024, 4096, 128, 4
	const room = 3 << 30
	on := cpu.Config{Threads: 1} // a device like any other
	takes := func(lanes int) int64 {
		bytes, err := GPUMemory(spec, on, Extent{Tokens: 100}, lanes)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	if takes(1024) <= room || takes(1) > room {
		t.Fatalf("a test of nothing: 1024 lanes take %s, and one %s", size(takes(1024)),
			size(takes(1)))
	}
	text := AdviseOnGPU(spec, on, Extent{Tokens: 100}, Part{Lanes: 1024, Workers: 4}, room)
	lanes := largest(1024, func(n int) bool { return takes(n) <= room })
	if takes(lanes) > room || takes(lanes+1) <= room {
		t.Errorf("%d lanes are said to be the most that fit", lanes)
	}
	for _, want := range []string{"a worker of 1024 lanes takes about " + size(takes(1024)),
		"there is room for 3.0 GiB", "--bptt ", "or --recompute ",
		"--batch " + strconv.Itoa(4*lanes) + " (" + strconv.Itoa(lanes) +
			" lanes for each of 4 workers)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	for room, want := range map[int64]string{
		1 << 20:     "the model is too large for it",
		0:           "give a smaller --batch or --bptt, or --recompute",
		takes(1024): "give a smaller --batch or --bptt, or --recompute",
	} {
		text := AdviseOnGPU(spec, on, Extent{Tokens: 100}, Part{Lanes: 1024, Workers: 4}, room)
		if !strings.Contains(text, want) {
			t.Errorf("room for %s: %q; want %q", size(room), text, want)
		}
	}
}

// counted is a device that counts its memory.
type counted struct {
	compute.Device
	peak int64
}

func (c counted) Bytes() (now, peak int64) { return 0, c.peak }

func TestRoom(t *testing.T) {
	lack := &compute.MemoryError{Free: 3, Total: 100}
	if got := Room(counted{peak: 40}, lack); got != 43 {
		t.Errorf("%d bytes, want 43", got)
	}
	if got := Room(counted{peak: 40}, &compute.MemoryError{}); got != 0 {
		t.Errorf("%d bytes of a device that nobody knows", got)
	}
}

// A build without CUDA says so, and how to come by one with it.
func TestWithoutCUDA(t *testing.T) {
	if CUDA {
		t.Skip("this build has CUDA")
	}
	const want = "--device cuda: this binary was built without CUDA: build it with -tags cuda, " +
		"or use the image rondo:VERSION-cuda"
	spec := jobspec.Textbook()
	spec.Device = "cuda"
	_, opened := OpenDevice(spec, 1)
	_, chosen := Choose("cuda")
	for _, err := range []error{opened, chosen} {
		var usage *app.UsageError
		if !errors.As(err, &usage) || err.Error() != want {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if c, err := Choose("auto"); err != nil || len(c.GPUs) > 0 || c.Note != "" {
		t.Errorf("auto: %+v, %v", c, err)
	}
}
