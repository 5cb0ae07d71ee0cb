package sharded

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"rondo/train/agree"
)

// FuzzGathered: whatever floats another rank sends in a gathering, its offer is sound, or the error
// names the rank.
func FuzzGathered(f *testing.F) {
	const n = 1000
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0x80, 0xff, 0, 0, 0xc0, 0x7f})
	f.Add([]byte{0, 0xff, 0x7f, 0x47}) // 65535
	f.Fuzz(func(t *testing.T, says []byte) {
		s := rank(t, 2, n, 0, 2)
		s.ranks.AllGather = func(_ context.Context, buf []float32, ends []int) error {
			for i := range buf[ends[0]:ends[1]] {
				var four [4]byte
				if 4*i < len(says) {
					copy(four[:], says[4*i:])
				}
				buf[ends[0]+i] = math.Float32frombits(binary.LittleEndian.Uint32(four[:]))
			}
			return nil
		}
		_, err := s.Meet(t.Context())
		var corrupt *agree.PeerCorruptError
		if err != nil && (!errors.As(err, &corrupt) || corrupt.Ranks[0] != 1) {
			t.Errorf("%v", err)
		}
		for _, p := range s.transfers {
			if err == nil && (p.first < 0 || p.end < p.first || p.end > n) {
				t.Errorf("%v", s.transfers)
			}
		}
	})
}
