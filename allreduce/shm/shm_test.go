//go:build linux

package shm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rondo/allreduce"
)

// moment is the longest time for operations that must not wait for a timeout.
const moment = 10 * time.Second

// pair hands memory over within this process, and closes both ends with the test.
func pair(t *testing.T) (*Sender, *Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	offer, err := NewOffer()
	if err != nil {
		t.Fatal(err)
	}
	defer offer.Close()
	r, err := Take(ctx, offer.Ticket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	s, err := offer.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, r
}

// message returns a head and n bytes of random content.
func message(rng *rand.Rand, n int) (head, body []byte) {
	b := make([]byte, HeadBytes+n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b[:HeadBytes], b[HeadBytes:]
}

// TestMessages sends more messages than there are slots, of all sizes, with both ends sleeping at
// times.
func TestMessages(t *testing.T) {
	s, r := pair(t)
	sizes := []int{0, 1, 4, 4096, 100_000, allreduce.MaxChunkBytes}
	sent := make(chan error, 1)
	go func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 20 {
			for _, n := range sizes {
				if err := s.Send(message(rng, n)); err != nil {
					sent <- err
					return
				}
			}
		}
		s.Finish()
		sent <- nil
	}()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 20 * len(sizes) {
		head, body, err := r.Receive()
		if err != nil {
			t.Fatal(err)
		}
		wantHead, wantBody := message(rng, sizes[i%len(sizes)])
		if !bytes.Equal(head, wantHead) || !bytes.Equal(body, wantBody) {
			t.Fatalf("message %d is not what was sent", i)
		}
		r.Release()
	}
	if _, _, err := r.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message: %v, want EOF", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestHeldMessageOutlivesClose: the memory stays until the message in it is released.
func TestHeldMessageOutlivesClose(t *testing.T) {
	s, r := pair(t)
	head, body := message(rand.New(rand.NewPCG(3, 4)), 1000)
	if err := s.Send(head, body); err != nil {
		t.Fatal(err)
	}
	_, got, err := r.Receive()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if !bytes.Equal(got, body) {
		t.Error("the message changed when the receiver was closed")
	}
	r.Release()
	if r.memory != nil {
		t.Error("the memory is mapped after the last message was released")
	}
	if _, _, err := r.Receive(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive after Close: %v, want net.ErrClosed", err)
	}
}

func TestInterrupt(t *testing.T) {
	s, r := pair(t)
	full, empty := make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := r.Receive()
		empty <- err
	}()
	r.Interrupt()
	if err := <-empty; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Receive: %v, want a deadline's error", err)
	}
	go func() {
		head, body := message(rand.New(rand.NewPCG(5, 6)), 10)
		var err error
		for err == nil {
			err = s.Send(head, body)
		}
		full <- err
	}()
	s.Interrupt()
	if err := <-full; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Send: %v, want a deadline's error", err)
	}
}

// TestHostileWords: a wrong word in the memory is refused, with both values in the error.
func TestHostileWords(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*channel)
		want  string
	}{
		{"ahead", func(c *channel) { c.word(wordSent).Store(slots + 1) }, "5 messages"},
		{"far ahead", func(c *channel) { c.word(wordSent).Store(1 << 63) }, "messages"},
		{"long", func(c *channel) {
			length, _ := c.slot(0)
			length.Store(allreduce.MaxChunkBytes + 1)
			c.word(wordSent).Store(1)
		}, "1048577 bytes"},
		{"negative", func(c *channel) {
			length, _ := c.slot(0)
			length.Store(1 << 63)
			c.word(wordSent).Store(1)
		}, "9223372036854775808 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r := pair(t)
			c.spoil(&s.channel)
			if _, _, err := r.Receive(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Receive: %v, want an error with %q", err, c.want)
			}
		})
	}
	t.Run("backwards", func(t *testing.T) {
		s, r := pair(t)
		head, body := message(rand.New(rand.NewPCG(7, 8)), 10)
		for range 2 {
			if err := s.Send(head, body); err != nil {
				t.Fatal(err)
			}
			if _, _, err := r.Receive(); err != nil {
				t.Fatal(err)
			}
			r.Release()
		}
		s.word(wordSent).Store(1)
		if _, _, err := r.Receive(); err == nil || !strings.Contains(err.Error(), "sent 1") {
			t.Errorf("Receive: %v, want an error about 1 message sent", err)
		}
	})
	t.Run("taken", func(t *testing.T) {
		s, r := pair(t)
		r.word(wordTaken).Store(7)
		head, body := message(rand.New(rand.NewPCG(9, 10)), 10)
		err := s.Send(head, body)
		if err == nil || !strings.Contains(err.Error(), "taken 7 messages of 0") {
			t.Errorf("Send: %v, want an error about 7 messages taken", err)
		}
	})
}

func TestMain(m *testing.M) {
	if ticket := os.Getenv(ticketVariable); ticket != "" {
		os.Exit(childTakes(Ticket(ticket)))
	}
	goleak.VerifyTestMain(m)
}
