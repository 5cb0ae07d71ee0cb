//go:build cgo && amd64 && linux

package cpu

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAMX runs the kernels for AMX without Go: products of odd shapes, layers and output layers
// against the portable kernels, on several threads; on a processor without AMX by emulating its
// instructions, which refuses what the processor would. The sanitizers look at the kernels and at
// the memory of emulated tiles.
func TestAMX(t *testing.T) {
	t.Parallel()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	folder := t.TempDir()
	sources, err := filepath.Glob("*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("C sources %v (%v)", sources, err)
	}
	program := filepath.Join(folder, "amx")
	link := []string{"-pthread", "-fsanitize=address,undefined", "-o", program}
	for _, source := range append(sources, "testdata/amx/main.c", "testdata/amx/emulate.c") {
		object := filepath.Join(folder, strings.TrimSuffix(filepath.Base(source), ".c")+".o")
		flags := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Werror", "-pthread",
			"-I.", "-c", "-o", object, source}
		if source == "isa_amx.c" || filepath.Dir(source) == "testdata/amx" {
			flags = append(flags, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
		}
		compile(t, compiler, flags)
		link = append(link, object)
	}
	compile(t, compiler, append(link, "-lm"))
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

// compile runs the compiler, within a time.
func compile(t *testing.T, compiler string, flags []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, compiler, flags...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
}
