//go:build cuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cuda/driver"
	"rondo/compute/cuda/emulator"
)

// hollowBLAS is a cuBLAS that multiplies nothing: START is what its creation returns, and REFUSE
// what it returns for products of 16 bits.
const hollowBLAS = `
int cublasCreate_v2(void **h) { static int it; *h = &it; return START; }
int cublasDestroy_v2(void *h) { return 0; }
int cublasSetStream_v2(void *h, void *s) { return 0; }
int cublasSetWorkspace_v2(void *h, void *w, unsigned long n) { return 0; }
int cublasSetMathMode(void *h, int m) { return 0; }
int cublasGetVersion_v2(void *h, int *v) { *v = 130700; return 0; }
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
	int type, int lda, const void *b, int b_type) { return type ? REFUSE : 0; }
`

// libraryPath has these versions of hollowBLAS found before any other.
func libraryPath(t *testing.T, start, refuse int, versions ...int) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler")
	}
	folder := t.TempDir()
	source := filepath.Join(folder, "blas.c")
	if err := os.WriteFile(source, []byte(hollowBLAS), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, version := range versions {
		output, err := exec.Command(compiler, "-w", "-shared", "-fPIC",
			fmt.Sprintf("-DSTART=%d", start), fmt.Sprintf("-DREFUSE=%d", refuse),
			"-o", filepath.Join(folder, fmt.Sprintf("libcublas.so.%d", version)), source,
		).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	return "LD_LIBRARY_PATH=" + folder + ":" + os.Getenv("LD_LIBRARY_PATH")
}

// TestLibraryDoesNotStart goes on to an older cuBLAS, and without one where none starts.
func TestLibraryDoesNotStart(t *testing.T) {
	if child(t) {
		d := newGPU(t, compute.FP32)
		version := "none"
		if d.gemm.blas != nil {
			version = d.gemm.blas.Version()
		}
		p := newGemmProblem(operandFP32, 20, 33, 17, 0, rand.New(rand.NewPCG(1, 2)))
		p.check(t, "whoever makes it", p.run(d, 0, func(q driver.Product) {
			d.gemm.product(p.o, q.TransA, q.TransB, q.M, q.N, q.K, q.Alpha, q.A, q.B, q.Beta, q.C)
		}))
		t.Logf("%s has cuBLAS %s", d.Name(), version)
		return
	}
	for _, c := range []struct {
		versions []int
		want     string
	}{
		{[]int{13}, "(fp32) has cuBLAS 12.4"},
		{[]int{13, 12, 11}, "(fp32; no cuBLAS: 13 says NOT_INITIALIZED) has cuBLAS none"},
		{[]int{12}, "(fp32; no cuBLAS: 12 says NOT_INITIALIZED) has cuBLAS none"},
	} {
		output, err := inChild(t, libraryPath(t, 1, 0, c.versions...))
		if err != nil || emulator.Running() && !strings.Contains(output, c.want) {
			t.Errorf("%v that do not start: %v, no %q in: %s", c.versions, err, c.want, output)
		}
	}
}

// TestLibraryOfPip finds a cuBLAS that pip, or conda, has put into an environment.
func TestLibraryOfPip(t *testing.T) {
	if child(t) {
		d := newGPU(t, compute.FP32)
		t.Logf("%s multiplies with %s", d.Name(), d.CUBLAS())
		return
	}
	for variable, folder := range map[string]string{
		"VIRTUAL_ENV": "lib/python3.12/site-packages/nvidia/cu13/lib", "CONDA_PREFIX": "lib"} {
		built := strings.TrimPrefix(libraryPath(t, 0, 0, 13), "LD_LIBRARY_PATH=")
		built, _, _ = strings.Cut(built, ":")
		environment := t.TempDir()
		lib := filepath.Join(environment, folder)
		if err := os.MkdirAll(filepath.Dir(lib), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(built, lib); err != nil {
			t.Fatal(err)
		}
		output, err := inChild(t, "VIRTUAL_ENV=", "CONDA_PREFIX=", "RONDO_CUDA_LIBRARIES=",
			variable+"="+environment)
		// A GPU's machine may have another cuBLAS 13, where the loader looks.
		if want := " multiplies with " + lib + "/libcublas.so.13\n"; err != nil ||
			emulator.Running() && !strings.Contains(output, want) {
			t.Errorf("%s: %v, no %q in: %s", variable, err, want, output)
		}
	}
}

// TestLibraryRefuses has a cuBLAS without products of 16 bits: ours are taken, and it is not asked
// again.
func TestLibraryRefuses(t *testing.T) {
	if !child(t) {
		for _, refuse := range []int{8, 15} {
			if output, err := inChild(t, libraryPath(t, 0, refuse, 13)); err != nil {
				t.Errorf("refused with %d: %v: %s", refuse, err, output)
			}
		}
		return
	}
	d := newGPU(t, compute.BF16)
	if d.gemm.blas == nil || d.gemm.blas.Version() != "13.7" || !d.gemm.byLibrary(operandBF16) {
		t.Fatalf("%s: cuBLAS %+v", d.Name(), d.gemm.blas)
	}
	const size = 8
	shape := compute.RecurrentShape{Cell: compute.GRUResetBefore, T: 4, B: 4, D: size, H: size}
	l := makeSteps(d, shape, false, true)
	if l.held.hh != nil || d.gemm.byLibrary(operandBF16) {
		t.Errorf("W_hh is kept in 16 bits, of which there are no products; asked again: %t",
			d.gemm.byLibrary(operandBF16))
	}
	l.close()
	d.gemm.unsupported[operandBF16] = false
	side := libraryReuse // the least that cuBLAS is asked for
	p := newGemmProblem(operandBF16, side, side, libraryWork16/side/side, 0,
		rand.New(rand.NewPCG(3, 4)))
	multiply := func(q driver.Product) {
		d.gemm.product(p.o, q.TransA, q.TransB, q.M, q.N, q.K, q.Alpha, q.A, q.B, q.Beta, q.C)
	}
	got := p.run(d, 0, multiply)
	if d.gemm.byLibrary(operandBF16) || d.queue.broken {
		t.Errorf("after a product that is refused: asked again: %t, broken: %t",
			d.gemm.byLibrary(operandBF16), d.queue.broken)
	}
	how := chooseMethod(p.o, p.m, p.n, p.k, false, d.queue.info.Major >= 8)
	wantSame(t, "the product", got, p.run(d, 0, func(q driver.Product) {
		d.gemm.ownProduct(p.o, q, how)
	}))
}
