package shm

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"rondo/allreduce"
)

// The memory is a page of control words that both ends access, followed by the slots. A slot has
// its body's length (8 bytes), a head and the body. Message i is in slot i modulo slots.
const (
	// slots is the number of messages in flight. More would only push payloads out of the
	// processor's cache.
	slots = 4

	// HeadBytes is the length of a message's head.
	HeadBytes = 56

	controlBytes = 4096
	lengthBytes  = 8
	slotBytes    = lengthBytes + HeadBytes + allreduce.MaxChunkBytes
	memoryBytes  = controlBytes + slots*slotBytes
)

// Indices of the control words. Each is on cache lines of its own.
const (
	wordSent           = iota // messages sent so far; written by the sender
	wordTaken                 // messages released so far; written by the receiver
	wordSenderSleeps          // not 0 while the sender waits on the socket; set by the sender
	wordReceiverSleeps        // the same of the receiver
)

const wordDistance = 128 // bytes: processors fetch cache lines in pairs

// channel is the common part of both ends: the memory, and the socket that wakes them.
type channel struct {
	memory []byte
	socket *net.UnixConn
	woken  [16]byte // bytes read from the socket; their values have no meaning
	wake   [1]byte
}

func (c *channel) word(i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&c.memory[i*wordDistance]))
}

// slot returns the slot of message i: the word with its body's length, and its head and body.
func (c *channel) slot(i uint64) (length *atomic.Uint64, content []byte) {
	at := controlBytes + int(i%slots)*slotBytes
	slot := c.memory[at : at+slotBytes : at+slotBytes]
	return (*atomic.Uint64)(unsafe.Pointer(&slot[0])), slot[lengthBytes:]
}

// observe reads a word that the other end writes. Data written before its publish may be read after
// it.
func (c *channel) observe(word int) uint64 {
	value := c.word(word).Load()
	acquired()
	return value
}

// publish sets a word of this end, and wakes the other end if it sleeps. It ignores a socket error:
// the next wait returns it.
func (c *channel) publish(word int, value uint64, sleeps int) {
	released()
	c.word(word).Store(value)
	if s := c.word(sleeps); s.Load() != 0 && s.Swap(0) != 0 {
		_, _ = c.socket.Write(c.wake[:])
	}
}

// await returns when the word differs from old, or with the socket's error: io.EOF when the other
// end has closed it, a deadline error after Interrupt. It does not spin first: with fewer cores
// than ranks, spinning takes processor time from the rank that it waits for.
func (c *channel) await(word int, old uint64, sleeps int) error {
	w, s := c.word(word), c.word(sleeps)
	// The other end changes the word before it reads sleeps. This end sets sleeps before it reads
	// the word. So at least one of them sees the other's write.
	for s.Store(1); w.Load() == old; s.Store(1) {
		_, err := c.socket.Read(c.woken[:])
		if errors.Is(err, syscall.ECONNRESET) { // the other end closed with unread bytes
			err = io.EOF
		}
		if err != nil && w.Load() == old {
			return err
		}
	}
	s.Store(0)
	return nil
}

// Interrupt ends a waiting call, and makes every later call fail that would wait. Any goroutine may
// call it.
func (c *channel) Interrupt() { _ = c.socket.SetDeadline(time.Unix(1, 0)) }

func (c *channel) close() {
	c.socket.Close()
	unmap(c.memory)
	c.memory = nil
}
