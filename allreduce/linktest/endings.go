package linktest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"rondo/allreduce"
)

func testCloseEndsCalls(t *testing.T, form Form) {
	ends := map[string]func(allreduce.Link){
		"Close": func(l allreduce.Link) { l.Close() },
		"Abort": func(l allreduce.Link) { l.Abort("enough") },
	}
	for name, end := range ends {
		t.Run(name+"/Receive", func(t *testing.T) {
			_, p := pair(t, form)
			received := make(chan error, 1)
			go func() { received <- p.Receive(&allreduce.Message{}) }()
			end(p)
			err := within(t, "receive", func() error { return <-received })
			if !errors.Is(err, allreduce.ErrClosed) {
				t.Errorf("Receive: %v, want ErrClosed", err)
			}
			if err := p.Receive(&allreduce.Message{}); !errors.Is(err, allreduce.ErrClosed) {
				t.Errorf("Receive afterwards: %v, want ErrClosed", err)
			}
		})
		t.Run(name+"/Send", func(t *testing.T) {
			s, _ := pair(t, form)
			failed := fill(t, s)
			soon(t, name, func() { end(s) })
			err := within(t, "send", func() error { return <-failed })
			if !errors.Is(err, allreduce.ErrClosed) {
				t.Errorf("Send: %v, want ErrClosed", err)
			}
			err = within(t, "flush", s.Flush) // nil if the link has dropped everything by then
			if err != nil && !errors.Is(err, allreduce.ErrClosed) {
				t.Errorf("Flush: %v, want ErrClosed", err)
			}
		})
	}
}

// awkward is a reason that careless encoding would damage.
const awkward = "rank 3: ring step 1 of 6: 100% naïve\x00 \n" + `"quoted"; two lines, 漢字`

func testAbortReachesReceiver(t *testing.T, form Form) {
	t.Run("idle", func(t *testing.T) {
		s, p := pair(t, form)
		soon(t, "abort", func() { s.Abort(awkward) })
		checkAbort(t, broken(t, p), awkward)
		checkAbort(t, p.Receive(&allreduce.Message{}), awkward)
	})
	t.Run("receiving", func(t *testing.T) {
		s, p := pair(t, form)
		received := make(chan error, 1)
		go func() { received <- p.Receive(&allreduce.Message{}) }()
		soon(t, "abort", func() { s.Abort(awkward) })
		checkAbort(t, within(t, "receive", func() error { return <-received }), awkward)
	})
	t.Run("full", func(t *testing.T) {
		s, p := pair(t, form)
		failed := fill(t, s)
		soon(t, "abort", func() { s.Abort("late") })
		checkAbort(t, broken(t, p), "late")                     // any error, as long as it ends
		_ = within(t, "send", func() error { return <-failed }) // any error: it must end
	})
	t.Run("long", func(t *testing.T) {
		s, p := pair(t, form)
		reason := strings.Repeat("é", 100_000)
		soon(t, "abort", func() { s.Abort(reason) })
		if err := broken(t, p); !strings.HasPrefix(reason, strings.TrimSuffix(err.Error(), "…")) {
			t.Errorf("error is no start of the reason: %.80q", err)
		}
	})
}

func testAbortReachesSender(t *testing.T, form Form) {
	t.Run("idle", func(t *testing.T) {
		s, p := pair(t, form)
		soon(t, "abort", func() { p.Abort(awkward) })
		checkAbort(t, broken(t, s), awkward)
		h, floats := chunk(rand.New(rand.NewPCG(9, 9)), 0, 10)
		checkAbort(t, s.Send(h, allreduce.Bytes(floats)), awkward)
	})
	t.Run("full", func(t *testing.T) {
		s, p := pair(t, form)
		failed := fill(t, s)
		soon(t, "abort", func() { p.Abort("enough") })
		checkAbort(t, within(t, "send", func() error { return <-failed }), "enough")
	})
}

// testSenderLeaves: the receiver gets the messages sent before Close, and then ErrLeft.
func testSenderLeaves(t *testing.T, form Form) {
	s, p := pair(t, form)
	rng := rand.New(rand.NewPCG(10, 11))
	h1, first := chunk(rng, 1, 1000)
	h2, second := chunk(rng, 2, 100_000)
	left := make(chan error, 1)
	go func() {
		left <- errors.Join(s.Send(h1, allreduce.Bytes(first)),
			s.Send(h2, allreduce.Bytes(second)), s.Close())
	}()
	err := within(t, "receive", func() error {
		if err := receive(p, h1, first); err != nil {
			return err
		}
		return receive(p, h2, second)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = within(t, "receive", func() error { return p.Receive(&allreduce.Message{}) })
	if !errors.Is(err, allreduce.ErrLeft) {
		t.Errorf("Receive after the last chunk: %v, want ErrLeft", err)
	}
	select {
	case <-p.Broken():
		t.Errorf("a neighbour that left broke the link: %v", p.Err())
	default:
	}
	if err := within(t, "close", func() error { return <-left }); err != nil {
		t.Error(err)
	}
}

// testReceiverLeaves: the sender learns that its chunks are not taken any more, and stops waiting.
func testReceiverLeaves(t *testing.T, form Form) {
	s, p := pair(t, form)
	failed := fill(t, s)
	if err := within(t, "close", p.Close); err != nil {
		t.Error(err)
	}
	err := within(t, "send", func() error { return <-failed })
	if !errors.Is(err, allreduce.ErrLeft) {
		t.Errorf("Send: %v, want ErrLeft", err)
	}
	select {
	case <-s.Broken():
		t.Errorf("a neighbour that left broke the link: %v", s.Err())
	default:
	}
}
