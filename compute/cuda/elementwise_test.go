//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// flatLengths are around the widths of vectors and blocks.
func flatLengths() []int { return []int{1, 3, 4, 31, 33, 1000, 3001} }

func normals(n int, random *rand.Rand) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	return x
}

// place is a tensor on a device that begins so many elements behind an aligned one.
func place(d compute.Device, x []float32, offset int) []float32 {
	y := d.Alloc(offset + len(x))[offset:]
	d.Upload(y, x)
	return y
}

func read(d compute.Device, x []float32) []float32 {
	y := make([]float32, len(x))
	d.Download(y, x)
	return y
}

// wantSame wants the same bits; one NaN is as good as another.
func wantSame(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if got[i] != w && (got[i] == got[i] || w == w) {
			t.Fatalf("%s of %d: [%d] is %v, want %v", what, len(want), i, got[i], w)
		}
	}
}

// onBoth does the same on the CPU and on the GPU, and wants the same bits of every tensor that f
// returns. Tensors begin offset elements behind an aligned place.
func onBoth(t *testing.T, what string, host *cpu.Device, d *Device,
	f func(d compute.Device, place func(x []float32) []float32) [][]float32) {
	t.Helper()
	for offset := range 2 {
		results := func(d compute.Device) (all [][]float32) {
			from := func(x []float32) []float32 { return place(d, x, offset) }
			for _, x := range f(d, from) {
				all = append(all, read(d, x))
			}
			return all
		}
		got, want := results(d), results(host)
		for i := range want {
			wantSame(t, fmt.Sprintf("%s, tensor %d, offset %d,", what, i, offset), got[i], want[i])
		}
	}
}

func TestElementwise(t *testing.T) {
	d, host := newGPU(t, compute.FP32), newCPU(t, compute.FP32)
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range flatLengths() {
		x, y := normals(n, random), normals(n, random)
		x[n/2] = float32(math.NaN())
		onBoth(t, "Add, Scale", host, d, func(d compute.Device,
			place func([]float32) []float32) [][]float32 {
			added, scaled := place(y), place(x)
			d.Add(added, scaled)
			d.Scale(scaled, 0.3)
			return [][]float32{added, scaled}
		})
	}
}

func TestRows(t *testing.T) {
	d, host := newGPU(t, compute.FP32), newCPU(t, compute.FP32)
	random := rand.New(rand.NewPCG(3, 4))
	const vocabulary = 7
	for _, width := range []int{1, 19, 64, 260} {
		for _, n := range []int{1, 9, 100} {
			ids := make([]int32, n)
			for i := range ids {
				ids[i] = int32(random.IntN(vocabulary))
			}
			table, bias := normals(vocabulary*width, random), normals(width, random)
			dy := normals(n*width, random)
			onBoth(t, fmt.Sprintf("rows of %d", width), host, d, func(d compute.Device,
				place func([]float32) []float32) [][]float32 {
				from, y, b, gradient := place(table), place(make([]float32, n*width)),
					place(bias), place(table)
				d.Embed(y, from, ids)
				d.AddBias(y, b)
				d.EmbedBackward(gradient, place(dy), ids)
				return [][]float32{y, gradient}
			})
		}
	}
}

// TestPool wants the CPU's bits of means, which are rounded, and of the largest values.
func TestPool(t *testing.T) {
	d, host := newGPU(t, compute.FP32), newCPU(t, compute.FP32)
	random := rand.New(rand.NewPCG(15, 16))
	const steps = 9
	lengths := []int32{9, 0, 1, 7, 3}
	for _, width := range []int{1, 19, 130} {
		x, dy := normals(steps*len(lengths)*width, random), normals(len(lengths)*width, random)
		for by := compute.MeanPool; by <= compute.MaxPool; by++ {
			onBoth(t, fmt.Sprintf("pooling %d of %d", by, width), host, d, func(d compute.Device,
				place func([]float32) []float32) [][]float32 {
				from, y, dx := place(x), place(dy), place(x)
				d.Pool(by, y, from, steps, lengths)
				d.PoolBackward(by, dx, place(dy), from, y, steps, lengths)
				return [][]float32{y, dx}
			})
		}
	}
}

// TestGroup holds a grouping against its definition.
func TestGroup(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	next := make([]int32, 9)
	for _, n := range []int{1, 2, 50} {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(random.IntN(len(next)))
		}
		to := make([]int32, groupedLen(n))
		group(to, ids, next)
		distinct, starts, order := to[1:1+n], to[1+n:2+2*n], to[2+2*n:]
		var seen []int32
		for g, id := range distinct[:to[0]] {
			rows := order[starts[g]:starts[g+1]]
			if !slices.IsSorted(rows) || len(rows) == 0 {
				t.Errorf("rows of id %d: %v", id, rows)
			}
			for _, r := range rows {
				if ids[r] != id {
					t.Errorf("row %d, of id %d, is in the group of %d", r, ids[r], id)
				}
			}
			seen = append(seen, rows...)
		}
		slices.Sort(seen)
		for i, r := range seen {
			if int(r) != i {
				t.Fatalf("rows of all groups are %v", seen)
			}
		}
		if len(seen) != n || slices.Max(next) != 0 {
			t.Errorf("%d of %d rows have a group; the counts are left as %v", len(seen), n, next)
		}
	}
}

func TestDropout(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(7, 8))
	const steps = 3
	for _, p := range []float32{0, 0.3, 1} {
		for _, width := range []int{1, 5, 64, 129} {
			keys := []uint64{random.Uint64(), random.Uint64()}
			x := normals(steps*len(keys)*width, random)
			want := make([]float32, len(x))
			for i, v := range x {
				row := i / width
				if compute.DropoutKeep(keys[row%2], row/2*width+i%width, p) {
					want[i] = v * (1 / (1 - p))
				}
			}
			for offset := range 2 {
				from := place(d, x, offset)
				y := place(d, make([]float32, len(x)), offset)
				d.Dropout(y, from, steps, p, keys)
				wantSame(t, fmt.Sprintf("Dropout of %v", p), read(d, y), want)
				d.Dropout(from, from, steps, p, keys)
				wantSame(t, fmt.Sprintf("Dropout of %v in place", p), read(d, from), want)
			}
		}
	}
}

// TestSumSquares wants the CPU's bits.
func TestSumSquares(t *testing.T) {
	d, host := newGPU(t, compute.FP32), newCPU(t, compute.FP32)
	random := rand.New(rand.NewPCG(9, 10))
	for _, n := range append(flatLengths(), compute.SquaresBlock+1, 3*compute.SquaresBlock,
		compute.SquaresPart+compute.SquaresBlock+1) {
		x := normals(n, random)
		want := host.SumSquares(x)
		aligned, other := place(d, x, 0), place(d, x, 1)
		got := d.SumSquares(aligned)
		if got != want {
			t.Errorf("of %d: %v, want %v", n, got, want)
		}
		if again, elsewhere := d.SumSquares(aligned), d.SumSquares(other); again != got ||
			elsewhere != got {
			t.Errorf("of %d: %v, then %v, then %v at another address", n, got, again, elsewhere)
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			spoilt := slices.Clone(x)
			spoilt[random.IntN(n)] = float32(bad)
			if got := d.SumSquares(place(d, spoilt, 0)); got-got == 0 {
				t.Errorf("of %d with %v: %v is finite", n, bad, got)
			}
		}
		for i := range x {
			x[i] = math.MaxFloat32
		}
		if got := d.SumSquares(place(d, x, 0)); got-got != 0 {
			t.Errorf("of %d times the largest float: %v is not finite", n, got)
		}
	}
	if got := d.SumSquares(nil); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestUpdate wants the CPU's bits of every optimizer over three updates.
func TestUpdate(t *testing.T) {
	d, host := newGPU(t, compute.FP32), newCPU(t, compute.FP32)
	random := rand.New(rand.NewPCG(11, 12))
	for o := compute.SGD; o <= compute.Adagrad; o++ {
		for _, n := range []int{1, 33, 1000} {
			p, g := normals(n, random), normals(n, random)
			onBoth(t, updateKernel(o), host, d, func(d compute.Device,
				place func([]float32) []float32) [][]float32 {
				params, grads, all := place(p), place(g), [][]float32{}
				slots := [2][]float32{}
				for i := range o.Slots() {
					slots[i] = place(make([]float32, n))
				}
				for step := range 3 {
					d.Update(compute.Update{Optimizer: o, Step: int64(step + 1), LR: 0.1,
						Momentum: 0.9, Beta1: 0.9, Beta2: 0.999, Rho: 0.99, Epsilon: 1e-8,
						WeightDecay: 0.01}, params, grads, slots[0], slots[1])
				}
				return append(all, params, slots[0], slots[1])
			})
		}
	}
}

// TestColumnSums has one slab of rows and several, whose sums are summed: more of them than a slab
// has rows, too.
func TestColumnSums(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(13, 14))
	for _, c := range []struct{ rows, columns, slab int }{{1, 1, columnRows}, {7, 33, columnRows},
		{columnRows + 3, 40, columnRows}, {3 * columnRows, 5, columnRows}, {9, 40, 2}, {11, 33, 1},
		{columnRows, 70, 1}} {
		x, before := normals(c.rows*c.columns, random), normals(c.columns, random)
		from, out := place(d, x, 0), place(d, before, 0)
		same := c.columns / 2
		also := place(d, before, 0)
		for _, add := range []bool{true, false} {
			want, size := make([]float64, c.columns), make([]float64, c.columns)
			for i, v := range x {
				want[i%c.columns] += float64(v)
				size[i%c.columns] += math.Abs(float64(v))
			}
			d.Upload(out, before)
			slabSums(&d.memory, summed{at(out), at(also), same, add}, at(from), c.rows, c.columns,
				c.slab)
			sums := read(d, out)
			for j, got := range sums {
				if add {
					want[j] += float64(before[j])
				}
				if e := math.Abs(float64(got) - want[j]); !(e <= 1e-6*(1+size[j])) {
					t.Errorf("%+v add=%t: column %d is %v, want %v", c, add, j, got, want[j])
				}
			}
			wantSame(t, "sums that are wanted twice", read(d, also),
				slices.Concat(sums[:same], before[same:]))
		}
	}
}

// TestSlabRows wants slabs of the least height, unless they would be too many.
func TestSlabRows(t *testing.T) {
	for _, c := range []struct{ rows, want int }{{1, 128}, {1120, 128}, {128 * 256, 128},
		{128*256 + 1, 129}, {1 << 21, 1 << 13}} {
		if got := slabRows(c.rows, 128, 256); got != c.want {
			t.Errorf("%d rows: slabs of %d, want %d", c.rows, got, c.want)
		}
	}
}

// TestEmbedBackwardKeeps wants no memory of the host's for every call, however many ids there are,
// and the right sums of a table that has more of them than the one before.
func TestEmbedBackwardKeeps(t *testing.T) {
	d := newGPU(t, compute.FP32)
	const small, large, calls = 4, 1 << 18, 8
	few, many := d.Alloc(small), d.Alloc(large)
	dy := place(d, []float32{1, 2, 4}, 0)
	d.EmbedBackward(few, dy, []int32{3, 0, 3})
	wantSame(t, "few ids", read(d, few), []float32{2, 0, 0, 5})
	ids := []int32{large - 1, 5, large - 1}
	d.EmbedBackward(many, dy, ids)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		d.EmbedBackward(many, dy, ids)
	}
	d.EmbedBackward(few, dy, []int32{3, 0, 3})
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > large {
		t.Errorf("%d calls take %d bytes of the host's memory", calls, grown)
	}
	want := make([]float32, large)
	want[5], want[large-1] = 2*(calls+1), 5*(calls+1)
	wantSame(t, "many ids", read(d, many), want)
	wantSame(t, "few ids, again,", read(d, few), []float32{4, 0, 0, 10})
}

// TestStagedReplay records what takes host memory, and wants a Replay to use what is in it then.
func TestStagedReplay(t *testing.T) {
	d, random := newGPU(t, compute.FP32), rand.New(rand.NewPCG(15, 16))
	const width, steps = 8, 2
	ids, keys := []int32{4, 0, 4, 2}, []uint64{1, 2}
	table, gradient := normals(5*width, random), normals(5*width, random)
	from, to := place(d, table, 0), place(d, gradient, 0)
	y := place(d, make([]float32, len(ids)*width), 0)
	work := func() error {
		d.Embed(y, from, ids)
		d.Dropout(y, y, steps, 0.5, keys)
		d.EmbedBackward(to, y, ids)
		return nil
	}
	recording, err := d.Record(work)
	if err != nil {
		t.Fatal(err)
	}
	defer recording.Close()
	for _, now := range []struct {
		ids  []int32
		keys []uint64
	}{{[]int32{1, 1, 1, 1}, []uint64{3, 4}}, {[]int32{3, 0, 1, 4}, []uint64{5, 6}}} {
		copy(ids, now.ids)
		copy(keys, now.keys)
		d.Upload(to, gradient)
		if err := work(); err != nil {
			t.Fatal(err)
		}
		wantY, wantTo := read(d, y), read(d, to)
		d.Upload(to, gradient)
		d.Zero(y)
		recording.Replay()
		wantSame(t, "Embed and Dropout, replayed,", read(d, y), wantY)
		wantSame(t, "EmbedBackward, replayed,", read(d, to), wantTo)
	}
}

// TestStageLarge stages more than a slot of pinned memory has room for.
func TestStageLarge(t *testing.T) {
	d := newGPU(t, compute.FP32)
	n := ferryBytes/4 + 3
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i % 3)
	}
	staged := d.ferry.stage(4*n, func(host []byte) { copy(int32s(host), ids) })
	y, table := d.Alloc(5), place(d, []float32{10, 11, 12}, 0)
	d.queue.launch("flat_embed", d.queue.overRows(5), int64(5), int64(1), y, table, behind(staged,
		n-5))
	want := make([]float32, 5)
	for i, id := range ids[n-5:] {
		want[i] = 10 + float32(id)
	}
	wantSame(t, "the end of what was staged", read(d, y), want)
}
