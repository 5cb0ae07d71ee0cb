//go:build cgo && amd64 && linux

package cpu

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/compute"
)

// TestAMX runs the kernels for AMX without Go: products of odd shapes, layers and output layers
// against the portable kernels, on several threads; on a processor without AMX by emulating its
// instructions, which refuses what the processor would. The sanitizers look at the kernels and at
// the memory of emulated tiles.
func TestAMX(t *testing.T) {
	t.Parallel()
	if !slices.Contains(isas(compute.BF16), "avx512bf16") {
		t.Skip("the emulation needs a processor with AVX-512 and its instructions for bf16")
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	folder := t.TempDir()
	sources, err := filepath.Glob("kernels/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("C sources %v (%v)", sources, err)
	}
	program := filepath.Join(folder, "amx")
	sources = slices.DeleteFunc(sources, func(source string) bool {
		return strings.HasPrefix(source, "kernels/isa_")
	})
	objects := compileAll(t, compiler, folder, append(sources, "kernels/isa_portable_bf16.c"), nil)
	objects = append(objects, compileAll(t, compiler, folder,
		[]string{"kernels/isa_amx.c", "testdata/amx/main.c", "testdata/amx/emulate.c"},
		[]string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"})...)
	link := append([]string{"-pthread", "-fsanitize=address,undefined", "-o", program}, objects...)
	if output, err := run(t, compiler, append(link, "-lm")...); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, program).CombinedOutput()
	var exit *exec.ExitError
	const cannotRun = 77
	if errors.As(err, &exit) && exit.ExitCode() == cannotRun {
		t.Skipf("%s", output)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	t.Logf("%s", output)
}
