//go:build cuda

package driver

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// Event is a place in a stream that can be waited for.
type Event struct {
	context *Context
	event   cu.Event
}

// NewEvent makes an event, which has come to pass until it is recorded. It takes no time and wakes
// nobody: either would cost the device something each time that it comes to pass.
func (c *Context) NewEvent() (*Event, error) {
	e := &Event{context: c}
	err := c.do("cuEventCreate", func() (err error) {
		e.event, err = cu.MakeEvent(cu.DisableTiming)
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// c is the event as C has it: cu's Event is that and nothing else, but does not show it.
func (e *Event) c() C.CUevent { return *(*C.CUevent)(unsafe.Pointer(&e.event)) }

// Close gives the event back.
func (e *Event) Close() error {
	return e.context.do("cuEventDestroy", func() error { return cu.DestroyEvent(&e.event) })
}

// Record places the event behind the work that the stream has so far.
func (e *Event) Record(s *Stream) error {
	return e.context.do("cuEventRecord", func() error { return e.event.Record(s.stream) })
}

// keenness is how long Wait polls before it sleeps. Waking up costs some tens of microseconds,
// twice: for the driver's thread and ours. Most waits of a training step end within a millisecond;
// for longer ones the price is a few percent.
const keenness = time.Millisecond

// Poll looks at the event at least once, and again until it has passed or the limit is over. It
// keeps a processor busy.
func (e *Event) Poll(limit time.Duration) (passed bool, err error) {
	result := C.rondo_poll(e.context.c(), e.c(), C.int64_t(limit))
	if result == C.CUDA_ERROR_NOT_READY {
		return false, nil
	}
	return true, failed("cuEventQuery", result)
}

// errHung is that a wait was given up.
var errHung = errors.New("it has not come to an end")

// Wait waits until the event has come to pass, or gives up after the limit: then the device hangs,
// and no wait in this context ends well any more.
func (e *Event) Wait(limit time.Duration) error {
	c := e.context
	if c.hung != nil {
		return c.hung
	}
	if passed, err := e.Poll(min(keenness, limit)); passed || err != nil {
		return err
	}
	c.timer.Reset(limit)
	defer c.timer.Stop()
	c.asked <- e
	select {
	case err := <-c.waited:
		return err
	case <-c.timer.C:
		c.hung = fmt.Errorf("%w in %v", errHung, limit)
		return c.hung
	}
}

// A waiter is the goroutine that waits in the driver. Its stream does nothing but wait for other
// events. Its one event lets a thread sleep; for other events the driver would keep a processor
// busy.
type waiter struct {
	stream cu.Stream
	woken  cu.Event
}

func newWaiter() (w waiter, err error) {
	if w.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return w, err
	}
	if w.woken, err = cu.MakeEvent(cu.BlockingSyncEvent | cu.DisableTiming); err != nil {
		return w, errors.Join(err, w.stream.Destroy())
	}
	return w, nil
}

// wait sleeps until an event has come to pass.
func (w *waiter) wait(e *Event) error {
	if err := w.stream.Wait(e.event, 0); err != nil {
		return err
	}
	if err := w.woken.Record(w.stream); err != nil {
		return err
	}
	return w.woken.Synchronize()
}

func (w *waiter) close() error {
	return errors.Join(cu.DestroyEvent(&w.woken), w.stream.Destroy())
}
