package emulator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
)

// marker is set in a process that runs on the emulated driver.
const marker = "RONDO_EMULATED"

// Running reports whether this process was started by Rerun.
func Running() bool { return os.Getenv(marker) != "" }

// Rerun replaces this process, a test that found no GPU, by the same test with the emulated driver.
// It returns only if it fails.
func Rerun() error {
	if Running() {
		return fmt.Errorf("the emulated driver in LD_LIBRARY_PATH=%s was not taken",
			os.Getenv("LD_LIBRARY_PATH"))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := Enter(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "no GPU: on the emulated driver, %s=%s\n", seed, os.Getenv(seed))
	return syscall.Exec(self, os.Args, os.Environ())
}

// seed is the variable that decides the order of threads.
const seed = "RONDO_EMULATOR_SEED"

// Enter sets the environment of the processes that this one starts, so that they run on the
// emulated driver. RONDO_EMULATOR_SEED is drawn if it is not set.
func Enter() error {
	folder, err := Build("")
	if err != nil {
		return err
	}
	if others := os.Getenv("LD_LIBRARY_PATH"); others != "" {
		folder += ":" + others
	}
	settings := map[string]string{"LD_LIBRARY_PATH": folder, marker: "1",
		// The cuBLAS and NCCL of this machine do not work with the driver: this folder has none.
		"RONDO_CUDA_LIBRARIES": os.DevNull}
	if os.Getenv(seed) == "" {
		settings[seed] = fmt.Sprint(rand.Uint32())
	}
	for name, value := range settings {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}
