package integration

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay passes connections on to an address, and can be cut: connections break, and new ones are
// closed at once.
type relay struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	open  map[net.Conn]bool
	isCut bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, to: to, open: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() { r.pass(from) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.cut()
		serving.Wait()
	})
	return r
}

func (r *relay) address() string { return r.listener.Addr().String() }

// pass copies both ways until one side ends.
func (r *relay) pass(from net.Conn) {
	defer r.drop(from)
	if !r.keep(from) {
		return
	}
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer r.drop(to)
	if !r.keep(to) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, to) // an error is the connection's end
		_ = from.Close()
	})
	_, _ = io.Copy(to, from)
	_ = to.Close()
	back.Wait()
}

// keep notes a connection, unless the relay is cut.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isCut {
		r.open[c] = true
	}
	return !r.isCut
}

func (r *relay) drop(c net.Conn) {
	_ = c.Close() // it may be closed
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = true
	for c := range r.open {
		_ = c.Close()
	}
}

func (r *relay) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isCut = false
}

// silence is a server that accepts connections, reads, and never answers.
func silence(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			serving.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return listener.Addr().String()
}
