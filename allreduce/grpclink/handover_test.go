//go:build linux

package grpclink

import (
	"net"
	"strings"
	"testing"

	"rondo/allreduce/shm"
)

// TestTakeTriesAgain: an offer that fails is tried handovers times, and the first error is
// returned.
func TestTakeTriesAgain(t *testing.T) {
	offer, err := shm.NewOffer()
	if err != nil {
		t.Fatal(err)
	}
	ticket := offer.Ticket()
	offer.Close()
	// The offer is closed. Its replacement hangs up, and ends before the last try.
	name := "@rondo-" + string(ticket[:32])
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan int, 1)
	go func() {
		tries := 0
		for ; tries < handovers-1; tries++ {
			conn, err := listener.Accept()
			if err != nil {
				break
			}
			conn.Close()
		}
		listener.Close()
		came <- tries
	}()
	_, err = take(t.Context(), ticket)
	listener.Close()
	if tries := <-came; tries != handovers-1 {
		t.Errorf("%d tries before the last, want %d", tries, handovers-1)
	}
	if err == nil || !strings.Contains(err.Error(), "not handed over") {
		t.Errorf("%v, want the first try's error", err)
	}
}
