package grpclink

import (
	"encoding/binary"
	"time"
)

// takeBack leaves all to gRPC from here on, within a payload: first what has come of the message,
// in frames as they were, which count against the windows where gRPC counts.
func (i *intake) takeBack() {
	a := i.now
	i.off, i.now = true, nil
	binary.BigEndian.PutUint32(i.head[1:], uint32(headerBytes+a.bytes))
	kept := a.bytes - i.left
	i.small = make([]byte, 0, (1+len(a.pieces))*frameHeaderBytes+headBytes+kept)
	for _, part := range append([][]byte{i.head}, a.pieces...) {
		i.small = append(appendDataHeader(i.small, len(part), i.stream), part...)
	}
	i.head, i.left = i.head[:0], 0
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held -= kept
	i.forget(a)
}

// resign leaves all to gRPC from here on when the link's handler has returned.
func (i *intake) resign() {
	switch {
	case i.off:
	case i.left > 0:
		i.takeBack()
	case len(i.head) > 0:
		i.handOnHead(0)
	}
	i.off = true
}

// leave gives back the payloads that nobody will claim, as the link's handler has returned: else
// the connection would have less room for what comes by it later.
func (i *intake) leave() {
	i.mu.Lock()
	i.over.Store(true)
	queue := i.queue
	i.queue = nil
	i.mu.Unlock()
	for _, a := range queue {
		a.release()
	}
}

// forget gives a payload's memory back. i.mu is held.
func (i *intake) forget(a *aside) {
	for _, b := range a.blocks {
		i.letGo(b)
	}
	clear(a.blocks)
	clear(a.pieces)
	a.blocks, a.pieces, a.bytes = a.blocks[:0], a.pieces[:0], 0
	i.spare = append(i.spare, a)
}

// giveBack gives the predecessor back what it may have, if that is worth a word. It does not wait
// for somebody else who writes, and who looks again behind that.
func (i *intake) giveBack() {
	for i.isDue() && i.writing.TryLock() {
		given := i.credit()
		i.writing.Unlock()
		if !given {
			return
		}
	}
}

func (i *intake) isDue() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.owed >= creditBytes
}

// credit writes what is given back, unless gRPC is within a frame: then Write does. A stream that
// has ended gets nothing. i.writing is held.
func (i *intake) credit() bool {
	i.mu.Lock()
	n, streams := i.owed, []uint32{0, i.stream}
	if n < creditBytes || !i.written.between() {
		i.mu.Unlock()
		return false
	}
	i.owed, i.held = 0, i.held-n
	i.mu.Unlock()
	if i.over.Load() {
		streams = streams[:1]
	}
	b := i.updates[:0]
	for _, stream := range streams {
		b = append(b, 0, 0, 4, windowUpdateFrame, 0)
		b = binary.BigEndian.AppendUint32(b, stream)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	_ = i.SetWriteDeadline(time.Now().Add(pingTimeout))
	if _, err := i.Conn.Write(b); err != nil {
		i.Conn.Close() // in the middle of a frame; gRPC, which reads, learns of it
		return false
	}
	_ = i.SetWriteDeadline(time.Time{})
	return true
}

// Write writes what gRPC has to say.
func (i *intake) Write(b []byte) (int, error) {
	i.writing.Lock()
	n, err := i.Conn.Write(b)
	i.written.add(b[:n])
	i.writing.Unlock()
	if err == nil {
		i.giveBack()
	}
	return n, err
}

// frameEnds follows frames that are written in any pieces.
type frameEnds struct {
	header [frameHeaderBytes]byte
	have   int // of the header
	owed   int // bytes of the frame that are still to come
}

func (f *frameEnds) add(b []byte) {
	for len(b) > 0 {
		if f.owed > 0 {
			n := min(f.owed, len(b))
			f.owed, b = f.owed-n, b[n:]
			continue
		}
		n := copy(f.header[f.have:], b)
		f.have, b = f.have+n, b[n:]
		if f.have == frameHeaderBytes {
			f.have, f.owed = 0, int(f.header[0])<<16|int(f.header[1])<<8|int(f.header[2])
		}
	}
}

// between reports whether the next byte begins a frame.
func (f *frameEnds) between() bool { return f.have == 0 && f.owed == 0 }
