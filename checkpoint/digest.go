package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
)

// digest computes a SHA-256 in its own goroutine, so that reading goes on while a piece is hashed.
// The caller must call stop.
type digest struct {
	pieces chan []byte
	sum    chan string
	once   sync.Once
}

// digestQueue is the number of pieces that may wait to be hashed.
const digestQueue = 8

func newDigest() *digest {
	d := &digest{pieces: make(chan []byte, digestQueue), sum: make(chan string, 1)}
	go func() {
		h := sha256.New()
		for p := range d.pieces {
			h.Write(p)
		}
		d.sum <- hex.EncodeToString(h.Sum(nil))
		close(d.sum)
	}()
	return d
}

// add appends p to the hashed data. p must not change until finish has returned.
func (d *digest) add(p []byte) { d.pieces <- p }

// finish returns the hash in hexadecimal.
func (d *digest) finish() string {
	d.once.Do(func() { close(d.pieces) })
	return <-d.sum
}

// stop ends the goroutine. It may be called before or after finish.
func (d *digest) stop() {
	d.once.Do(func() { close(d.pieces) })
	for range d.sum {
	}
}
