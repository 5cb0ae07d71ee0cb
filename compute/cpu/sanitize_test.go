//go:build cgo

package cpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/compute"
)

// sanitizeTime bounds one compilation or one run.
const sanitizeTime = 8 * time.Minute

// TestSanitizers runs the C kernels, without Go, under the compiler's sanitizers: addresses and
// undefined behaviour over shapes from 1 to 67 in tensors exactly as large as they must be, for
// every cell, instruction set and precision with 1 to 3 threads; and threads, on fewer shapes. The
// sanitizers must report mistakes that are made on purpose.
// It skips with -short, and where the compiler, or its sanitizer, is missing. Without
// RONDO_TEST_LONG, which make nightly sets, it runs a third of the random shapes, and addresses are
// watched in the lowest and the highest instruction set only.
func TestSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("compiling and running take minutes: `make race` has them")
	}
	long := os.Getenv("RONDO_TEST_LONG") != ""
	for _, c := range []struct {
		name                   string
		flags                  []string
		cases, largest, fewest int
		mistakes               map[string]string // and what is reported
	}{
		{"address,undefined", []string{"-fsanitize=address,undefined",
			"-fno-sanitize-recover=all"}, 6, 67, 1, map[string]string{
			"tensor": "AddressSanitizer: heap-buffer-overflow",
			"part":   "AddressSanitizer: use-after-poison", "overflow": "runtime error: signed"}},
		{"thread", []string{"-fsanitize=thread"}, 2, 35, 2, map[string]string{
			"race": "ThreadSanitizer: data race"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program := buildSanitized(t, c.flags, long)
			seed := newRandom(t).Uint64()
			if !long {
				c.cases = max(1, c.cases/3)
			}
			for mistake, report := range c.mistakes {
				output, err := run(t, program, mistake)
				if err == nil || !strings.Contains(output, report) {
					t.Errorf("mistake %s: no %q in\n%s", mistake, report, output)
				}
			}
			output, err := run(t, program, fmt.Sprint(seed), fmt.Sprint(c.cases),
				fmt.Sprint(c.largest), fmt.Sprint(c.fewest))
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, output)
			}
			t.Logf("%s", output)
		})
	}
}

// buildSanitized compiles the kernels and testdata/sanitize with a sanitizer's flags. Unless all is
// true, the address sanitizer leaves out instruction sets between the lowest and the highest.
func buildSanitized(t *testing.T, flags []string, all bool) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	folder := t.TempDir()
	empty := filepath.Join(folder, "empty.c")
	if err := os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	trial := filepath.Join(folder, "empty")
	if output, err := run(t, compiler, append(flags, "-o", trial, empty)...); err != nil {
		t.Skipf("%s cannot link with %s: %v\n%s", compiler, flags[0], err, output)
	}
	if output, err := run(t, trial); err != nil {
		t.Skipf("programs with %s do not run here: %v\n%s", flags[0], err, output)
	}
	sources, err := filepath.Glob("kernels/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("C sources %v (%v)", sources, err)
	}
	program := filepath.Join(folder, "sanitize")
	var plain []string
	if !all && flags[0] != "-fsanitize=thread" { // which must see every barrier
		sources, plain = extremes(sources)
	}
	common := []string{"-fno-omit-frame-pointer", "-ffp-contract=off"}
	objects := compileAll(t, compiler, folder, append(sources, "testdata/sanitize/main.c"),
		slices.Concat(common, flags))
	objects = append(objects, compileAll(t, compiler, folder, plain, common)...)
	link := append([]string{"-pthread", "-o", program}, flags...)
	if output, err := run(t, compiler, append(append(link, objects...), "-lm")...); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return program
}

// extremes divides C sources into those of all instruction sets or of the lowest or the highest
// that this processor has, in either precision, and those of the others.
func extremes(sources []string) (these, others []string) {
	wanted := make(map[string]bool)
	for _, p := range precisions {
		all := isas(p)
		for _, isa := range []string{all[0], all[len(all)-1]} {
			source := "kernels/isa_" + isa
			own := source + "_bf16.c"
			if p == compute.BF16 && slices.Contains(sources, own) {
				wanted[own] = true
			} else {
				wanted[source+".c"] = true
			}
		}
	}
	for _, source := range sources {
		if wanted[source] || !strings.HasPrefix(source, "kernels/isa_") {
			these = append(these, source)
		} else {
			others = append(others, source)
		}
	}
	return these, others
}

// compileAll compiles sources to objects in the folder, as many at once as there are processors.
func compileAll(t *testing.T, compiler, folder string, sources, flags []string) []string {
	t.Helper()
	objects, errs := make([]string, len(sources)), make([]error, len(sources))
	var group sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, source := range sources {
		objects[i] = filepath.Join(folder, strings.TrimSuffix(filepath.Base(source), ".c")+".o")
		group.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-Wall", "-Werror",
				"-pthread", "-Ikernels", "-c", "-o", objects[i], source}, flags...)
			if output, err := run(t, compiler, args...); err != nil {
				errs[i] = fmt.Errorf("%s: %w\n%s", source, err, output)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return objects
}

// run returns what a program prints.
func run(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sanitizeTime)
	defer cancel()
	output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%s did not end within %v", filepath.Base(program), sanitizeTime)
	}
	return strings.TrimSpace(string(output)), err
}
