package hosts

import (
	"bytes"
	"sync"
)

// maxNotes is how much of what processes write is kept: the end.
const maxNotes = 16 << 10

// Notes keeps what processes write to their standard error, for whoever asks once one has failed.
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

// String is the end of what was written.
func (n *Notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(bytes.TrimSpace(n.text))
}
