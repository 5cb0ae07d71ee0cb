package allreduce

import (
	"errors"
	"sync"
)

// Ending records how one end of a link ended: by its own Close or Abort ([ErrClosed]), because the
// neighbour left ([ErrLeft]), or because the link broke (any other error). The first of them
// counts. Implementations of [Link] embed it.
type Ending struct {
	mu     sync.Mutex
	err    error
	over   chan struct{}
	broken chan struct{}
}

// NewEnding returns the ending of an open link.
func NewEnding() *Ending {
	return &Ending{over: make(chan struct{}), broken: make(chan struct{})}
}

// End ends the link, and reports whether it was open.
func (e *Ending) End(err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return false
	}
	e.err = err
	close(e.over)
	if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLeft) {
		close(e.broken)
	}
	return true
}

// Over is closed when the link has ended.
func (e *Ending) Over() <-chan struct{} { return e.over }

// Broken is closed when the neighbour has broken off.
func (e *Ending) Broken() <-chan struct{} { return e.broken }

// Err returns how the link ended; nil while it is open.
func (e *Ending) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}
