package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
)

// digest computes the SHA-256 of what is read, in a goroutine of its own, so that the next piece is
// read while the last is hashed. The caller must call stop.
type digest struct {
	pieces chan []byte
	sum    chan string
	once   sync.Once
}

// digestQueue is how many pieces may wait to be hashed.
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

// add appends p, which must not change until finish has returned.
func (d *digest) add(p []byte) { d.pieces <- p }

// finish returns the hash in hexadecimal.
func (d *digest) finish() string {
	d.once.Do(func() { close(d.pieces) })
	return <-d.sum
}

// stop ends the goroutine, whether or not finish was called.
func (d *digest) stop() {
	d.once.Do(func() { close(d.pieces) })
	for range d.sum {
	}
}
