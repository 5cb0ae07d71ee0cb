// Package transcript holds text that is read while it is written, such as the output of a process.
// Tests use it. It imports nothing of this module.
package transcript

import (
	"bytes"
	"sync"
)

// Text is what was written so far. Its methods may be called concurrently.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String implements fmt.Stringer.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
