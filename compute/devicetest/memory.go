package devicetest

import (
	"errors"
	"math"
	"slices"
	"unsafe"

	"rondo/compute"
)

// lengths are around the widths of vectors, warps and blocks, and past one block of threads.
func lengths() []int {
	return []int{1, 3, 4, 15, 16, 17, 31, 33, 67, 1000, 1025, 1<<15 + 5}
}

func testMemory(r *rig) {
	d := r.dev
	for _, n := range append(lengths(), 1<<20) {
		x := d.Alloc(n)
		if len(x) != n || uintptr(unsafe.Pointer(unsafe.SliceData(x)))%64 != 0 {
			r.Errorf("Alloc(%d): %d elements at %p", n, len(x), unsafe.SliceData(x))
		}
		if slices.ContainsFunc(get(d, x), func(v float32) bool { return v != 0 }) {
			r.Errorf("Alloc(%d) is not zeros", n)
		}
		host := narrow(normal(r.random, n, 1))
		want := slices.Clone(host)
		d.Upload(x, host)
		clear(host) // which is the caller's again
		SameBits(r, "what was uploaded", get(d, x), want)
		first := r.random.IntN(n)
		d.Upload(x[first:first+1], []float32{7})
		want[first] = 7
		d.Zero(x[first/2 : first])
		clear(want[first/2 : first])
		SameBits(r, "a part was uploaded, and another zeroed", get(d, x), want)
		d.Free(x) // so that a later Alloc may reuse memory that is not zero
	}
	d.Free(d.Alloc(0))
	d.Upload(d.Alloc(0), nil)
	d.Free(nil)
}

// testLack asks for more memory than there is: that panics with a MemoryError, which Catch makes an
// error of, and the device can be used on.
func testLack(r *rig) {
	if r.Endless {
		r.Skip("a lack of memory ends this device's process")
	}
	const absurd = 1 << 46
	ask := func() (err error) {
		defer compute.Catch(&err)
		r.dev.Alloc(absurd)
		return nil
	}
	x := put(r.dev, []float64{1, 2})
	for range 3 {
		err := ask()
		lack, ok := errors.AsType[*compute.MemoryError](err)
		if !ok || lack.What == "" || lack.Bytes != 0 && lack.Bytes < absurd ||
			lack.Free > lack.Total {
			r.Fatalf("Alloc of %d floats: %#v (%v)", absurd, lack, err)
		}
	}
	y := put(r.dev, []float64{3, 4})
	r.dev.Add(x, y)
	SameBits(r, "a sum after a lack of memory", get(r.dev, x), []float32{4, 6})
}

// orderedSquares is the sum of squares in the order of the contract: an element goes to the sum of
// its part, block and lane.
func orderedSquares(x []float32) float64 {
	type place struct{ part, block, lane int }
	sums := map[place]float64{}
	for i, v := range x {
		sums[place{i / compute.SquaresPart, i / compute.SquaresBlock,
			i % compute.SquaresLanes}] += float64(v) * float64(v)
	}
	total := 0.0
	for part := 0; part*compute.SquaresPart < len(x); part++ {
		blocks, each := 0.0, compute.SquaresPart/compute.SquaresBlock
		for block := part * each; block < (part+1)*each; block++ {
			lanes := 0.0
			for lane := range compute.SquaresLanes {
				lanes += sums[place{part, block, lane}]
			}
			blocks += lanes
		}
		total += blocks
	}
	return total
}

// testSumSquares wants the bits of the contract's order, finite when all elements are, and
// the same bits twice.
func testSumSquares(r *rig) {
	d := r.dev
	for _, n := range append(lengths(), 1<<17+21,
		compute.SquaresPart+compute.SquaresBlock+1) {
		host := narrow(normal(r.random, n, 1))
		x, want := upload(d, host), orderedSquares(host)
		got := d.SumSquares(x)
		if got != want || got != d.SumSquares(x) {
			r.Errorf("of %d: %v, then %v, want %v", n, got, d.SumSquares(x), want)
		}
		at := r.random.IntN(n)
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			d.Upload(x[at:at+1], []float32{float32(bad)})
			if got := d.SumSquares(x); got-got == 0 {
				r.Errorf("of %d with %v: %v is finite", n, bad, got)
			}
		}
		for i := range host {
			host[i] = math.MaxFloat32
		}
		d.Upload(x, host)
		if got := d.SumSquares(x); got-got != 0 {
			r.Errorf("of %d times the largest float: %v is not finite", n, got)
		}
		d.Free(x)
	}
	if got := d.SumSquares(nil); got != 0 {
		r.Errorf("of nothing: %v", got)
	}
}
