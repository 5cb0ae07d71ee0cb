package local

import (
	"fmt"
	"strings"

	"rondo/job"
)

// chooseDevices chooses the devices of this machine's workers, and checks --device and --precision.
// Errors of a GPU itself are reported by the worker that opens it.
func (r Run) chooseDevices() (job.Choice, error) {
	if r.localWorkers() == 0 {
		return job.Choice{}, nil
	}
	chosen, err := job.Choose(r.Spec.Device)
	if err != nil || len(chosen.GPUs) > 0 {
		return chosen, err
	}
	device, err := job.OpenDevice(job.On(r.Spec, "cpu"), r.localWorkers())
	if err == nil {
		device.Close()
	}
	return chosen, err
}

// logDevices logs how --device auto was decided, and possible surprises: shared GPUs, idle GPUs,
// and memory that may be too small.
func (r Run) logDevices(data job.Extent) {
	if r.devices.Note != "" {
		r.Log(r.devices.Note)
	}
	gpus, workers := r.devices.GPUs, r.localWorkers()
	if len(gpus) == 0 {
		return
	}
	switch {
	case workers > len(gpus) && len(gpus) == 1:
		r.Log(fmt.Sprintf("%d workers share cuda:%d: they take turns on it, and divide its memory",
			workers, gpus[0].Index))
	case workers > len(gpus):
		r.Log(fmt.Sprintf("%d workers share %d GPUs: those of one take turns on it, and divide "+
			"its memory", workers, len(gpus)))
	case workers < len(gpus):
		var idle []string
		for _, g := range gpus[workers:] {
			idle = append(idle, fmt.Sprintf("cuda:%d", g.Index))
		}
		r.Log(fmt.Sprintf("idle: %s; --workers auto is a worker for each GPU",
			strings.Join(idle, ", ")))
	}
	each := (workers + len(gpus) - 1) / len(gpus)
	part := job.Part{Workers: int(r.Spec.Workers),
		Lanes: int((r.Spec.Batch + r.Spec.Workers - 1) / r.Spec.Workers)}
	for _, g := range gpus[:min(workers, len(gpus))] {
		on, err := job.GPUSizer(g, r.Spec.Precision)
		if err != nil {
			continue // whoever opens it says so
		}
		takes, err := job.GPUMemory(r.Spec, on, data, part.Lanes)
		if room := g.Memory / int64(each); err == nil && takes > room {
			r.Log(fmt.Sprintf("cuda:%d may have too little memory%s", g.Index,
				job.AdviseOnGPU(r.Spec, on, data, part, room)))
		}
	}
}
