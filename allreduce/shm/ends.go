package shm

import (
	"fmt"
	"net"
	"sync"

	"rondo/allreduce"
)

// Sender is the sending end. One goroutine at a time calls its methods, but any may call Interrupt.
type Sender struct {
	channel
	sent uint64 // own copy of wordSent, which the other end could change
}

// Send copies a message into the memory: a head of HeadBytes and a body of at most
// allreduce.MaxChunkBytes. It waits while all slots are in use.
func (s *Sender) Send(head, body []byte) error {
	if len(head) != HeadBytes || len(body) > allreduce.MaxChunkBytes {
		panic(fmt.Sprintf("shm: a head of %d bytes and a body of %d, want %d and at most %d",
			len(head), len(body), HeadBytes, allreduce.MaxChunkBytes))
	}
	for {
		taken := s.observe(wordTaken)
		waiting := s.sent - taken
		if waiting > slots {
			return fmt.Errorf("says in the shared memory that it has taken %d messages of %d",
				taken, s.sent)
		}
		if waiting < slots {
			break
		}
		if err := s.await(wordTaken, taken, wordSenderSleeps); err != nil {
			return err
		}
	}
	length, content := s.slot(s.sent)
	length.Store(uint64(len(body)))
	copy(content, head)
	copy(content[HeadBytes:], body)
	s.sent++
	s.publish(wordSent, s.sent, wordReceiverSleeps)
	return nil
}

// Finish tells the receiver that no more messages follow: after the last one Receive returns
// io.EOF.
func (s *Sender) Finish() { _ = s.socket.CloseWrite() }

// Close unmaps the memory. No call may be running.
func (s *Sender) Close() { s.close() }

// Receiver is the receiving end. One goroutine at a time calls Receive; any may call Interrupt and
// Close.
type Receiver struct {
	channel
	taken uint64
	head  [HeadBytes]byte

	mu     sync.Mutex
	held   bool // a call waits, or a message is not released
	closed bool
}

// Receive waits for the next message and returns its head and body. The body lies in the shared
// memory, where the sender could change it, so read it once. Both are valid until Release, which
// must follow each successful call.
func (r *Receiver) Receive() (head, body []byte, err error) {
	if !r.hold() {
		return nil, nil, net.ErrClosed
	}
	if head, body, err = r.next(); err != nil {
		r.drop()
	}
	return head, body, err
}

func (r *Receiver) next() (head, body []byte, err error) {
	sent := r.observe(wordSent)
	if sent == r.taken {
		if err := r.await(wordSent, sent, wordReceiverSleeps); err != nil {
			return nil, nil, err
		}
		sent = r.observe(wordSent)
	}
	if waiting := sent - r.taken; waiting == 0 || waiting > slots {
		return nil, nil, fmt.Errorf("says in the shared memory that it has sent %d messages, "+
			"of which %d were taken and at most %d fit", sent, r.taken, slots)
	}
	length, content := r.slot(r.taken)
	n := length.Load()
	if n > allreduce.MaxChunkBytes {
		return nil, nil, fmt.Errorf("says in the shared memory that a message has %d bytes, at "+
			"most %d fit", n, allreduce.MaxChunkBytes)
	}
	copy(r.head[:], content)
	return r.head[:], content[HeadBytes:][:n], nil
}

// Release gives the slot of the last message back to the sender.
func (r *Receiver) Release() {
	r.taken++
	r.publish(wordTaken, r.taken, wordSenderSleeps)
	r.drop()
}

// Close unmaps the memory, as soon as no call waits and the last message is released.
func (r *Receiver) Close() {
	r.Interrupt()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.end()
	}
}

func (r *Receiver) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.held = true
	return true
}

func (r *Receiver) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = false
	r.end()
}

// end unmaps the memory if the receiver is closed and holds no message.
func (r *Receiver) end() {
	if r.closed && !r.held {
		r.close()
	}
}
