package framing

import (
	"net"
	"slices"
	"sync"
)

const (
	// BatchBytes is the size from which a batch is written although more of its message follows.
	BatchBytes = 256 << 10

	// copyBytes is the length up to which a piece of a data frame is copied. copiedBytes is the
	// size of one block for such copies.
	copyBytes   = 512
	copiedBytes = 4 << 10

	// FrameBytes is the longest HTTP/2 frame that gRPC sends. A shorter one is the last of its
	// message, or of the flow control window.
	FrameBytes = 16 << 10

	// The header of an HTTP/2 frame (RFC 9113, section 4.1) has a length of three bytes and a type.
	frameHeaderBytes = 9
	dataFrame        = 0
)

// Writer is the connection under a client without TLS. gRPC is set to buffer nothing, so it
// passes each frame's header and the parts of its payload in separate Writes. Writer writes
// many of them in one system call (writev), the payloads from the sender's memory. So the ring's
// payloads are not copied before the kernel copies them.
//
// It relies on two facts. One goroutine at a time calls Write, as in gRPC. And each piece longer
// than copyBytes within a data frame is a part of a message that its sender does not change until
// Release has called done: a link's connection carries nothing else. All other bytes are copied.
type Writer struct {
	net.Conn

	owed int  // bytes of the current data frame still to come
	full bool // whether that frame has the full FrameBytes

	mu      sync.Mutex
	idle    sync.Cond // of mu: when no goroutine writes
	next    batch     // not written yet
	spare   batch     // replaces next while that is written
	writing bool
	closed  bool
	err     error
	pieces  net.Buffers   // unwritten pieces of the current batch
	wake    chan struct{} // has a token when a full frame waits in next
	ended   chan struct{} // closed when run has ended
}

// batch is the content of one system call.
type batch struct {
	pieces net.Buffers
	copied []byte // memory of the short pieces
	bytes  int
	freed  []func() // called when the batch is written
}

// NewWriter returns a connection that writes to conn. Its Close ends the goroutine that it starts.
func NewWriter(conn net.Conn) *Writer {
	g := &Writer{Conn: conn, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	g.idle.L = &g.mu
	go g.run()
	return g
}

// Write appends the next piece of the stream. It waits only while a full batch waits for the one
// being written.
func (g *Writer) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next.bytes >= BatchBytes && g.writing && g.err == nil {
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
		g.full = g.owed >= FrameBytes
	default: // a frame of another type, or the connection's preface
		g.full = false
	}
	switch {
	case g.owed > 0:
	case !g.full || g.next.bytes >= BatchBytes:
		g.flush()
	default:
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
	return len(b), g.err
}

// add appends a piece to the batch. It copies the piece unless stays.
func (b *batch) add(piece []byte, stays bool) {
	b.bytes += len(piece)
	if !stays {
		at := len(b.copied)
		if at+len(piece) > cap(b.copied) { // earlier pieces keep the full block alive
			b.copied, at = make([]byte, 0, max(copiedBytes, len(piece))), 0
		}
		b.copied = append(b.copied, piece...)
		piece = b.copied[at:]
	}
	b.pieces = append(b.pieces, piece)
}

// flush writes all waiting batches, unless another goroutine does. The caller holds g.mu.
func (g *Writer) flush() {
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
		for _, done := range now.freed {
			done()
		}
		clear(now.pieces)
		clear(now.freed)
		g.spare = batch{pieces: now.pieces[:0], copied: now.copied[:0], freed: now.freed[:0]}
		g.idle.Broadcast()
	}
	g.writing = false
	g.idle.Broadcast()
}

// Release calls done as soon as no piece that was passed to Write remains to be written.
func (g *Writer) Release(done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.writing && (g.next.bytes == 0 || g.err != nil) {
		done()
		return
	}
	g.next.freed = append(g.next.freed, done)
}

// run writes the batch that waits when gRPC stops within a message, because the flow control window
// is full.
func (g *Writer) run() {
	defer close(g.ended)
	for range g.wake {
		g.mu.Lock()
		g.flush()
		g.mu.Unlock()
	}
}

// Close closes the connection. After it no bytes passed to Write are read any more.
func (g *Writer) Close() error {
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
	g.flush() // writes nothing, and releases the waiting messages
	g.mu.Unlock()
	<-g.ended
	return err
}
