package allreduce

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestCombine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, e := range []Element{Float32, BFloat16, Float16} {
		for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 1000} {
			for range 20 {
				checkCombine(t, rng, e, n)
			}
		}
	}
}

func checkCombine(t *testing.T, rng *rand.Rand, e Element, n int) {
	t.Helper()
	own, payload := make([]float32, n), make([]byte, e.Bytes()*n)
	for i := range own {
		own[i] = rng.Float32()
	}
	for i := range payload {
		payload[i] = byte(rng.Uint32())
	}
	src := make([]float32, n)
	decode(src, payload, e)
	pieces := cut(rng, payload)
	sum, kept := slices.Clone(own), slices.Clone(own)
	combine(sum, pieces, ReduceScatter, e)
	combine(kept, pieces, AllGather, e)
	for i := range n {
		want := own[i] + src[i]
		if sum[i] != want && !(math.IsNaN(float64(sum[i])) && math.IsNaN(float64(want))) {
			t.Fatalf("%d of %v: [%d] = %v, want %v + %v", n, e, i, sum[i], own[i], src[i])
		}
		if math.Float32bits(kept[i]) != math.Float32bits(src[i]) {
			t.Fatalf("%d of %v: [%d] = %v, want the bits of %v", n, e, i, kept[i], src[i])
		}
	}
}

// cut returns b in pieces of random length, 0 included, each at an odd address.
func cut(rng *rand.Rand, b []byte) [][]byte {
	var pieces [][]byte
	for len(b) > 0 {
		n := min(rng.IntN(40), len(b))
		shift := rng.IntN(4)
		piece := append(make([]byte, shift, shift+n), b[:n]...)
		pieces, b = append(pieces, piece[shift:]), b[n:]
	}
	return pieces
}

func TestAddAtEveryLengthAndAddress(t *testing.T) {
	const longest = 100
	rng := rand.New(rand.NewPCG(2, 2))
	for n := range longest + 1 {
		for shift := range 4 {
			dst, src := make([]float32, longest+8), make([]float32, n)
			for i := range dst {
				dst[i] = rng.Float32()
			}
			for i := range src {
				src[i] = rng.Float32()
			}
			bytes := append(make([]byte, shift), Bytes(src)...)[shift:]
			want, looped := slices.Clone(dst), slices.Clone(dst)
			for i := range src {
				want[i] += src[i]
			}
			add(dst[:n], bytes)
			addLoop(looped[:n], bytes)
			if !slices.Equal(dst, want) || !slices.Equal(looped, want) {
				t.Fatalf("%d floats at address %d mod 4: wrong, or past the end", n, shift)
			}
		}
	}
}

func TestBytes(t *testing.T) {
	floats := []float32{1, -2.5, float32(math.Inf(1)), math.Float32frombits(0x7fa00001)}
	want := []byte{
		0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 0, 0, 0x80, 0x7f, 1, 0, 0xa0, 0x7f,
	}
	if got := Bytes(floats); !slices.Equal(got, want) {
		t.Errorf("Bytes: % x, want % x", got, want)
	}
}

// TestSchedule: a rank receives what its predecessor sends in that step, and sends no byte more
// than the package comment states.
func TestSchedule(t *testing.T) {
	for world := 2; world <= 8; world++ {
		for _, total := range []int{0, 1, world - 1, world, 70, 1001} {
			ranks := make([]schedule, world)
			for rank := range ranks {
				ranks[rank] = schedule{
					header: Header{Total: total}, rank: rank, world: world, chunk: 16, carry: 16,
					last: 2 * (world - 1),
				}
			}
			sent := 0
			for rank := range ranks {
				s := &ranks[rank]
				for k := range s.last {
					before := &ranks[mod(rank-1, world)]
					if s.received(k) != before.sent(k) {
						t.Fatalf("world %d step %d: rank %d receives segment %d, is sent %d",
							world, k, rank, s.received(k), before.sent(k))
					}
					if k+1 < s.last && s.sent(k+1) != s.received(k) {
						t.Fatalf("world %d step %d: rank %d sends on what it did not receive",
							world, k+1, rank)
					}
					sent += sentFloats(t, s, k)
				}
				if s.received(world-2) != rank {
					t.Fatalf("world %d: rank %d has the sum of segment %d",
						world, rank, s.received(world-2))
				}
			}
			if want := 2 * (world - 1) * total; sent != want {
				t.Errorf("world %d, %d floats: %d sent in all, want %d", world, total, sent, want)
			}
		}
	}
}

// sentFloats counts the floats that s sends in step k, and checks that its chunks tile the segment.
func sentFloats(t *testing.T, s *schedule, k int) int {
	t.Helper()
	lo, hi := s.segment(s.sent(k))
	at := lo
	for c := range s.chunks(s.sent(k)) {
		h := s.at(k, s.sent(k), c)
		if h.Offset != at || h.Length < 1 || h.Length > s.chunk {
			t.Fatalf("chunk %d of [%d:%d] is {%v}", c, lo, hi, h)
		}
		at += h.Length
	}
	if at != hi {
		t.Fatalf("the chunks of [%d:%d] end at %d", lo, hi, at)
	}
	return hi - lo
}

func BenchmarkCombine(b *testing.B) {
	const floats = MaxChunkBytes / 4
	const piece = 16<<10 - 5 // an HTTP/2 frame less a message's prefix
	dst, src := make([]float32, floats), make([]byte, MaxChunkBytes)
	pieces := slices.Collect(slices.Chunk(src, piece))
	for _, phase := range []Phase{ReduceScatter, AllGather} {
		b.Run(fmt.Sprint(phase), func(b *testing.B) {
			b.SetBytes(MaxChunkBytes)
			b.ReportAllocs()
			for b.Loop() {
				combine(dst, pieces, phase, Float32)
			}
		})
	}
}
