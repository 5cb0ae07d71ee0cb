package emulator

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needCompiler skips a test where nothing compiles C++.
func needCompiler(t *testing.T) {
	t.Helper()
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "g++"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no C++ compiler: %v", err)
	}
}

// probe builds the driver with the kernels of the test and the program that uses it.
func probe(t *testing.T) (program, folder string) {
	t.Helper()
	needCompiler(t)
	kernels, err := filepath.Abs("testdata/probe.cu")
	if err != nil {
		t.Fatal(err)
	}
	if folder, err = BuildWith("", []string{kernels}); err != nil {
		t.Fatal(err)
	}
	b, err := newBuilder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(t.TempDir(), "probe")
	err = b.run([]string{"-std=c++17", "-O1", "-Wall", "-Wextra", "-o", program,
		filepath.Join("testdata", "probe.cpp"), "-ldl"})
	if err != nil {
		t.Fatal(err)
	}
	return program, folder
}

// refusals are the probes that end in an error, with what the driver says.
func refusals() map[string]string {
	return map[string]string{
		"capture refused": "while a stream is captured",
		"memory":          "a release of byte 16 of a block of 1000 bytes",
		"modules":         "kernel scale has other parameters in the PTX than in its source",
		"launch limits":   "49153 bytes of shared memory, but cuFuncSetAttribute has allowed 49152",
		"some exit":       "of its block wait at __syncthreads of line",
		"two barriers":    "others wait at that of line",
		"half a warp":     "16 have exited, 16 wait in __shfl_sync of line",
		"never":           "32 wait in a loop for another block or thread",
		"out of bounds":   "kernel write_at, block (0, 0, 0), thread (0, 0, 0) touched",
		"past the end":    "kernel write_at wrote behind the end of byte 0 of a block of 256 bytes",
		"after release":   "device memory that is not allocated, or no more",
		"shared overrun":  "touched byte 256 of shared memory of 256 bytes",
		"shared underrun": "something was written in front of shared memory",
		"deep stack":      "touched more local memory than a thread has",
		"misaligned":      "not aligned to 16 bytes",
		"host access":     "code of the host touched byte 0 of a block of 8 bytes",
	}
}

func TestProbes(t *testing.T) {
	program, folder := probe(t)
	names, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for name := range strings.Lines(string(names)) {
		name = strings.TrimSpace(name)
		seen++
		t.Run(name, func(t *testing.T) {
			for _, seed := range []string{"1", "2", "3"} {
				runProbe(t, program, folder, name, seed)
			}
		})
	}
	if seen < len(refusals()) {
		t.Errorf("%d probes; there are more refusals: %d", seen, len(refusals()))
	}
}

func runProbe(t *testing.T, program, folder, name, seed string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, name)
	command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+folder, "RONDO_EMULATOR_SEED="+seed)
	if name == "out of memory" {
		command.Env = append(command.Env, "RONDO_EMULATOR_MEMORY=1048576")
	}
	var said bytes.Buffer
	command.Stderr = &said
	err := command.Run()
	if name == "host access" {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(exit.String(), "segmentation fault") {
			t.Errorf("seed %s: %v; want a segmentation fault", seed, err)
		}
	} else if err != nil {
		t.Errorf("seed %s: %v\n%s", seed, err, &said)
	}
	if want := refusals()[name]; !strings.Contains(said.String(), want) {
		t.Errorf("seed %s: it said\n%s\nwithout %q", seed, &said, want)
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("CXX", "no-such-compiler")
	_, err := BuildWith(t.TempDir(), nil)
	if err == nil || !strings.Contains(err.Error(), "no-such-compiler, which is not there") {
		t.Errorf("without a compiler: %v", err)
	}
}

func TestCompileError(t *testing.T) {
	needCompiler(t)
	b, err := newBuilder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "broken.cu")
	if err := os.WriteFile(path, []byte("#error broken on purpose\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = b.compile(unit{path, true})
	if err == nil || !strings.Contains(err.Error(), "broken on purpose") {
		t.Errorf("of a source with an error: %v", err)
	}
}

func TestPrune(t *testing.T) {
	folder := t.TempDir()
	for i, name := range []string{"old", "new", "newest"} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	prune(folder, 2)
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 2 || left[0].Name() != "new" || left[1].Name() != "newest" {
		t.Errorf("left: %v (%v)", left, err)
	}
}

// Enter sets what the processes of this one need, and keeps other libraries behind the driver.
func TestEnter(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no C++ compiler")
	}
	t.Setenv("LD_LIBRARY_PATH", "/others")
	t.Setenv(seed, "")
	t.Setenv(marker, "")
	if err := Enter(); err != nil {
		t.Fatal(err)
	}
	folder, others, _ := strings.Cut(os.Getenv("LD_LIBRARY_PATH"), ":")
	if _, err := os.Stat(filepath.Join(folder, "libcuda.so.1")); err != nil || others != "/others" {
		t.Errorf("LD_LIBRARY_PATH %s, %v", os.Getenv("LD_LIBRARY_PATH"), err)
	}
	if !Running() || os.Getenv(seed) == "" {
		t.Errorf("running: %t, seed %q", Running(), os.Getenv(seed))
	}
}
