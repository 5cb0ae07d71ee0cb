package job

import (
	"fmt"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	"rondo/compute"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// Part is a worker's share of a job.
type Part struct {
	Lanes   int // of the worker
	Workers int // of the job
}

// gpuReserve is GPU memory that the estimate does not itemise: cuBLAS's workspace, and gaps between
// allocations.
const gpuReserve = 48 << 20

// GPUMemory estimates the GPU memory of a worker with this many lanes, in bytes.
func GPUMemory(spec *rondov1.JobSpec, on compute.Sizer, data Extent, lanes int) (int64, error) {
	s, err := sizesOf(spec, data)
	if err != nil {
		return 0, err
	}
	kept, work, _ := s.onDevice(on, lanes, int(spec.Workers))
	return kept + work.Total() + gpuReserve, nil
}

// driverBytes is the host memory of NVIDIA's driver and its libraries in a process.
const driverBytes = 2 << 30

// BesideGPU estimates the host memory, in bytes, of a worker whose model is on a GPU: the gradient
// that travels around the ring, and the copies that are stored and restored.
func BesideGPU(spec *rondov1.JobSpec, data Extent) (int64, error) {
	s, err := sizesOf(spec, data)
	if err != nil {
		return 0, err
	}
	copies := int64(2) // one read back from the GPU, one to recover with
	if jobspec.KeepsModel(spec) {
		copies += 2 // one is written, one waits
	}
	bytes := s.network.data + s.parameters + 3*s.states + copies*s.snapshot + runtimeBytes +
		tokenBytes*int64(data.Tokens)
	return bytes + bytes/spareShare + driverBytes, nil
}

// Room returns the GPU memory that a worker had for itself when an allocation failed; 0: unknown.
func Room(device compute.Device, lack *compute.MemoryError) int64 {
	d, counts := device.(interface{ Bytes() (now, peak int64) })
	if !counts || lack.Total == 0 {
		return 0
	}
	_, held := d.Bytes()
	return lack.Free + held
}

// AdviseOnGPU returns the end of a sentence: the estimate of a worker's GPU memory, and the flags
// with which it would fit into room. Without a room it suggests smaller sizes.
func AdviseOnGPU(spec *rondov1.JobSpec, on compute.Sizer, data Extent, part Part,
	room int64) string {
	takes := func(change func(*rondov1.JobSpec), lanes int) int64 {
		changed := proto.CloneOf(spec)
		change(changed)
		bytes, err := GPUMemory(changed, on, data, lanes)
		if err != nil {
			return 1 << 62 // the job is invalid, so it never fits
		}
		return bytes
	}
	as := func(*rondov1.JobSpec) {}
	text := fmt.Sprintf("; a worker of %d lanes takes about %s", part.Lanes,
		size(takes(as, part.Lanes)))
	if !task.Segments(spec.Task) {
		return text + ": give a smaller --batch, or a smaller --max-length if examples are shorter"
	}
	if room <= 0 || takes(as, part.Lanes) <= room {
		return text + ": give a smaller --batch or --bptt, or --recompute"
	}
	text += fmt.Sprintf(", and there is room for %s", size(room))
	if takes(func(s *rondov1.JobSpec) { s.Bptt = 1 }, 1) > room {
		return text + ": the model is too large for it: give a smaller --hidden, --layers or " +
			"--embed, or an --optimizer that keeps less, such as sgd"
	}
	var ways []string
	if n := largest(part.Lanes, func(n int) bool { return takes(as, n) <= room }); n > 0 {
		ways = append(ways, fmt.Sprintf("--batch %d (%d lanes for each of %d workers)",
			n*part.Workers, n, part.Workers))
	}
	if n := largest(int(spec.Bptt), func(n int) bool {
		return takes(func(s *rondov1.JobSpec) { s.Bptt = int64(n) }, part.Lanes) <= room
	}); n > 0 {
		ways = append(ways, fmt.Sprintf("--bptt %d", n))
	}
	for steps := spec.Bptt / 2; steps > 0; steps /= 2 {
		if takes(func(s *rondov1.JobSpec) { s.Recompute = steps }, part.Lanes) <= room {
			ways = append(ways, fmt.Sprintf("--recompute %d", steps))
			break
		}
	}
	if len(ways) == 0 {
		return text + ": give a smaller --batch and --recompute"
	}
	return text + ": it would fit with " + strings.Join(ways, ", or ")
}

// largest returns the largest number from 1 to n-1 that fits, or 0. If a number fits, all smaller
// ones must fit.
func largest(n int, fits func(int) bool) int {
	return sort.Search(n-1, func(i int) bool { return !fits(i + 1) })
}

// size formats a number of bytes.
func size(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
