//go:build cuda

package cuda

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
	"rondo/compute/cuda/emulator"
)

// numbers are n host numbers that begin with first.
func numbers(n int, first float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = first + float32(i%4096)
	}
	return x
}

// expect compares memory of the device with what it should hold.
func expect(t *testing.T, what string, d *Device, x, want []float32) {
	t.Helper()
	got := make([]float32, len(x))
	d.Download(got, x)
	for i := range want {
		if !sameBits(got[i], want[i]) {
			t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(x), got[i], want[i])
		}
	}
}

// scale multiplies memory of the device by a, in a kernel.
func scale(d *Device, x []float32, a float32) {
	d.queue.launch("flat_scale", across((len(x)+255)/256, 256), int64(len(x)), x, a)
}

func TestName(t *testing.T) {
	all, err := Devices()
	if err != nil || len(all) == 0 {
		t.Fatalf("devices %v, %v", all, err)
	}
	i := all[0]
	inspected, err := Inspect(0)
	if err != nil || inspected.Memory < inspected.Free || inspected.Free < 1 {
		t.Errorf("inspected: %+v, %v", inspected, err)
	}
	if inspected.Free = 0; inspected != i { // Devices does not ask: that takes a context on each
		t.Errorf("inspected: %+v, in the list: %+v", inspected, i)
	}
	if i.Index != 0 || i.Name == "" || !strings.HasPrefix(i.UUID, "GPU-") || i.Major < 7 ||
		i.Multiprocessors < 1 || i.SharedPerBlock < 48<<10 || !strings.Contains(i.Driver, ".") {
		t.Errorf("device %+v", i)
	}
	d := newGPU(t, compute.BF16)
	lacks := ""
	if d.gemm.blas == nil {
		lacks = "; no cuBLAS"
	}
	if (d.CUBLAS() == "") != (d.gemm.blas == nil) {
		t.Errorf("cuBLAS %+v is in %q", d.gemm.blas, d.CUBLAS())
	}
	if want := "cuda:0 " + i.Name + " (bf16" + lacks + ")"; d.Name() != want {
		t.Errorf("name %q, want %q", d.Name(), want)
	}
	if d.Precision() != compute.BF16 || d.Info().UUID != i.UUID {
		t.Errorf("precision %v, device %+v", d.Precision(), d.Info())
	}
	t.Setenv(blasEnvironment, "off")
	if d := newGPU(t, compute.FP32); d.gemm.blas != nil || !strings.HasSuffix(d.Name(),
		"(fp32; no cuBLAS)") {
		t.Errorf("without cuBLAS: %q", d.Name())
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		config        Config
		variable, set string
		want          string
	}{
		{Config{Index: -1}, ptxEnvironment, "", "no GPU -1: the driver shows "},
		{Config{Index: 1000}, ptxEnvironment, "", "no GPU 1000: the driver shows "},
		{Config{Precision: 9}, ptxEnvironment, "", "precision 9 is unknown"},
		{Config{}, ptxEnvironment, "61", "6.1 is too old"},
		{Config{}, ptxEnvironment, "999", "not above cuda:0's"},
		{Config{}, ptxEnvironment, "new", "give an architecture"},
		{Config{}, patienceEnvironment, "20", patienceEnvironment + ` is "20": give a duration`},
		{Config{}, patienceEnvironment, "-1s", "give a duration of 24h0m0s at most"},
		{Config{}, spinsEnvironment, "many", spinsEnvironment + ` is "many": give a number`},
		{Config{}, kernelsEnvironment, "/nowhere", "no NAME.ptx of a module"},
		{Config{}, blasEnvironment, "on", blasEnvironment + ` is "on": give off`},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Setenv(c.variable, c.set)
			d, err := New(c.config)
			if err == nil {
				d.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %s=%s: %v", c.config, c.variable, c.set, err)
			}
		})
	}
}

func TestOldDriver(t *testing.T) {
	if err := tooOld(11080, "11.8"); err != nil {
		t.Error(err)
	}
	err := tooOld(11070, "11.7")
	if err == nil || !strings.Contains(err.Error(), "supports CUDA 11.7, ") {
		t.Errorf("a driver for CUDA 11.7: %v", err)
	}
}

// TestOlderKernels runs a kernel of each architecture that the GPU can run.
func TestOlderKernels(t *testing.T) {
	for _, architecture := range []string{"70", "80", "90"} {
		t.Setenv(ptxEnvironment, architecture)
		d, err := New(Config{})
		if err != nil {
			if !strings.Contains(err.Error(), "not above") {
				t.Error(err)
			}
			continue
		}
		x := d.Alloc(300)
		d.Upload(x, numbers(300, 1))
		scale(d, x, -1)
		want := numbers(300, 1)
		for i := range want {
			want[i] = -want[i]
		}
		expect(t, "kernels for "+architecture, d, x, want)
		d.Close()
	}
}

// TestThreads calls a device from goroutines that stay on threads of their own, one after another.
func TestThreads(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(1000)
	d.Upload(x, numbers(1000, 1))
	want := numbers(1000, 1)
	var turn sync.Mutex
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
			for range 3 {
				turn.Lock()
				scale(d, x, 2)
				turn.Unlock()
				runtime.Gosched()
			}
		})
	}
	group.Wait()
	for i := range want {
		want[i] *= 1 << 24
	}
	expect(t, "after 8 threads", d, x, want)
}

// TestTwoDevices has two Devices on one GPU, used in turn by one goroutine.
func TestTwoDevices(t *testing.T) {
	a, b := newGPU(t, compute.FP32), newGPU(t, compute.FP32)
	x, y := a.Alloc(100), b.Alloc(100)
	a.Upload(x, numbers(100, 1))
	b.Upload(y, numbers(100, 7))
	scale(a, x, 1)
	scale(b, y, 1)
	expect(t, "the first", a, x, numbers(100, 1))
	a.Close()
	expect(t, "the second", b, y, numbers(100, 7))
}

// TestArguments says what launch makes of every type of argument.
func TestArguments(t *testing.T) {
	x := make([]float32, 1)
	place := uint64(uintptr(unsafe.Pointer(&x[0])))
	for i, c := range []struct {
		argument any
		want     uint64
	}{
		{x, place}, {unsafe.Pointer(&x[0]), place}, {[]float32{}, 0}, {unsafe.Pointer(nil), 0},
		{int32(-1), 0xffffffff}, {uint32(7), 7}, {int64(-1), 1<<64 - 1}, {uint64(9), 9},
		{float32(1), 0x3f800000},
	} {
		if got := bits("kernel", i, c.argument); got != c.want {
			t.Errorf("%T %v: %#x, want %#x", c.argument, c.argument, got, c.want)
		}
	}
	d := newGPU(t, compute.FP32)
	for name, f := range map[string]func(){
		"argument 1 of k has a type":       func() { bits("k", 1, 5) },
		"no module has the kernel nothing": func() { d.queue.launch("nothing", across(1, 1)) },
		"[0 1 1] blocks of [1 1 1]":        func() { d.queue.launch("flat_scale", across(0, 1)) },
	} {
		if text := panicOf(f); !strings.Contains(text, name) {
			t.Errorf("panic %q, want %q", text, name)
		}
	}
}

// panicOf is what a call panics with, as text.
func panicOf(f func()) (text string) {
	defer func() {
		switch p := recover().(type) {
		case string:
			text = p
		case error:
			text = p.Error()
		}
	}()
	f()
	return ""
}

// TestFailure breaks the device: a kernel writes to no memory. Everything that follows says so, and
// closing does no harm. It does so in a process of its own: a GPU's failure is its process's.
func TestFailure(t *testing.T) {
	if child(t) {
		breakDevice(t)
		return
	}
	if output, err := inChild(t); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

func breakDevice(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(256)
	workspace, words := d.memory.malloc(64), d.memory.newStaged(64)
	recording, err := d.Record(func() error { scale(d, x, 2); return nil })
	if err != nil {
		t.Fatal(err)
	}
	nowhere := make([]unsafe.Pointer, 1)
	*(*uintptr)(unsafe.Pointer(&nowhere[0])) = 256
	d.queue.launch("flat_scale", across(1, 256), int64(256), nowhere[0], float32(2))
	for _, doing := range []string{"downloading", "again"} {
		err := failureOf(func() { d.Download(make([]float32, 256), x) })
		failed, ok := errors.AsType[*compute.DeviceError](err)
		if !ok || failed.Device != d.Name() || !strings.Contains(err.Error(), "CUDA_ERROR_") {
			t.Fatalf("%s: %v", doing, err)
		}
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Code < 700 {
			t.Errorf("%s: %v", doing, err)
		}
	}
	recording.Close()
	words.close()
	d.memory.release(workspace)
	d.Free(x)
	d.Close()
	if now, _ := d.Bytes(); now != 0 {
		t.Errorf("a closed device holds %d bytes", now)
	}
}

// TestHang gives up a wait. The device is not used after that, nor freed what it may still use.
func TestHang(t *testing.T) {
	if !child(t) {
		if output, err := inChild(t); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	n, launches := 1<<22, 3000 // a hundredth of a second on a GPU
	if emulator.Running() {
		n, launches = 1<<16, 10
	}
	d := newGPU(t, compute.FP32)
	x := d.Alloc(n)
	for range launches {
		scale(d, x, 1)
	}
	if err := d.queue.fence.Record(d.queue.stream); err != nil {
		t.Fatal(err)
	}
	err := d.queue.fence.Wait(time.Microsecond)
	if err == nil || !strings.Contains(err.Error(), "has not come to an end in 1µs") {
		t.Fatalf("waiting for a microsecond: %v", err)
	}
	err = failureOf(func() { d.Download(make([]float32, n), x) })
	if failed, ok := errors.AsType[*compute.DeviceError](err); !ok || failed.Err == nil ||
		!strings.Contains(err.Error(), "has not come to an end") {
		t.Errorf("downloading then: %v", err)
	}
	d.Free(x)
	d.Close()
}

// TestRefused asks for what no GPU does. The device works afterwards, and closing it frees all.
func TestRefused(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(100)
	d.Upload(x, numbers(100, 1))
	for name, l := range map[string]launch{
		"shared memory": {grid: [3]int{1}, block: [3]int{32}, shared: 1 << 30},
		"threads":       {grid: [3]int{1}, block: [3]int{1 << 20}},
		"cooperative":   {grid: [3]int{1 << 20}, block: [3]int{256}, cooperative: true},
	} {
		err := failureOf(func() { d.queue.launch("flat_scale", l, int64(1), x, float32(2)) })
		if failed, ok := errors.AsType[*compute.DeviceError](err); !ok ||
			!strings.Contains(failed.Doing, "flat_scale") || d.queue.broken {
			t.Errorf("%s: %v; broken: %t", name, err, d.queue.broken)
		}
	}
	scale(d, x, 1)
	expect(t, "afterwards", d, x, numbers(100, 1))
	d.Close()
	if tensors, workspaces := d.memory.made(); tensors != 0 || workspaces != 0 {
		t.Errorf("closed with %d tensors and %d workspaces", tensors, workspaces)
	}
}

// TestPoll looks for the end of a kernel by itself, which the emulated driver begins at the first
// look.
func TestPoll(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(100)
	for range 3 {
		scale(d, x, 2)
	}
	if err := d.queue.fence.Record(d.queue.stream); err != nil {
		t.Fatal(err)
	}
	if passed, err := d.queue.fence.Poll(0); err != nil || passed && emulator.Running() {
		t.Errorf("a look: %t, %v", passed, err)
	}
	if passed, err := d.queue.fence.Poll(time.Minute); err != nil || !passed {
		t.Errorf("until the end: %t, %v", passed, err)
	}
	if n := testing.AllocsPerRun(10, func() { d.queue.wait("waiting") }); n != 0 {
		t.Errorf("%v allocations a wait", n)
	}
}

// childOf names the test that a process was started for.
const childOf = "RONDO_TEST_CHILD"

// child reports whether this process was started by inChild.
func child(t *testing.T) bool { return os.Getenv(childOf) == t.Name() }

// inChild runs the test that calls it in a process of its own.
func inChild(t *testing.T, environment ...string) (output string, err error) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=1m")
	command.Env = append(os.Environ(), append(environment, childOf+"="+t.Name())...)
	text, err := command.CombinedOutput()
	return string(text), err
}

// failureOf is the error that a call panics with.
func failureOf(f func()) (err error) {
	defer compute.Catch(&err)
	f()
	return nil
}

// TestWithoutDriver hides the GPUs from the driver, and then the driver, where that is emulated.
func TestWithoutDriver(t *testing.T) {
	if child(t) {
		_, err := New(Config{})
		_, listing := Devices()
		t.Logf("New says %v; Devices says %v", err, listing)
		return
	}
	hidden := []string{"CUDA_VISIBLE_DEVICES=-1", "RONDO_EMULATOR_DEVICES=0",
		"RONDO_EMULATED=without a driver"} // lest it is run again on that
	for _, more := range [][]string{nil, {"LD_LIBRARY_PATH="}} {
		output, err := inChild(t, append(more, hidden...)...)
		for _, want := range []string{"New says cuda: no GPU: ", "Devices says cuda: no GPU: ",
			"libcuda.so.1"} {
			if err != nil || !strings.Contains(output, want) {
				t.Errorf("%v, no %q in: %s", err, want, output)
			}
		}
		if says := "does not start: CUDA_ERROR_NO_DEVICE (100): "; more == nil &&
			!strings.Contains(output, says) {
			t.Errorf("no %q in: %s", says, output)
		}
	}
}

// TestTwoGPUs uses two in turn, where there are two.
func TestTwoGPUs(t *testing.T) {
	if !child(t) {
		if output, err := inChild(t, "RONDO_EMULATOR_DEVICES=2"); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	all, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Skip("this machine has one GPU, and the test is of two; the emulated driver has them")
	}
	a := newGPU(t, compute.FP32)
	b, err := New(Config{Index: 1, Precision: compute.TF32})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if !strings.HasPrefix(b.Name(), "cuda:1 ") || all[0].UUID == all[1].UUID {
		t.Errorf("%s; %+v", b.Name(), all)
	}
	x, y := a.Alloc(100), b.Alloc(100)
	for range 3 {
		a.Upload(x, numbers(100, 1))
		b.Upload(y, numbers(100, 7))
		scale(a, x, 1)
		scale(b, y, 1)
		expect(t, "of the first", a, x, numbers(100, 1))
		expect(t, "of the second", b, y, numbers(100, 7))
	}
}
