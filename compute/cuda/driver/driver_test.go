//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"rondo/compute/cuda/libcuda"
)

// TestWithoutDriver says what a machine without the driver's library is told, and on one that has
// it, that Count and Devices agree.
func TestWithoutDriver(t *testing.T) {
	count, err := Count()
	all, listing := Devices()
	missing := libcuda.Missing()
	if missing == "" {
		if err != nil || listing != nil || len(all) != count {
			t.Errorf("%d devices (%v), %d listed (%v)", count, err, len(all), listing)
		}
		return
	}
	if !strings.Contains(missing, "libcuda.so.1") {
		t.Errorf("the driver is missing: %q", missing)
	}
	_, describing := Describe(0)
	_, opening := Open(0)
	_, asking := Free(0)
	for _, err := range []error{err, listing, describing, opening, asking} {
		if err == nil || err.Error() != missing {
			t.Errorf("without a driver: %v, want %q", err, missing)
		}
	}
}

func TestErrors(t *testing.T) {
	if err := failure("cuMemAlloc", nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	inner := &Error{Call: "cuMemAlloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY", Text: "no room"}
	if err := failure("cuLaunchKernel", inner); !errors.Is(err, inner) ||
		err.Error() != inner.Error() {
		t.Errorf("of a call within: %v", err)
	}
	if got := inner.Error(); got != "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): no room" {
		t.Errorf("its text: %s", got)
	}
	plain := errors.New("something")
	if err := failure("cuMemAlloc", plain); !errors.Is(err, plain) {
		t.Errorf("of another error: %v", err)
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{inner, true},
		{&Error{Call: "cuMemAlloc", Code: 3}, false},
		{multiplied("cublasGemmEx", 3), true},
		{multiplied("cublasGemmEx", 2), false},
		{plain, false},
	} {
		if got := OutOfMemory(c.err); got != c.want {
			t.Errorf("%v: out of memory: %t", c.err, got)
		}
	}
	for _, c := range []struct {
		err                 error
		broken, unsupported bool
	}{
		{&Error{Call: "cuLaunchKernel", Code: 1}, false, false},
		{&Error{Call: "cuLaunchKernel", Code: 701}, false, false},
		{&Error{Call: "cuEventQuery", Code: 700}, true, false},
		{&Error{Call: "cuEventQuery", Code: 719}, true, false},
		{&Error{Call: "cuEventQuery", Code: 214}, true, false},
		{fmt.Errorf("%w in 5m", errHung), true, false},
		{multiplied("cublasGemmEx", 15), false, true},
		{multiplied("cublasGemmEx", 8), false, true},
		{multiplied("cublasGemmEx", 7), false, false},
		{&Error{Call: "cuLaunchKernel", Code: 8}, false, false},
		{nil, false, false},
	} {
		if b, u := Broken(c.err), Unsupported(c.err); b != c.broken || u != c.unsupported {
			t.Errorf("%v: broken: %t, unsupported: %t", c.err, b, u)
		}
	}
	if got := version(12040); got != "12.4" {
		t.Errorf("version 12040 is %s", got)
	}
}

// TestLibraryFolders finds a file where pip puts it, or only in the folders that are named.
func TestLibraryFolders(t *testing.T) {
	const file = "libnone.so.1"
	root, home := t.TempDir(), t.TempDir()
	var want []string
	for _, folder := range []string{root + "/lib/python3.12/site-packages/nvidia/nccl/lib/",
		home + "/.local/lib/python3.11/dist-packages/nvidia/cu13/lib/"} {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(folder+file, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		want = append(want, folder)
	}
	t.Setenv(librariesEnvironment, "")
	t.Setenv("VIRTUAL_ENV", root)
	t.Setenv("CONDA_PREFIX", "")
	t.Setenv("HOME", home)
	if got := libraryFolders(file); !slices.Equal(got, append([]string{""}, want...)) {
		t.Errorf("%q, want the loader's and %q", got, want)
	}
	t.Setenv(librariesEnvironment, home+":"+want[1])
	if got := libraryFolders(file); !slices.Equal(got, []string{"", want[1]}) {
		t.Errorf("%q, want the loader's and %q", got, want[1])
	}
}
