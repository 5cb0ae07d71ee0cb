package framing

import (
	"encoding/binary"
	"time"
)

// stopHolding hands the connection to gRPC in the middle of a payload. First it passes the received
// part of the message, in frames as they arrived, so that gRPC counts them against the windows.
func (i *Reader) stopHolding() {
	a := i.now
	i.off, i.now = true, nil
	binary.BigEndian.PutUint32(i.head[1:], uint32(HeaderBytes+a.Bytes))
	kept := a.Bytes - i.left
	i.small = make([]byte, 0, (1+len(a.Pieces))*frameHeaderBytes+headBytes+kept)
	for _, part := range append([][]byte{i.head}, a.Pieces...) {
		i.small = append(appendDataHeader(i.small, len(part), i.stream), part...)
	}
	i.head, i.left = i.head[:0], 0
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unreturned -= kept
	i.forget(a)
}

// stop hands the connection to gRPC because the link's handler has returned.
func (i *Reader) stop() {
	switch {
	case i.off:
	case i.left > 0:
		i.stopHolding()
	case len(i.head) > 0:
		i.passHead(0)
	}
	i.off = true
}

// Leave releases the unclaimed payloads when the link's handler returns. Otherwise the connection's
// window would stay smaller.
func (i *Reader) Leave() {
	i.mu.Lock()
	i.over.Store(true)
	queue := i.queue
	i.queue = nil
	i.mu.Unlock()
	for _, a := range queue {
		a.Release()
	}
}

// forget frees a payload's memory. i.mu is held.
func (i *Reader) forget(a *Payload) {
	for _, b := range a.blocks {
		i.letGo(b)
	}
	clear(a.blocks)
	clear(a.Pieces)
	a.blocks, a.Pieces, a.Bytes = a.blocks[:0], a.Pieces[:0], 0
	i.spare = append(i.spare, a)
}

// giveBack returns window space to the predecessor when enough is due. It does not wait for a
// goroutine that is writing: that one calls giveBack itself afterwards.
func (i *Reader) giveBack() {
	for i.isDue() && i.writing.TryLock() {
		given := i.credit()
		i.writing.Unlock()
		if !given {
			return
		}
	}
}

func (i *Reader) isDue() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.returnable >= creditBytes
}

// credit writes window updates, unless gRPC is in the middle of a frame: then Write does it later.
// A stream that has ended gets none. i.writing is held.
func (i *Reader) credit() bool {
	i.mu.Lock()
	n, streams := i.returnable, []uint32{0, i.stream}
	if n < creditBytes || !i.written.between() {
		i.mu.Unlock()
		return false
	}
	i.returnable, i.unreturned = 0, i.unreturned-n
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
	_ = i.SetWriteDeadline(time.Now().Add(PingTimeout))
	if _, err := i.Conn.Write(b); err != nil {
		i.Conn.Close() // a broken frame; gRPC's reader sees the end
		return false
	}
	_ = i.SetWriteDeadline(time.Time{})
	return true
}

// Write writes gRPC's bytes.
func (i *Reader) Write(b []byte) (int, error) {
	i.writing.Lock()
	n, err := i.Conn.Write(b)
	i.written.add(b[:n])
	i.writing.Unlock()
	if err == nil {
		i.giveBack()
	}
	return n, err
}

// frameEnds finds the ends of frames written in arbitrary pieces.
type frameEnds struct {
	header [frameHeaderBytes]byte
	have   int // of the header
	owed   int // bytes of the frame still to come
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

// between reports whether the next byte starts a frame.
func (f *frameEnds) between() bool { return f.have == 0 && f.owed == 0 }
