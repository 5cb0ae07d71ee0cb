package job

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// GPU is one that CUDA_VISIBLE_DEVICES lets this process see.
type GPU struct {
	Index      int    `json:"index"` // N of cuda:N
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	Memory     int64  `json:"memory"` // bytes
	Capability string `json:"compute_capability"`
	Driver     string `json:"driver"`
	// Known only after opening the GPU.
	Free    int64  `json:"free"`
	CUBLAS  bool   `json:"cublas"`                   // cuBLAS computes the products
	Library string `json:"cublas_library,omitempty"` // its file
	Problem string `json:"problem,omitempty"`        // why it cannot be opened
}

// InspectGPUs lists the GPUs like GPUs, and opens each.
func InspectGPUs() ([]GPU, error) {
	all, err := GPUs()
	for i := range all {
		if err := all[i].open(); err != nil {
			all[i].Problem = err.Error()
		}
	}
	return all, err
}

// Choice is the meaning of --device on this machine.
type Choice struct {
	GPUs []GPU  // workers take them in turn; none: they compute on the CPU
	Note string // how auto was decided, for people; empty if there was no choice
}

// Choose looks for the devices that --device asks for.
func Choose(device string) (Choice, error) {
	asked, err := jobspec.ParseDevice(device)
	if err != nil || !asked.Auto && !asked.CUDA {
		return Choice{}, err
	}
	found, err := GPUs()
	switch n := len(found); {
	case asked.Auto && n == 0 && !CUDA:
		return Choice{}, nil
	case asked.Auto && n == 0 && err != nil:
		return Choice{Note: fmt.Sprintf("--device auto: the CPU, for want of a GPU: %v", err)}, nil
	case asked.Auto && n == 0:
		return Choice{Note: "--device auto: the CPU, for want of a GPU"}, nil
	case err != nil:
		return Choice{}, fmt.Errorf("--device %s: %w", device, err)
	case n == 0:
		return Choice{}, fmt.Errorf("--device %s: no GPU: NVIDIA's driver shows none to this "+
			"process (see nvidia-smi, and CUDA_VISIBLE_DEVICES)", device)
	case asked.GPU >= n:
		return Choice{}, app.Usagef("--device %s: there is no such GPU: rondo devices lists those "+
			"that there are, cuda:0 to cuda:%d", device, n-1)
	case asked.GPU >= 0:
		return Choice{GPUs: found[asked.GPU : asked.GPU+1]}, nil
	}
	if asked.Auto {
		return chooseAuto(found)
	}
	return Choice{GPUs: found}, nil
}

// oldestCapability is the first compute capability with kernels. compute/cuda reports an older GPU
// that --device names.
const oldestCapability = 7.0

// chooseAuto picks the GPUs that are new enough.
func chooseAuto(found []GPU) (Choice, error) {
	var c Choice
	var old []string
	for _, g := range found {
		capability, err := strconv.ParseFloat(g.Capability, 64)
		if err != nil {
			return Choice{}, fmt.Errorf("cuda:%d's compute capability is %q", g.Index, g.Capability)
		}
		if capability < oldestCapability {
			old = append(old, fmt.Sprintf("cuda:%d, %s", g.Index, g.Name))
			continue
		}
		c.GPUs = append(c.GPUs, g)
	}
	switch n := len(c.GPUs); n {
	case 0:
		c.Note = "--device auto: the CPU"
	case 1:
		c.Note = fmt.Sprintf("--device auto: cuda:%d, %s", c.GPUs[0].Index, c.GPUs[0].Name)
	default:
		c.Note = fmt.Sprintf("--device auto: cuda:%d, %s, and %d more GPUs", c.GPUs[0].Index,
			c.GPUs[0].Name, n-1)
	}
	if len(old) > 0 {
		c.Note += fmt.Sprintf("; left out, for a compute capability below %.1f: %s",
			oldestCapability, strings.Join(old, "; "))
	}
	return c, nil
}

// Of is the --device of one of this machine's workers.
func (c Choice) Of(worker int) string {
	if len(c.GPUs) == 0 {
		return "cpu"
	}
	return fmt.Sprintf("cuda:%d", c.GPUs[worker%len(c.GPUs)].Index)
}

// On is the spec of a worker with its own device; "" keeps the job's.
func On(spec *rondov1.JobSpec, device string) *rondov1.JobSpec {
	if device == "" {
		return spec
	}
	own := proto.CloneOf(spec)
	own.Device = device
	return own
}

// OpenDevice opens the spec's device. processes is the number of workers that share this machine's
// cores; see Threads.
func OpenDevice(spec *rondov1.JobSpec, processes int) (compute.Device, error) {
	precision, err := compute.ParsePrecision(spec.Precision)
	if err != nil {
		return nil, app.Usage(fmt.Errorf("--precision %w", err))
	}
	asked, err := jobspec.ParseDevice(spec.Device)
	if err != nil {
		return nil, err
	}
	if asked.Auto { // looking at all GPUs takes a while
		chosen, err := Choose(spec.Device)
		if err != nil {
			return nil, err
		}
		if asked.CUDA = len(chosen.GPUs) > 0; asked.CUDA {
			asked.GPU = chosen.GPUs[0].Index // the first that is not too old
		}
	}
	switch {
	case asked.CUDA:
		if !CUDA {
			_, err := GPUs()
			return nil, fmt.Errorf("--device %s: %w", spec.Device, err)
		}
		return openCUDA(max(0, asked.GPU), precision)
	case jobspec.OfGPUs(spec.Precision):
		return nil, jobspec.NotOnCPU(spec.Precision)
	}
	return cpu.New(cpu.Config{Threads: Threads(spec, processes), Precision: precision})
}

// HostMemory reports whether a device's memory is the host's.
func HostMemory(device compute.Device) bool {
	_, is := device.(*cpu.Device)
	return is
}

// Share gives a device that was opened for one worker its part of the threads, if processes workers
// share them.
func Share(device compute.Device, spec *rondov1.JobSpec, processes int) error {
	d, ok := device.(interface{ SetThreads(count int) error })
	if !ok {
		return nil // it has no threads
	}
	return d.SetThreads(Threads(spec, processes))
}

// Threads is the number of threads of one of processes workers on this machine: --threads, or an
// equal share of the cores that this process may use, and at least one.
func Threads(spec *rondov1.JobSpec, processes int) int {
	if spec.Threads > 0 {
		return int(spec.Threads)
	}
	return max(1, runtime.GOMAXPROCS(0)/max(1, processes))
}

// Crowded returns a line for people if the processes have more threads than cores, else "". With
// threads 0 they share the cores.
func Crowded(threads, processes, cores int) string {
	if threads == 0 || processes == 0 || threads*processes <= cores {
		return ""
	}
	text := fmt.Sprintf("--threads %d", threads)
	if processes > 1 {
		text += fmt.Sprintf(" in each of %d workers here", processes)
	}
	return text + fmt.Sprintf(" is more than the cores that they may use, %d: threads that wait "+
		"for each other are slow; 0 is as many as there are", cores)
}
