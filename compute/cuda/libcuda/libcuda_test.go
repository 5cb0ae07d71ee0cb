//go:build cuda

package libcuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lameDriver says when it is opened and started, and does not start.
const lameDriver = `
#include <stdio.h>
__attribute__((constructor)) static void opened(void) { puts("driver opened"); fflush(stdout); }
int cuInit(unsigned flags) { puts("driver started"); fflush(stdout); return 999; }
int cuGetErrorName(int error, const char **name) { *name = "LAME"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "it limps"; return 0; }
`

// TestStart says that the driver is opened and started when it is asked for, not before, and once.
func TestStart(t *testing.T) {
	const marker = "RONDO_TEST_CHILD"
	if os.Getenv(marker) != "" {
		fmt.Println("process started")
		fmt.Println(Missing())
		fmt.Println(Missing())
		return
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler")
	}
	folder := t.TempDir()
	source := filepath.Join(folder, "driver.c")
	if err := os.WriteFile(source, []byte(lameDriver), 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command(compiler, "-shared", "-fPIC", "-o",
		filepath.Join(folder, "libcuda.so.1"), source).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStart$")
	command.Env = append(os.Environ(), marker+"=1", "LD_LIBRARY_PATH="+folder)
	output, err = command.CombinedOutput()
	const says = "libcuda.so.1 does not start: LAME (999): it limps\n"
	want := "process started\ndriver opened\ndriver started\n" + says + says
	if err != nil || !strings.HasPrefix(string(output), want) {
		t.Errorf("%v, printed:\n%s\nwant:\n%s", err, output, want)
	}
}

// TestPlainBuild: a build with the tag alone names what is missing.
func TestPlainBuild(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go")
	}
	command := exec.CommandContext(t.Context(), "go", "vet", "-tags", "cuda", "../driver")
	command.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false") // without -modfile
	output, err := command.CombinedOutput()
	if want := "undefined: cu.MadeByScriptsCudaSh"; err == nil ||
		!strings.Contains(string(output), want) {
		t.Errorf("%v, without %q:\n%s", err, want, output)
	}
}
