package job

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"rondo/cmd/internal/app"
	"rondo/internal/jobspec"
)

// Workers that share a machine have at most its cores between them, as long as there are enough
// for one each, however many come or go; and what --threads says is what they get.
func TestThreadsAreShared(t *testing.T) {
	spec, cores := jobspec.Default(), runtime.GOMAXPROCS(0)
	device, err := OpenDevice(spec, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for i := range 6 * cores {
		processes := 1 + i%(3*cores)
		if err := Share(device, spec, processes); err != nil {
			t.Fatal(err)
		}
		n := device.(interface{ Threads() int }).Threads()
		if n < 1 || n*processes > max(cores, processes) {
			t.Errorf("%d workers on %d cores have %d threads each", processes, cores, n)
		}
		if idle := cores - n*processes; idle >= processes {
			t.Errorf("%d workers on %d cores leave %d idle", processes, cores, idle)
		}
	}
	spec.Threads = 5
	if got := Threads(spec, 7); got != 5 {
		t.Errorf("%d threads with --threads 5", got)
	}
}

// A device computes in the precision that the spec says, and its name says so.
func TestDeviceOfAPrecision(t *testing.T) {
	spec := jobspec.Default()
	for precision, bf16 := range map[string]bool{"fp32": false, "bf16": true} {
		spec.Precision = precision
		device, err := OpenDevice(spec, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(device.Name(), "bf16"); got != bf16 {
			t.Errorf("--precision %s: %s", precision, device.Name())
		}
		device.Close()
	}
	spec.Precision = "fp8"
	var usage *app.UsageError
	if _, err := OpenDevice(spec, 1); !errors.As(err, &usage) {
		t.Errorf("--precision fp8: %v", err)
	}
}
