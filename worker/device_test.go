package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"rondo/cluster"
	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// fakeGPU is a device with its own memory.
type fakeGPU struct {
	compute.Device
	compute.Sizer
}

func (fakeGPU) Name() string             { return "cuda:7 Test (fp32)" }
func (fakeGPU) Bytes() (now, peak int64) { return 0, 60 << 20 }

// TestLack: a GPU's MemoryError is reported with its numbers and with what would fit, for this
// worker's number of lanes. Other errors are unchanged.
func TestLack(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := jobspec.Textbook()
	spec.Batch, spec.MaxTokens = 512, 50000
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	gpu := fakeGPU{Sizer: cpu.Config{}}
	s := &seat{worker: &worker{spec: spec, data: data, device: gpu}, rank: 1,
		plan: cluster.Plan{Members: make([]cluster.Member, 2), LaneEnds: []cluster.Lane{200, 512}}}
	lack := &compute.MemoryError{What: "a layer", Bytes: 5000, Free: 4000, Total: 1 << 30}
	lacks, got := s.lack(fmt.Errorf("step 1: %w", lack))
	for _, want := range []string{"cuda:7 Test (fp32): step 1: no memory for a layer: 5000 bytes " +
		"or more; 4000 of the device's 1073741824 are free; a worker of 312 lanes takes about ",
		"there is room for 61 MiB", " lanes for each of 2 workers)"} {
		if !lacks || !errors.Is(got, lack) || !strings.Contains(got.Error(), want) {
			t.Errorf("%t, %v; want %q", lacks, got, want)
		}
	}
	other := errors.New("no route to host")
	if lacks, got := s.lack(other); lacks || !errors.Is(got, other) ||
		got.Error() != other.Error() {
		t.Errorf("%t, %v; want %v", lacks, got, other)
	}
}

// TestMissingDeviceIsOwnFailure: a device that this machine lacks is a failure of the worker, not
// wrong input of the job.
func TestMissingDeviceIsOwnFailure(t *testing.T) {
	spec := jobspec.Textbook()
	spec.Device, spec.Precision = "cpu", "fp16"
	w := &worker{spec: spec}
	w.current.Store(&memberReporter{})
	err := w.openDevice()
	if err == nil || !strings.Contains(err.Error(), "--precision fp16 needs a GPU") {
		t.Fatal(err)
	}
	if f := w.failure(err).GetFailure(); f.Usage || f.Fatal || f.Text != err.Error() {
		t.Errorf("reported as %v", f)
	}
	var usage *jobspec.UsageError
	if errors.As(err, &usage) {
		t.Errorf("the process ends for a mistake in what a person wrote: %v", err)
	}
}

// TestFromScratch: a GPU without enough memory ends the job only if the job has no progress to
// lose.
func TestFromScratch(t *testing.T) {
	for _, c := range []struct {
		dir, resume string
		engine      *engine
		rings       int
		want        bool
	}{
		{"", "auto", nil, 1, true},
		{"run", "never", nil, 1, true},
		{"run", "auto", nil, 1, false},
		{"run", "auto", &engine{}, 1, false},
		{"run", "auto", &engine{scratch: true}, 1, true},
		{"", "auto", nil, 2, false},
	} {
		spec := jobspec.Textbook()
		spec.CheckpointDir, spec.Resume = c.dir, c.resume
		s := &seat{worker: &worker{spec: spec, engine: c.engine},
			plan: cluster.Plan{Rings: c.rings}}
		if got := s.fromScratch(); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// TestSaveLaterOnLostDevice: a device that fails while the final state is saved is a failure of
// this worker, not a crash.
func TestSaveLaterOnLostDevice(t *testing.T) {
	gone := &compute.DeviceError{Device: "cuda:0", Doing: "reading", Err: errors.New("it is gone")}
	w := &worker{spec: jobspec.Textbook(), reports: reports{log: slog.New(slog.DiscardHandler)}}
	w.current.Store(&memberReporter{reporter: lostDevice{err: gone}})
	s := &session{seat: &seat{worker: w}}
	err := s.saveLater(t.Context(), &train.SaveError{Err: errors.New("the disk is full")})
	if !errors.Is(err, gone) {
		t.Errorf("%v, want %v", err, gone)
	}
}

// lostDevice panics as a failed device does, at saveLater's first call.
type lostDevice struct {
	reporter
	err *compute.DeviceError
}

func (l lostDevice) Report(context.Context, *rondov1.Event) error { panic(l.err) }

// TestTryFree: freeing memory of a failed device returns an error and does not crash.
func TestTryFree(t *testing.T) {
	gone := &compute.DeviceError{Device: "cuda:0", Doing: "freeing", Err: errors.New("it is gone")}
	if err := tryFree(func() { panic(gone) }); !errors.Is(err, gone) {
		t.Errorf("%v, want %v", err, gone)
	}
}
