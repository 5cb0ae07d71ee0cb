//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"testing"

	"rondo/compute/cuda/driver"
	"rondo/compute/cuda/emulator"
)

// TestMain runs the tests on this machine's GPU, or on the emulated driver where there is none or
// RONDO_TEST_EMULATED is set.
func TestMain(m *testing.M) {
	if !emulator.Running() {
		devices, err := Devices()
		if len(devices) == 0 || os.Getenv("RONDO_TEST_EMULATED") != "" {
			fmt.Fprintf(os.Stderr, "%d GPUs (%v); ", len(devices), err)
			fmt.Fprintln(os.Stderr, emulator.Rerun())
			os.Exit(1)
		}
		fmt.Fprintf(os.Stderr, "on %s\n", devices[0].Name)
		// A GPU takes tenths of a second to make a context. The tests' Devices share this one.
		if _, err := driver.Open(0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
