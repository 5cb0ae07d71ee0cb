package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"rondo/bench"
	"rondo/compute"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
)

// benchSetting is a device with its precision and threads.
type benchSetting struct {
	device    string // as --device names it
	precision string
	threads   int // of a CPU
}

func (s benchSetting) String() string {
	if s.device == "cpu" {
		return fmt.Sprintf("%s, threads %d", s.precision, s.threads)
	}
	return s.precision
}

// open opens the device for one row, so that its memory count starts at zero.
func (s benchSetting) open() (bench.Device, error) {
	spec := jobspec.Default()
	spec.Device, spec.Precision, spec.Threads = s.device, s.precision, int64(s.threads)
	device, err := job.OpenDevice(spec, 1)
	if err != nil {
		return nil, err
	}
	switch d := device.(type) {
	case bench.Device:
		return d, nil
	case countingRecorder:
		return gpuBench{d}, nil
	}
	device.Close()
	return nil, fmt.Errorf("%s cannot be measured: it does not count its memory", device.Name())
}

// with opens the device while do runs.
func (s benchSetting) with(do func(bench.Device) error) (err error) {
	defer compute.Catch(&err)
	dev, err := s.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	return do(dev)
}

// countingRecorder is a GPU's interface.
type countingRecorder interface {
	compute.Recorder
	Bytes() (now, peak int64)
	Precision() compute.Precision
}

// gpuBench adapts a GPU for package bench. It has no measured peak and no threads.
type gpuBench struct{ countingRecorder }

func (gpuBench) Peak(time.Duration) float64 { return 0 }
func (gpuBench) Threads() int               { return 0 }
func (gpuBench) HostMemory() bool           { return false }

// settings are the devices with their settings, and their names.
func (f *benchFlags) settings() (all []benchSetting, names []string, err error) {
	chosen, err := job.Choose(f.device)
	if err != nil {
		return nil, nil, err
	}
	device, threads, precisions := chosen.Of(0), f.threads, f.precisions
	if device != "cpu" {
		if f.set.Changed("threads") {
			return nil, nil, app.Usagef("--threads is for CPUs, and --device %s is a GPU: leave "+
				"it "+
				"out", f.device)
		}
		if threads = []int{0}; !f.set.Changed("precision") {
			precisions = []string{"fp32", "tf32", "bf16", "fp16"}
		}
	}
	for _, precision := range precisions {
		for _, n := range threads {
			s := benchSetting{device: device, precision: precision, threads: n}
			if s.threads, err = (job.Use{Threads: n}).Count(); err != nil {
				return nil, nil, err
			}
			probe, err := s.open() // so that an error comes before the first row
			if err != nil {
				return nil, nil, told(err)
			}
			name := fmt.Sprintf("%v: %s", probe.Precision(), probe.Name())
			if device == "cpu" {
				name = fmt.Sprintf("%v, threads %d: %s", probe.Precision(), probe.Threads(),
					probe.Name())
			}
			names = append(names, name)
			probe.Close()
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, nil, app.Usagef("nothing to measure: give --precision and --threads a value")
	}
	return all, names, nil
}

// told drops the package's name from a CPU's error, which always concerns a flag.
func told(err error) error {
	if text, of := strings.CutPrefix(err.Error(), "cpu: "); of {
		return app.Usage(errors.New(text))
	}
	return err
}
