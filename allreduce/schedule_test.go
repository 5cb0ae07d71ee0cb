package allreduce

import "testing"

// TestChunkNumbers: a segment of more than a few messages is cut into at least two chunks, none
// longer than a message may be.
func TestChunkNumbers(t *testing.T) {
	for _, test := range []struct {
		total, world, most int
		element            Element
		want               int
	}{
		{16 << 10, 2, MaxChunkBytes, Float32, 16 << 10},   // 64 KiB: one chunk per segment
		{256 << 10, 2, MaxChunkBytes, Float32, 64 << 10},  // 1 MiB: two of 256 KiB
		{4 << 20, 2, MaxChunkBytes, Float32, 256 << 10},   // 16 MiB: the longest
		{4 << 20, 2, MaxChunkBytes, BFloat16, 512 << 10},  // twice as many numbers
		{256 << 10, 4, MaxChunkBytes, BFloat16, 32 << 10}, // the shortest
		{1 << 20, 2, 64, Float32, 16},                     // limited by ChunkBytes
		{1, 8, MaxChunkBytes, Float16, 32 << 10},
	} {
		got := ChunkNumbers(test.total, test.world, test.most, test.element)
		if got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// TestForwardedBytes: rounding a rounded number again gives the same bytes.
func TestForwardedBytes(t *testing.T) {
	for _, e := range []Element{BFloat16, Float16} {
		var float [1]float32
		var first, again [2]byte
		for short := range 1 << 16 {
			decode(float[:], []byte{byte(short), byte(short >> 8)}, e)
			encode(first[:], float[:], e)
			decode(float[:], first[:], e)
			encode(again[:], float[:], e)
			if first != again {
				t.Fatalf("%v: % x is % x when it is rounded again", e, first, again)
			}
		}
	}
}
