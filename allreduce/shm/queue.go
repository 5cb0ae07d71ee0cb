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

// The memory is a page of words that both ends read and write, and the slots. A slot is the
// length of its body (8 bytes), a head, and the body. Message i lies in slot i modulo slots.
const (
	// slots bounds what is on the way. More than a few would only keep payloads out of the
	// processor's cache.
	slots = 4

	// HeadBytes is the length of a message's head.
	HeadBytes = 56

	controlBytes = 4096
	lengthBytes  = 8
	slotBytes    = lengthBytes + HeadBytes + allreduce.MaxChunkBytes
	memoryBytes  = controlBytes + slots*slotBytes
)

// The words, each on cache lines of its own.
const (
	wordSent           = iota // messages sent so far; the sender's
	wordTaken                 // messages released so far; the receiver's
	wordSenderSleeps          // not 0 while the sender waits for a byte on the socket
	wordReceiverSleeps        // the receiver likewise
)

const wordDistance = 128 // bytes: processors fetch cache lines in pairs

// channel is what both ends have: the memory, and the socket that wakes them.
type channel struct {
	memory []byte
	socket *net.UnixConn
	woken  [16]byte // what was read of the socket, whose bytes say nothing
	wake   [1]byte
}

func (c *channel) word(i int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&c.memory[i*wordDistance]))
}

// slot returns the slot of message i: the word with its body's length, and what follows.
func (c *channel) slot(i uint64) (length *atomic.Uint64, content []byte) {
	at := controlBytes + int(i%slots)*slotBytes
	slot := c.memory[at : at+slotBytes : at+slotBytes]
	return (*atomic.Uint64)(unsafe.Pointer(&slot[0])), slot[lengthBytes:]
}

// observe reads a word of the other end's. What was written before it was published may be read
// after it.
func (c *channel) observe(word int) uint64 {
	value := c.word(word).Load()
	acquired()
	return value
}

// publish sets a word of this end's, and wakes the other end if it sleeps. An error means that it
// has gone, which is for the next wait to find out.
func (c *channel) publish(word int, value uint64, sleeps int) {
	released()
	c.word(word).Store(value)
	if s := c.word(sleeps); s.Load() != 0 && s.Swap(0) != 0 {
		_, _ = c.socket.Write(c.wake[:])
	}
}

// await returns when the word is no longer old, or with the socket's error: io.EOF when the other
// end sends no more bytes, a deadline's after Interrupt. It does not spin before it sleeps: where
// cores are fewer than ranks, that would take the time of whoever is waited for.
func (c *channel) await(word int, old uint64, sleeps int) error {
	w, s := c.word(word), c.word(sleeps)
	// Whoever changes the word looks at sleeps afterwards, and this end at the word after it has
	// set sleeps: one of them sees what the other wrote.
	for s.Store(1); w.Load() == old; s.Store(1) {
		_, err := c.socket.Read(c.woken[:])
		if errors.Is(err, syscall.ECONNRESET) { // it went with a byte of ours unread
			err = io.EOF
		}
		if err != nil && w.Load() == old {
			return err
		}
	}
	s.Store(0)
	return nil
}

// Interrupt ends the call that waits, if any, and makes every later one that would wait fail. It
// may be called from any goroutine.
func (c *channel) Interrupt() { _ = c.socket.SetDeadline(time.Unix(1, 0)) }

func (c *channel) close() {
	c.socket.Close()
	unmap(c.memory)
	c.memory = nil
}
