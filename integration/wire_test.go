package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"rondo/bench/busbw"
	"rondo/internal/transcript"
)

// TestBytesOnTheWire: ranks on hosts of their own all-reduce, and their interfaces have counted the
// bytes of a ring: 2(N-1)/N of the buffer, and headers.
func TestBytesOnTheWire(t *testing.T) {
	for _, world := range []int{2, 3, 4} {
		t.Run(fmt.Sprintf("%d ranks", world), func(t *testing.T) { bytesOnTheWire(t, world) })
	}
}

func bytesOnTheWire(t *testing.T, world int) {
	const bytes = 12 << 20 // of a buffer: a number that 2, 3 and 4 divide
	n := newNetwork(t)
	c := busbw.Config{World: world, Sizes: []int{bytes}, Link: "tcp", Wire: "fp32", Alone: true,
		Window: time.Millisecond} // so that a turn is as few repetitions as there may be
	var hosts []*host
	for rank := range world {
		h := n.host(fmt.Sprintf("rank%d", rank))
		hosts = append(hosts, h)
		c.Addresses = append(c.Addresses, h.Address)
	}
	c.Rank = func(rank int) []string {
		return hosts[rank].argv([]string{filepath.Join(binaries, "rondo"), "bench",
			"allreduce-rank"})
	}
	log := &transcript.Text{}
	c.Log = log
	var row busbw.Row
	err := busbw.Measure(t.Context(), c, func(r busbw.Row) error {
		row = r
		return nil
	})
	if err != nil {
		t.Fatalf("%v; the ranks wrote:\n%s", err, log)
	}
	// A frame carries 1448 bytes of TCP in 1514; acknowledgements, gRPC's frames and the barriers
	// come to less than as much again.
	const headers = 2 * (1514.0/1448 - 1)
	payload := 2 * float64(world-1) / float64(world) * bytes * float64(row.Summed)
	for rank, h := range hosts {
		sent, err := h.Sent()
		if err != nil {
			t.Fatal(err)
		}
		if over := float64(sent)/payload - 1; over < 0 || over > headers {
			t.Errorf("rank %d has sent %d bytes, %.2f%% over 2(N-1)/N of %d sums of %d; want at "+
				"most %.2f%%", rank, sent, 100*over, row.Summed, bytes, 100*headers)
		}
	}
}
