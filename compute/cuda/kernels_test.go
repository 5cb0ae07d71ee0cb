//go:build cuda

package cuda

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/compute"
)

// mostRegisters is how many a multiprocessor's blocks share.
const mostRegisters = 64 << 10

// TestKernelUse compiles every module with the driver's compiler, which is not the one that the
// kernels are checked with, and logs the seconds and what each kernel takes. No kernel has local
// memory, and each can be launched with the largest block that it is declared for.
func TestKernelUse(t *testing.T) {
	d := newGPU(t, compute.FP32)
	for i := range d.kernels.modules {
		m := &d.kernels.modules[i]
		began := time.Now()
		loaded, err := d.context.Load(m.PTX)
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		m.loaded = loaded
		t.Logf("%s compiled in %.2f s", m.Name, time.Since(began).Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(d.kernels.of)) {
		k := d.kernel(name)
		use, err := k.Use()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		resident, err := k.Resident(use.Threads, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%-28s %3d registers, %4d bytes of local memory, %d blocks of %d threads a "+
			"multiprocessor", name, use.Registers, use.Local, resident, use.Threads)
		if use.Local > 0 {
			t.Errorf("%s has %d bytes of local memory a thread", name, use.Local)
		}
		if resident < 1 || use.Registers*use.Threads > mostRegisters {
			t.Errorf("%s with %d registers: no block of %d threads can start", name,
				use.Registers, use.Threads)
		}
		if strings.HasPrefix(name, "persistent_") && use.Threads != persistentThreads {
			t.Errorf("%s is for %d threads, and launched with %d", name, use.Threads,
				persistentThreads)
		}
	}
}
