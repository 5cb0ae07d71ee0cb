package cpu

import "testing"

// isas are the values of RONDO_CPU_ISA that this build and processor can run.
func isas() []string {
	var can []string
	for _, isa := range []string{isaPortable, isaAVX2, isaAVX512} {
		if _, err := newBackend(1, isa); err == nil {
			can = append(can, isa)
		}
	}
	return can
}

// newDevice makes a device on an instruction set; it is closed when the test ends.
func newDevice(t testing.TB, isa string) *Device {
	t.Helper()
	t.Setenv(isaEnvironment, isa)
	d, err := New(Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}
