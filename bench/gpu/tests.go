package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// devices shows the GPUs, and fails where there is none: nothing below would mean anything.
func devices(ctx context.Context, s *session) (string, error) {
	said, err := s.output(ctx, "devices", s.program("gpu"), "measure", "-list")
	text := strings.TrimSpace(string(said))
	fmt.Fprintln(s.out, text)
	return firstLine(text), err
}

// testFolder holds the test programs, named after their packages.
const testFolder = "tests"

func (s *session) testPrograms() ([]string, error) {
	all, err := filepath.Glob(s.program(filepath.Join(testFolder, "*.test")))
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no test programs in %s", s.program(testFolder))
	}
	return all, err
}

// tests runs all test programs on the real GPU. Their PTX is also tried as older GPUs are given it,
// and without cuBLAS.
func tests(ctx context.Context, s *session) (string, error) {
	programs, err := s.testPrograms()
	if err != nil {
		return "", err
	}
	var said []string
	var errs []error
	for _, variant := range []string{"RONDO_CUDA_PTX=", "RONDO_CUDA_BLAS=off", "RONDO_CUDA_PTX=80",
		"RONDO_CUDA_PTX=70"} {
		for _, program := range programs {
			name := strings.TrimSuffix(filepath.Base(program), ".test")
			began := time.Now()
			text, err := s.output(ctx, "tests-"+name, "env", variant, program, "-test.v",
				"-test.short")
			passed, failed, skipped := count(text)
			verdict := fmt.Sprintf("%s %s: %d passed, %d failed, %d skipped, %.0f s", name, variant,
				passed, failed, skipped, time.Since(began).Seconds())
			fmt.Fprintln(s.out, verdict)
			said = append(said, verdict)
			if err == nil && passed == 0 {
				err = fmt.Errorf("%s: it ran no test", program)
			}
			if err != nil {
				errs = append(errs, err, failures(text))
			}
		}
	}
	return strings.Join(said, "; "), errors.Join(errs...)
}

// count counts whole tests in what `-test.v` prints.
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

// sanitizer looks for wrong addresses, races in shared memory and wrong barriers in the kernels,
// where compute-sanitizer is installed.
func sanitizer(ctx context.Context, s *session) (string, error) {
	const tool = "compute-sanitizer"
	path, err := exec.LookPath(tool)
	if err != nil {
		const usual = "/usr/local/cuda/bin/" + tool
		if _, err := os.Stat(usual); err != nil {
			return "", fmt.Errorf("%w: no %s here", errSkipped, tool)
		}
		path = usual
	}
	program := s.program(filepath.Join(testFolder, "cuda.test"))
	checks := []string{"memcheck", "racecheck", "synccheck"}
	deadline, _ := ctx.Deadline()
	share := time.Until(deadline) / time.Duration(len(checks))
	var said []string
	var errs []error
	for _, check := range checks {
		limited, cancel := context.WithTimeout(ctx, share)
		text, err := s.output(limited, "sanitizer-"+check, path, "--tool", check,
			"--error-exitcode", "9", program, "-test.v", "-test.short", "-test.run",
			sanitizedTests)
		late := limited.Err() != nil
		cancel()
		verdict, found := sanitized(check, text, late)
		fmt.Fprintln(s.out, verdict)
		said = append(said, verdict)
		switch {
		case found:
			errs = append(errs, fmt.Errorf("%s: %w", verdict, err))
		case err != nil && !late:
			errs = append(errs, err)
		}
	}
	return strings.Join(said, "; "), errors.Join(errs...)
}

// sanitizedTests are those whose shapes are small; what the tool slows down tenfold must end.
const sanitizedTests = "Elementwise|Rows|Sums|Squares|Update|Dropout|Product|Gemm|Output|Layer|" +
	"Persistent|Device"

// sanitized says in a line what a tool has found. One that was too late has found what it said up
// to then.
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

// textbook trains the textbook's models, two workers on one GPU, and holds them against its limits.
func textbook(ctx context.Context, s *session) (string, error) {
	if s.Text == "" {
		return "", fmt.Errorf("%w: -text names no text", errSkipped)
	}
	for _, precision := range []string{"fp32", "bf16"} {
		text, err := s.output(ctx, "textbook-"+precision, s.program("textbook"), "-rondo",
			s.program("rondo"), "-precision", precision, s.Text, "--device", "cuda:0")
		fmt.Fprintf(s.out, "%s\n%s", precision, text)
		if err != nil {
			return "", err
		}
	}
	return "all perplexities are within their limits, in fp32 and bf16", nil
}
