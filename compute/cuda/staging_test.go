//go:build cuda

package cuda

import (
	"errors"
	"math"
	"strings"
	"testing"

	"rondo/compute"
)

// TestTransfers moves more than fits in the ferry, and gives the host's memory another content as
// soon as Upload has returned.
func TestTransfers(t *testing.T) {
	d := newGPU(t, compute.FP32)
	for _, n := range []int{1, ferryBytes/4 - 1, ferryBytes / 4, ferrySlots*ferryBytes/4 + 5} {
		x, y := d.Alloc(n), d.Alloc(n)
		host := numbers(n, 1)
		d.Upload(x, host)
		clear(host)
		copy(host, numbers(n, 9))
		d.Upload(y, host)
		clear(host)
		scale(d, x, 2)
		want := numbers(n, 1)
		for i := range want {
			want[i] *= 2
		}
		expect(t, "the first", d, x, want)
		expect(t, "the second", d, y, numbers(n, 9))
		d.Free(x)
		d.Free(y)
	}
}

// words has a fill write n numbers from first on.
func words(n int, first float32) func(host []byte) {
	return func(host []byte) { copy(host, bytesOf(numbers(n, first))) }
}

// TestStaged puts more often than there are slots, with a reader of each put between them.
func TestStaged(t *testing.T) {
	d := newGPU(t, compute.FP32)
	const n = 50
	s := d.memory.newStaged(4 * n)
	defer s.close()
	out := d.Alloc(n * 7)
	for i := range 7 {
		p := s.put(words(n, float32(100*i)))
		d.queue.check("copying", d.queue.stream.Copy(at(out[i*n:]), p, 4*n))
	}
	for i := range 7 {
		expect(t, "a put", d, out[i*n:(i+1)*n], numbers(n, float32(100*i)))
	}
}

func TestResult(t *testing.T) {
	d := newGPU(t, compute.FP32)
	r, sum := d.memory.newResult(), d.memory.malloc(8)
	defer d.memory.release(sum)
	defer r.close()
	x := d.Alloc(4) // two float64s
	for i := range 3 {
		high := math.Float32frombits(uint32(math.Float64bits(float64(i)) >> 32))
		d.Upload(x, []float32{0, high, 0, high})
		sumDoubles(&d.queue, sum, r, at(x), 2)
		d.Zero(x)
	}
	if got := r.read(); got != 4 || readDouble(d, sum) != 4 {
		t.Errorf("the host has %v, the device %v: want 4", got, readDouble(d, sum))
	}
}

// TestReplay replays with what the host's memory holds by then.
func TestReplay(t *testing.T) {
	d := newGPU(t, compute.FP32)
	const n = 300
	tensors, workspaces := d.memory.made()
	s := d.memory.newStaged(4 * n)
	x, y, z := d.Alloc(n), d.Alloc(n), d.Alloc(n)
	first, host := float32(1), numbers(n, 1000)
	record := func() error {
		// Two puts of one staged: each has its own numbers in the recording.
		d.queue.check("copying", d.queue.stream.Copy(at(x), s.put(func(h []byte) {
			words(n, first)(h)
		}), 4*n))
		d.queue.check("copying", d.queue.stream.Copy(at(y), s.put(func(h []byte) {
			words(n, -first)(h)
		}), 4*n))
		scale(d, x, 2)
		d.Upload(z, host)
		return nil
	}
	expectAll := func(what string, first, third float32) {
		t.Helper()
		doubled := numbers(n, first)
		for i := range doubled {
			doubled[i] *= 2
		}
		expect(t, what+", the first put", d, x, doubled)
		expect(t, what+", the second put", d, y, numbers(n, -first))
		expect(t, what+", what was uploaded", d, z, numbers(n, third))
	}
	r, err := d.Record(record)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "recorded, not done", d, x, make([]float32, n))
	for i := range 5 { // more often than there are slots, and the last counts
		first = float32(10 * (i + 1))
		copy(host, numbers(n, 3000+float32(i)))
		r.Replay()
	}
	first = 7
	clear(host)
	expectAll("replayed", 50, 3004)
	if err := record(); err != nil { // what was recorded can still be called
		t.Fatal(err)
	}
	copy(host, numbers(n, 0))
	r.Replay()
	expectAll("replayed after a call", 7, 0)
	for range 2 {
		r.Close()
		s.close()
	}
	for _, tensor := range [][]float32{x, y, z} {
		d.Free(tensor)
	}
	if a, b := d.memory.made(); a != tensors || b != workspaces {
		t.Errorf("%d tensors and %d workspaces left; %d and %d before", a, b, tensors, workspaces)
	}
	if text := panicOf(r.Replay); !strings.Contains(text, "has been closed") {
		t.Errorf("Replay after Close: %q", text)
	}
}

// TestCallsAllocate says that what a training step calls again and again makes no garbage.
func TestCallsAllocate(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(1000)
	host, ids := numbers(1000, 1), d.memory.newStaged(400)
	r, err := d.Record(func() error { scale(d, x, 2); d.Upload(x, host); return nil })
	if err != nil {
		t.Fatal(err)
	}
	count := float32(0)
	for name, f := range map[string]func(){
		"launch":   func() { count++; scale(d, x, count) },
		"upload":   func() { d.Upload(x, host) },
		"put":      func() { ids.put(func(host []byte) { host[0]++ }) },
		"download": func() { d.Download(host, x) },
		"replay":   r.Replay,
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestReplayScratch replays after the scratch has grown.
func TestReplayScratch(t *testing.T) {
	d := newGPU(t, compute.FP32)
	const n = 100
	x := d.Alloc(n)
	d.memory.scratch(4 * n)
	before, _ := d.Bytes()
	factor := float32(3)
	r, err := d.Record(func() error {
		temporary := floats(d.memory.scratch(4*n), n)
		d.Upload(temporary, numbers(n, factor))
		scale(d, temporary, 1)
		d.queue.check("copying", d.queue.stream.Copy(at(x), at(temporary), 4*n))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	d.memory.scratch(10 * scratchStep)
	for range 2 {
		d.Zero(x)
		r.Replay()
		expect(t, "replayed", d, x, numbers(n, 3))
	}
	r.Close()
	if now, _ := d.Bytes(); now != before+9*scratchStep {
		t.Errorf("%d bytes, %d before the scratch grew", now, before)
	}
}

// TestRecordFails says what comes of recordings that come to nothing: the device works as before.
func TestRecordFails(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(10)
	host := make([]float32, 10)
	d.Upload(x, numbers(10, 1))
	s := d.memory.newStaged(100)
	tensors, workspaces := d.memory.made()
	mine := errors.New("mine")
	if _, err := d.Record(func() error { scale(d, x, 2); return mine }); !errors.Is(err, mine) {
		t.Errorf("f's own error: %v", err)
	}
	if _, err := d.Record(func() error { // more shared memory than there is
		d.queue.launch("flat_scale", launch{grid: [3]int{1}, block: [3]int{32}, shared: 1 << 30},
			int64(1), x, float32(2))
		return nil
	}); err == nil || !strings.Contains(err.Error(), d.Name()+" cannot record: ") {
		t.Errorf("what cannot be launched: %v", err)
	}
	for want, f := range map[string]func(){
		"cuda: Alloc while recording":             func() { d.Alloc(1) },
		"cuda: freeing a tensor while recording":  func() { d.Free(x) },
		"cuda: Download while recording":          func() { d.Download(host, x) },
		"cuda: Record while recording":            func() { d.Record(func() error { return nil }) },
		"no memory for a workspace of 1099511627": func() { d.memory.malloc(1 << 40) },
		"f's own panic":                           func() { panic("f's own panic") },
	} {
		text := panicOf(func() {
			d.Record(func() error {
				s.put(func([]byte) {})
				f()
				return nil
			})
		})
		if !strings.Contains(text, want) {
			t.Errorf("panic %q, want %q", text, want)
		}
	}
	scale(d, x, 1)
	expect(t, "afterwards", d, x, numbers(10, 1))
	if a, b := d.memory.made(); a != tensors || b != workspaces {
		t.Errorf("%d tensors and %d workspaces left; %d and %d before", a, b, tensors, workspaces)
	}
}

// TestOutgrown wants a scratch to be there for the recordings that began with it, and no longer,
// whatever recordings there are of later ones.
func TestOutgrown(t *testing.T) {
	d := newGPU(t, compute.FP32)
	x := d.Alloc(10)
	record := func() compute.Recording {
		r, err := d.Record(func() error { scale(d, x, 2); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	d.memory.scratch(1)
	before, _ := d.Bytes()
	first, second := record(), record()
	d.memory.scratch(d.memory.roomBytes + 1)
	third := record()
	for i, r := range []compute.Recording{first, second, third} {
		outgrown := before + int64(d.memory.roomBytes)
		if i == 2 { // nobody has the first scratch any more
			outgrown -= scratchStep
		}
		if now, _ := d.Bytes(); now != outgrown {
			t.Errorf("%d bytes before recording %d is closed, want %d", now, i, outgrown)
		}
		r.Close()
	}
}
