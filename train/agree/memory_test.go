package agree

import (
	"fmt"
	"math"
	"testing"

	"rondo/compute/cpu"
)

// Any two states have different digests, in any kind of memory.
func TestDigest(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	tensors := [][]float32{make([]float32, 3), make([]float32, 20_000), make([]float32, 16)}
	for _, x := range tensors {
		for i := range x {
			x[i] = float32(i) / 3
		}
	}
	copied := Memory{Device: dev, Piece: make([]float32, 700)}
	seen := map[uint64]string{}
	note := func(what string) {
		d := Memory{}.Digest(tensors)
		if got := copied.Digest(tensors); got != d {
			t.Errorf("%s: digest %x in host memory, %x through copies", what, d, got)
		}
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same digest", what, other)
		}
		seen[d] = what
	}
	note("the beginning")
	for i, x := range tensors {
		for _, at := range []int{0, 1, len(x) - 1} {
			was := x[at]
			for _, bit := range []uint32{0, 12, 31} {
				x[at] = math.Float32frombits(math.Float32bits(was) ^ 1<<bit)
				note(fmt.Sprintf("bit %d of element %d of tensor %d", bit, at, i))
			}
			x[at] = was
		}
	}
}
