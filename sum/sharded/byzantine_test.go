package sharded

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"rondo/train/agree"
)

// TestStrangeOffers: ranges that no rank can have are an error that names the rank, and no plan.
func TestStrangeOffers(t *testing.T) {
	const n = 1000
	rounds := 20_000
	if !testing.Short() {
		rounds = 1_000_000
	}
	s := rank(t, 2, n, 0, 2)
	bound := []int64{-1 << 63, -7, -1, 0, 1, 17, 500, n - 1, n, n + 1, 1 << 31, 1 << 50, 1<<63 - 1}
	random := rand.New(rand.NewPCG(1, 2))
	var said offer
	r := s.ranks
	r.AllGather = func(_ context.Context, buf []float32, ends []int) error {
		bytes, err := binary.Append(nil, binary.LittleEndian, said)
		if err != nil {
			return err
		}
		for i := range buf[ends[0]:ends[1]] {
			buf[ends[0]+i] = float32(binary.LittleEndian.Uint16(bytes[2*i:]))
		}
		return nil
	}
	s.ranks = r
	refused, planned := 0, 0
	for range rounds {
		sound := true
		for i := range said.Ranges {
			first, end := bound[random.IntN(len(bound))], bound[random.IntN(len(bound))]
			said.Ranges[i], said.Digests[i] = [2]int64{first, end}, random.Uint64()
			sound = sound && 0 <= first && first <= end && end <= n
		}
		_, err := s.Meet(t.Context())
		var others *agree.PeerCorruptError
		switch {
		case err != nil && (!errors.As(err, &others) || others.Ranks[0] != 1):
			t.Fatalf("%v: %v", said, err)
		case (err == nil) != sound:
			t.Fatalf("%v: %v", said, err)
		case err != nil:
			refused++
			continue
		}
		planned++
		for _, p := range s.transfers {
			if p.first < 0 || p.end < p.first || p.end > n {
				t.Fatalf("%v: %v", said, s.transfers)
			}
		}
	}
	t.Logf("%d refused, %d planned", refused, planned)
	if refused == 0 || planned == 0 {
		t.Error("the offers are of one kind")
	}
}
