package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// coreTests are the tests of work that no CPU does in this way: the persistent kernels, the
// products and recorded steps.
const coreTests = "Persistent|Product|Gemm|Replay|Record"

// boundedSpins is how often a block of a debug kernel looks for another block's data: about twelve
// seconds, less than patience.
const boundedSpins = "16777216"

// core runs coreTests. If a kernel hangs, it runs the persistent ones in a debug build, which names
// the block that waits, the step and the column.
func core(ctx context.Context, s *session) (string, error) {
	verdict, err := s.test(ctx, "cuda", coreTests, "RONDO_CUDA_SPINS=")
	log, reading := os.ReadFile(filepath.Join(s.Work, "tests-cuda.log"))
	if err == nil || reading != nil || !bytes.Contains(log, []byte("has not come to an end")) {
		return verdict, err
	}
	_, again := s.test(ctx, "cuda", "Persistent", "RONDO_CUDA_SPINS="+boundedSpins,
		"RONDO_CUDA_KERNELS="+s.program("debug"))
	if log, reading = os.ReadFile(filepath.Join(s.Work, "tests-cuda.log")); reading == nil {
		reports := regexp.MustCompile(`a persistent kernel's block .*`).FindAll(log, mostFailures)
		fmt.Fprintf(s.out, "%s\n", bytes.Join(reports, []byte("\n")))
	}
	return verdict, errors.Join(err, again)
}

// testProgram is a package's test program.
func (s *session) testProgram(name string) string {
	return s.program(filepath.Join("tests", name+".test"))
}

// testsOf is the part that runs a package's tests whose names match.
func testsOf(name, pattern string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		return s.test(ctx, name, pattern)
	}
}

// test runs a package's tests and returns how many passed.
func (s *session) test(ctx context.Context, name, pattern string, settings ...string) (
	string, error) {
	// The tests read files beside their folder.
	command := append([]string{"env", "-C", s.program("tests")}, settings...)
	command = append(command, s.testProgram(name), "-test.v", "-test.short", "-test.run", pattern)
	began := time.Now()
	text, err := s.output(ctx, "tests-"+name, command...)
	passed, failed, skipped := count(text)
	verdict := fmt.Sprintf("%s %s: %d passed, %d failed, %d skipped, %.0f s", name,
		strings.Join(settings, " "), passed, failed, skipped, time.Since(began).Seconds())
	fmt.Fprintln(s.out, verdict)
	if err == nil && passed == 0 {
		err = fmt.Errorf("%s ran no test", name)
	}
	if err != nil {
		err = errors.Join(err, failures(text))
	}
	return verdict, err
}

// older runs tests without cuBLAS, and with the PTX that older GPUs are given.
func older(ctx context.Context, s *session) (string, error) {
	var said []string
	var errs []error
	for _, setting := range []string{"RONDO_CUDA_BLAS=off", "RONDO_CUDA_PTX=80",
		"RONDO_CUDA_PTX=70"} {
		verdict, err := s.test(ctx, "cuda", coreTests+"|Layer|Output", setting)
		said, errs = append(said, verdict), append(errs, err)
	}
	return strings.Join(said, "; "), errors.Join(errs...)
}

// kernelUse returns how long the driver compiles the kernels, and what registers and shared memory
// each uses.
func kernelUse(ctx context.Context, s *session) (string, error) {
	text, err := s.output(ctx, "kernels", s.testProgram("cuda"), "-test.v", "-test.run",
		"^TestKernelUse$")
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " compiled in ") || strings.Contains(line, "persistent_") {
			fmt.Fprintln(s.out, strings.TrimSpace(line))
		}
	}
	if passed, _, _ := count(text); err == nil && passed != 1 {
		err = errors.New("TestKernelUse did not run")
	}
	if err != nil {
		err = errors.Join(err, failures(text))
	}
	return "", err
}

// recurrences measures a time step of each recurrence, beside the planner's estimate.
func recurrences(ctx context.Context, s *session) (string, error) {
	text, err := s.output(ctx, "steps", s.testProgram("cuda"), "-test.run", "^$", "-test.bench",
		"^BenchmarkRecurrence$", "-test.benchtime", "20x")
	rows := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "Benchmark") && strings.Contains(line, "us/step") {
			fmt.Fprint(s.out, line)
			rows++
		}
	}
	if err == nil && rows == 0 {
		err = errors.New("BenchmarkRecurrence printed no rows")
	}
	return fmt.Sprintf("%d rows", rows), err
}

// count counts the tests in the output of `-test.v`.
func count(text []byte) (passed, failed, skipped int) {
	lines := func(start string) int {
		return len(regexp.MustCompile(`(?m)^--- `+start+`:`).FindAll(text, -1))
	}
	return lines("PASS"), lines("FAIL"), lines("SKIP")
}

// mostFailures bounds how many are named.
const mostFailures = 20

// failures names the tests that failed, subtests too.
func failures(text []byte) error {
	var all []string
	for _, line := range bytes.Split(text, []byte("\n")) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "--- FAIL: "); ok {
			all = append(all, rest)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all[:min(len(all), mostFailures)], "\n"))
}

// profile has Nsight Compute read the counters of the persistent kernels, of one layer each.
func profile(ctx context.Context, s *session) (string, error) {
	path := tool("ncu")
	if path == "" {
		return "", fmt.Errorf("%w: no ncu here", errSkipped)
	}
	text, err := s.output(ctx, "ncu", path, "--clock-control", "none", "--kernel-name",
		"regex:persistent_", "--launch-count", "24", "--section", "SpeedOfLight", "--section",
		"MemoryWorkloadAnalysis", "--section", "WarpStateStats", "--section", "LaunchStats",
		"--section", "Occupancy", s.testProgram("cuda"), "-test.run", "^$", "-test.bench",
		"^BenchmarkRecurrence$/persistent", "-test.benchtime", "1x")
	return fmt.Sprintf("%d kernels", bytes.Count(text, []byte("Section: Launch Statistics"))), err
}

// sanitizing is the part in which compute-sanitizer looks for wrong addresses (memcheck) or races
// in shared memory (racecheck) in the kernels. It makes them many times slower, so that the part's
// limit is the only one.
func sanitizing(check string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		path := tool("compute-sanitizer")
		if path == "" {
			return "", fmt.Errorf("%w: no compute-sanitizer here", errSkipped)
		}
		text, err := s.output(ctx, "sanitizer-"+check, "env", "RONDO_CUDA_PATIENCE=",
			path, "--tool", check, "--error-exitcode", "9", s.testProgram("cuda"), "-test.v",
			"-test.short", "-test.run", sanitizedTests)
		late := context.Cause(ctx) != nil
		verdict, found := sanitized(check, text, late)
		if found {
			return verdict, fmt.Errorf("%s: %w", verdict, err)
		}
		if late {
			err = nil
		}
		return verdict, err
	}
}

// sanitizedTests are the tests with small shapes: the tool makes them ten times slower.
const sanitizedTests = "Elementwise|Rows|Sums|Squares|Update|Dropout|Product|Gemm|Output|Layer|" +
	"Persistent|Device"

// sanitized sums up a tool's findings in a line. late: it reached its time limit, so the findings
// are incomplete.
func sanitized(check string, text []byte, late bool) (verdict string, found bool) {
	errs := regexp.MustCompile(`(?m)^========= (?:Error|Invalid|Race|Barrier|Program hit).*$`).
		FindAll(text, -1)
	passed, failed, _ := count(text)
	verdict = fmt.Sprintf("%s: %d errors, %d tests passed, %d failed", check, len(errs), passed,
		failed)
	if late {
		verdict += ", not all in time"
	}
	return verdict, len(errs) > 0
}

// textFile is the packed text that the textbook's models are trained on.
const textFile = "text.txt"

// textbook trains the textbook's models, two workers on one GPU, and holds them against its limits.
func textbook(ctx context.Context, s *session) (string, error) {
	if _, err := os.Stat(s.program(textFile)); err != nil {
		return "", fmt.Errorf("%w: scripts/gpu.sh was given no text in RONDO_GPU_TEXT", errSkipped)
	}
	if s.Emulated {
		return "", fmt.Errorf("%w: 500 epochs take the emulated driver too long", errSkipped)
	}
	for _, precision := range []string{"fp32", "bf16"} {
		text, err := s.output(ctx, "textbook-"+precision, s.program("textbook"), "-rondo",
			s.program("rondo"), "-precision", precision, s.program(textFile), "--device", "cuda:0")
		fmt.Fprintf(s.out, "%s\n%s", precision, text)
		if err != nil {
			return "", err
		}
	}
	return "all perplexities are within their limits, in fp32 and bf16", nil
}
