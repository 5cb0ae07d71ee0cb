package worker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"rondo/cluster"
	"rondo/cmd/internal/job"
	"rondo/compute"
	"rondo/internal/jobspec"
)

// fakeGPU is a device whose memory is not the host's.
type fakeGPU struct{ compute.Device }

func (fakeGPU) Name() string             { return "cuda:7 Test (fp32)" }
func (fakeGPU) Bytes() (now, peak int64) { return 0, 60 << 20 }

// A GPU's lack of memory is told with its numbers and with what would fit, by the lanes that the
// plan gives this worker; other errors are told as they are.
func TestLack(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := jobspec.Default()
	spec.Batch, spec.MaxTokens = 512, 50000
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	s := &session{worker: &worker{spec: spec, data: data, device: fakeGPU{}}, rank: 1,
		plan: cluster.Plan{Members: make([]cluster.Member, 2), LaneEnds: []cluster.Lane{200, 512}}}
	lack := &compute.MemoryError{What: "a layer", Bytes: 5000, Free: 4000, Total: 1 << 30}
	lacks, told := s.lack(fmt.Errorf("step 1: %w", lack))
	for _, want := range []string{"cuda:7 Test (fp32): step 1: no memory for a layer: 5000 bytes " +
		"or more; 4000 of the device's 1073741824 are free; a worker of 312 lanes takes about ",
		"there is room for 61 MiB", " lanes for each of 2 workers)"} {
		if !lacks || !errors.Is(told, lack) || !strings.Contains(told.Error(), want) {
			t.Errorf("%t, %v; want %q", lacks, told, want)
		}
	}
	other := errors.New("no route to host")
	if lacks, told := s.lack(other); lacks || !errors.Is(told, other) ||
		told.Error() != other.Error() {
		t.Errorf("%t, %v; want %v", lacks, told, other)
	}
}

// What is freed on a device that has failed is an error, and no crash.
func TestFreed(t *testing.T) {
	gone := &compute.DeviceError{Device: "cuda:0", Doing: "freeing", Err: errors.New("it is gone")}
	if err := freed(func() { panic(gone) }); !errors.Is(err, gone) {
		t.Errorf("%v, want %v", err, gone)
	}
}
