package grpclink

import (
	"net"
	"slices"
	"sync"
)

const (
	// gatherBytes is how much is gathered before it is written although more of a message comes.
	gatherBytes = 256 << 10

	// copyBytes is the longest piece of a frame of data that is copied, and copiedBytes how much
	// room there is for such pieces at a time.
	copyBytes   = 512
	copiedBytes = 4 << 10

	// frameBytes is the most of an HTTP/2 frame that gRPC sends: a frame that is shorter is the
	// last of its message, or of what the successor has room for.
	frameBytes = 16 << 10

	// The header of an HTTP/2 frame (RFC 9113, section 4.1): a length of three bytes, and a type.
	frameHeaderBytes = 9
	dataFrame        = 0
)

// gather is the connection under a client without TLS. gRPC, told to buffer nothing, hands over
// each frame's header and the parts of its payload by themselves; gather writes many of them in one
// system call (writev), the payloads from where they are. So nothing that the ring sends is copied
// before the kernel does.
//
// It relies on two things. One goroutine at a time writes, as gRPC's does. And what is longer than
// copyBytes within a frame of data is of an [outgoing], whose sender leaves it as it is until
// release has called its done: nothing else is sent on a link's connection. All else is copied.
type gather struct {
	net.Conn

	owed int  // bytes of the frame of data that are still to come
	full bool // whether that is as long as frames get

	mu      sync.Mutex
	idle    sync.Cond // of mu: when nobody writes
	next    batch     // what waits
	spare   batch     // what takes its place while that is written
	writing bool
	closed  bool
	err     error
	pieces  net.Buffers   // of the batch that is written: what is left of them
	wake    chan struct{} // has a token when something waits that nobody may come to write
	ended   chan struct{} // closed when the goroutine has ended
}

// batch is what one system call writes.
type batch struct {
	pieces net.Buffers
	copied []byte // where short pieces lie
	bytes  int
	freed  []*outgoing // of which gRPC has let go, and this batch may have pieces
}

func newGather(conn net.Conn) *gather {
	g := &gather{Conn: conn, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	g.idle.L = &g.mu
	go g.run()
	return g
}

// Write takes the next piece of the stream. It waits only while as much waits as a batch holds.
func (g *gather) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next.bytes >= gatherBytes && g.writing && g.err == nil {
		g.idle.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	g.next.add(b, g.owed > 0 && len(b) > copyBytes)
	switch {
	case g.owed > 0:
		g.owed -= len(b)
	case len(b) == frameHeaderBytes && b[3] == dataFrame:
		g.owed = int(b[0])<<16 | int(b[1])<<8 | int(b[2])
		g.full = g.owed >= frameBytes
	default: // a whole frame, or what comes before the first
		g.full = false
	}
	switch {
	case g.owed > 0:
	case !g.full || g.next.bytes >= gatherBytes:
		g.flush()
	default:
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
	return len(b), g.err
}

// add puts a piece at the end of the batch: a copy, unless it stays as it is.
func (b *batch) add(piece []byte, stays bool) {
	b.bytes += len(piece)
	if !stays {
		at := len(b.copied)
		if at+len(piece) > cap(b.copied) { // the pieces hold on to the memory that was full
			b.copied, at = make([]byte, 0, max(copiedBytes, len(piece))), 0
		}
		b.copied = append(b.copied, piece...)
		piece = b.copied[at:]
	}
	b.pieces = append(b.pieces, piece)
}

// flush writes what waits, unless somebody does.
func (g *gather) flush() {
	if g.writing {
		return
	}
	g.writing = true
	for g.next.bytes > 0 && g.err == nil || len(g.next.freed) > 0 {
		now, err := g.next, g.err
		g.next = g.spare
		if now.bytes > 0 && err == nil {
			g.pieces = now.pieces
			if raceDetector {
				g.pieces = net.Buffers{slices.Concat(now.pieces...)}
			}
			g.mu.Unlock()
			_, err = g.pieces.WriteTo(visible(g.Conn))
			g.mu.Lock()
		}
		if err != nil {
			g.err = err
		}
		for _, o := range now.freed {
			o.done()
		}
		clear(now.pieces)
		clear(now.freed)
		g.spare = batch{pieces: now.pieces[:0], copied: now.copied[:0], freed: now.freed[:0]}
		g.idle.Broadcast()
	}
	g.writing = false
	g.idle.Broadcast()
}

// release calls o.done, of which gRPC has let go, as soon as no piece of it is to be written.
func (g *gather) release(o *outgoing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.writing && (g.next.bytes == 0 || g.err != nil) {
		o.done()
		return
	}
	g.next.freed = append(g.next.freed, o)
}

// run writes what waits when gRPC has stopped within a message, which it does when the successor
// has room for no more.
func (g *gather) run() {
	defer close(g.ended)
	for range g.wake {
		g.mu.Lock()
		g.flush()
		g.mu.Unlock()
	}
}

// Close cuts the connection. Then nothing is read any more that Write was given.
func (g *gather) Close() error {
	err := g.Conn.Close()
	g.mu.Lock()
	if g.err == nil {
		g.err = net.ErrClosed
	}
	if !g.closed {
		g.closed = true
		close(g.wake)
	}
	for g.writing {
		g.idle.Wait()
	}
	g.flush() // writes nothing any more, and gives back what waits for that
	g.mu.Unlock()
	<-g.ended
	return err
}
