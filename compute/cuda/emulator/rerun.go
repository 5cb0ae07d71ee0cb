package emulator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
)

// marker is set in a process that runs on the emulated driver.
const marker = "RONDO_EMULATED"

// Running says whether this process was started by Rerun.
func Running() bool { return os.Getenv(marker) != "" }

// Rerun replaces this process, as a test of a program that found no GPU, by itself with the
// emulated driver. It returns only if it fails. The order of threads is decided by
// RONDO_EMULATOR_SEED, which is drawn and printed if it is not set.
func Rerun() error {
	if Running() {
		return fmt.Errorf("the emulated driver in LD_LIBRARY_PATH=%s was not taken",
			os.Getenv("LD_LIBRARY_PATH"))
	}
	folder, err := Build("")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	const seed = "RONDO_EMULATOR_SEED"
	if os.Getenv(seed) == "" {
		if err := os.Setenv(seed, fmt.Sprint(rand.Uint32())); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "no GPU: on the emulated driver, %s=%s\n", seed, os.Getenv(seed))
	libraries := folder
	if others := os.Getenv("LD_LIBRARY_PATH"); others != "" {
		libraries += ":" + others
	}
	environment := os.Environ()
	environment = append(environment, "LD_LIBRARY_PATH="+libraries, marker+"=1")
	return syscall.Exec(self, os.Args, withoutEarlier(environment))
}

// withoutEarlier keeps the last of the settings of each variable.
func withoutEarlier(environment []string) []string {
	last := map[string]int{}
	for i, setting := range environment {
		name, _, _ := strings.Cut(setting, "=")
		last[name] = i
	}
	var kept []string
	for i, setting := range environment {
		name, _, _ := strings.Cut(setting, "=")
		if last[name] == i {
			kept = append(kept, setting)
		}
	}
	return kept
}
