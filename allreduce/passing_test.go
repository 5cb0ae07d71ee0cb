package allreduce

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// roundedSums is the reference for rounding: it adds a chunk to x and rounds in separate steps. x
// and residual, which may be nil, are updated; out is sent on.
func roundedSums(x []float32, src []byte, residual []float32, e Element) (out []byte) {
	out = make([]byte, e.Bytes()*len(x))
	addDecodedLoop(x, src, e)
	if residual != nil {
		encodeFeedbackLoop(out, x, residual, e)
	} else {
		encodeLoop(out, x, e)
	}
	decodeLoop(x, out, e)
	return out
}

// TestAddAndRound: at any length and address the sum equals that of separate steps, and no memory
// past the end is touched. A partial sum takes the memory of its floats.
func TestAddAndRound(t *testing.T) {
	const margin = 40
	rng := rand.New(rand.NewPCG(8, 8))
	random := func(n int) []float32 {
		floats := make([]float32, n+margin)
		for i := range floats {
			floats[i] = rng.Float32() - 0.5
		}
		return floats
	}
	lengths := []int{addBlock - 1, addBlock, 2*addBlock + 17, settleBlock + 1, 3 * settleBlock}
	for n := range 70 {
		lengths = append(lengths, n)
	}
	for _, e := range shortElements() {
		for _, n := range lengths {
			for _, feedback := range []bool{false, true} {
				x, shift := random(n), rng.IntN(8)
				src := make([]byte, shift+2*n)[shift:]
				encode(src, random(n)[:n], e)
				var residual, kept, lost []float32
				if feedback {
					residual = random(n)[:n]
					kept, lost = slices.Clone(residual), slices.Clone(residual)
				}
				want := slices.Clone(x)
				out := roundedSums(want[:n], src, residual, e)

				whole, got := slices.Clone(x), make([]byte, shift+2*n+margin)[shift:]
				addSettle(got[:2*n], whole[:n], src, kept, e)
				checkBytes(t, "addSettle", e, n, shift, got, append(out, make([]byte, margin)...))
				checkBytes(t, "its sum", e, n, shift, Bytes(whole), Bytes(want))
				checkBytes(t, "its residual", e, n, shift, Bytes(kept), Bytes(residual))

				partial := slices.Clone(x)
				addEncode(short(partial[:n], e), partial[:n], src, lost, e)
				checkBytes(t, "addEncode", e, n, shift, short(partial[:n], e), out)
				checkBytes(t, "its residual", e, n, shift, Bytes(lost), Bytes(residual))
				checkBytes(t, "addEncode", e, n, shift, Bytes(partial[n:]), Bytes(x[n:]))
			}
		}
	}
}

// TestReductionInPieces: the result does not depend on how a chunk is cut into pieces, or on
// whether it is sent on.
func TestReductionInPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	const n = 3*settleBlock + 11
	for _, e := range shortElements() {
		own, came := make([]float32, n), make([]float32, n)
		for i := range own {
			own[i], came[i] = rng.Float32(), rng.Float32()
		}
		src := make([]byte, 2*n)
		encode(src, came, e)
		sum := slices.Clone(own)
		out := roundedSums(sum, src, nil, e)
		for _, goesOn := range []bool{false, true} {
			r := reduction{element: e, phase: ReduceScatter, rounds: true, complete: true}
			r.dst = slices.Clone(own)
			if goesOn {
				r.out = make([]byte, 2*n)
			}
			r.of(cut(rng, src))
			if !slices.Equal(r.dst, sum) || goesOn && !slices.Equal(r.out, out) {
				t.Errorf("%v, goes on %v: a sum that is complete is wrong", e, goesOn)
			}
			r.rounds, r.complete, r.phase = false, false, AllGather
			r.of(cut(rng, out))
			if !slices.Equal(r.dst, sum) || goesOn && !slices.Equal(r.out, out) {
				t.Errorf("%v, goes on %v: a sum that comes complete is wrong", e, goesOn)
			}
		}
		r := reduction{element: e, phase: ReduceScatter, rounds: true, dst: slices.Clone(own)}
		r.out = short(r.dst, e)
		r.of(cut(rng, src))
		if !slices.Equal(r.out, out) {
			t.Errorf("%v: a partial sum is wrong", e)
		}
	}
}

// TestPassingChunks: a chunk's memory is not reused while a link may read it. A chunk for which
// there was no room gets no other's memory.
func TestPassingChunks(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 10))
	var c passingChunks
	content := func(n int) string { return fmt.Sprintf("%8d", n) }
	var ready []passed // those with room have memory
	var read [][]byte  // by the link
	var says []string
	room := map[passed]bool{}
	for n, full := 1, 0; n < 10000 || full == 0; {
		if rng.IntN(2) == 0 || len(ready) == 0 {
			chunk := passed{uint64(n / 100), int64(n)}
			if b := c.put(chunk, 8, 8); b != nil {
				copy(b, content(n))
				room[chunk] = true
			} else {
				full++
			}
			ready, n = append(ready, chunk), n+1
		} else {
			chunk := ready[0]
			ready = ready[1:]
			b := c.take(chunk)
			if (b != nil) != room[chunk] {
				t.Fatalf("chunk %v: has memory %v, want %v", chunk, b != nil, room[chunk])
			}
			delete(room, chunk)
			read, says = append(read, b), append(says, content(int(chunk.n)))
			c.count()
		}
		for i := max(0, len(read)-MaxFlight); i < len(read); i++ {
			if read[i] != nil && string(read[i]) != says[i] {
				t.Fatalf("what a link reads of %q has become %q", says[i], read[i])
			}
		}
	}
}
