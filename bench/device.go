package bench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"rondo/compute"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
)

// Setting is a device with its precision and threads.
type Setting struct {
	Device    string // as --device names it
	Precision string
	Threads   int // of a CPU
}

func (s Setting) String() string {
	if s.Device == "cpu" {
		return fmt.Sprintf("%s, threads %d", s.Precision, s.Threads)
	}
	return s.Precision
}

// open opens the device for one row, so that its memory count starts at zero.
func (s Setting) open() (Device, error) {
	spec := jobspec.Default()
	spec.Device, spec.Precision, spec.Threads = s.Device, s.Precision, int64(s.Threads)
	device, err := job.OpenDevice(spec, 1)
	if err != nil {
		return nil, err
	}
	switch d := device.(type) {
	case Device:
		return d, nil
	case countingRecorder:
		return gpu{d}, nil
	}
	device.Close()
	return nil, fmt.Errorf("%s cannot be measured: it does not count its memory", device.Name())
}

// With opens the device while do runs.
func (s Setting) With(do func(Device) error) (err error) {
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

// gpu adapts a GPU. It has no measured peak and no threads.
type gpu struct{ countingRecorder }

func (gpu) Peak(time.Duration) float64 { return 0 }
func (gpu) Threads() int               { return 0 }
func (gpu) HostMemory() bool           { return false }

// Settings returns a device's settings, and their names for people. It opens the device with each
// of them, so that an error comes before the first row.
func Settings(
	device string, precisions []string, threads []int,
) (all []Setting, names []string, err error) {
	for _, precision := range precisions {
		for _, n := range threads {
			s := Setting{Device: device, Precision: precision, Threads: n}
			if s.Threads, err = (job.Use{Threads: n}).Count(); err != nil {
				return nil, nil, err
			}
			probe, err := s.open()
			if err != nil {
				return nil, nil, asUsage(err)
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

// asUsage makes a CPU's error, which always concerns a flag, a usage error without its prefix.
func asUsage(err error) error {
	if text, of := strings.CutPrefix(err.Error(), "cpu: "); of {
		return app.Usage(errors.New(text))
	}
	return err
}
