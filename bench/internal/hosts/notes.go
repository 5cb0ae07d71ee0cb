package hosts

import (
	"bytes"
	"sync"
)

// maxNotes bounds the kept output of processes; the end is kept.
const maxNotes = 16 << 10

// Notes keeps the standard error of processes, for the message about one that has failed.
type Notes struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (n *Notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text = append(n.text, p...)
	if over := len(n.text) - maxNotes; over > 0 {
		n.text = append(n.text[:0], n.text[over:]...)
	}
	return len(p), nil
}

// String returns the end of the output.
func (n *Notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(bytes.TrimSpace(n.text))
}
