//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

var _ compute.Stager = (*Device)(nil)

// copyStream is a second stream for copies to the host while the first one computes. It is made
// when it is first needed.
type copyStream struct {
	stream *driver.Stream
	fork   *driver.Event            // where one stream waits for the other
	events []*driver.Event          // of copies, all that were made
	idle   []*driver.Event          // those that no copy has
	hosts  map[unsafe.Pointer]*slot // of AllocHost, by where each begins
	copied bool                     // the recording that is under way has copies
}

// AllocHost returns n zeros in pinned memory of the host.
func (d *Device) AllocHost(n int) []float32 {
	if n < 0 {
		panic(fmt.Sprintf("cuda: AllocHost of %d elements", n))
	}
	d.queue.notRecording("AllocHost")
	if n == 0 {
		return []float32{}
	}
	s := d.memory.newSlot(4 * n)
	clear(s.host)
	begin := unsafe.Pointer(unsafe.SliceData(s.host))
	if d.queue.copyStream.hosts == nil {
		d.queue.copyStream.hosts = map[unsafe.Pointer]*slot{}
	}
	d.queue.copyStream.hosts[begin] = s
	return unsafe.Slice((*float32)(begin), n)
}

// FreeHost gives it back, once no copy uses it.
func (d *Device) FreeHost(x []float32) {
	if len(x) == 0 {
		return
	}
	s, ok := d.queue.copyStream.hosts[at(x)]
	if !ok {
		panic(fmt.Sprintf("cuda: FreeHost of %d elements at %p, which AllocHost did not give",
			len(x), at(x)))
	}
	delete(d.queue.copyStream.hosts, at(x))
	d.queue.notRecording("FreeHost")
	d.queue.finish("freeing host memory")
	d.memory.closeSlot(s)
}

// pinned panics unless x is memory of AllocHost: a copy to other memory would wait, or might reach
// memory that has been freed.
func (a *copyStream) pinned(what string, x []float32) {
	for begin, s := range a.hosts {
		first := uintptr(at(x)) - uintptr(begin) // past any length where x begins before
		if room := len(s.host) - 4*len(x); room >= 0 && first <= uintptr(room) {
			return
		}
	}
	panic(fmt.Sprintf("cuda: %s with host memory at %p, which AllocHost did not give", what, at(x)))
}

// StartDownload enqueues a copy to pinned memory that runs beside later work. In a recording the
// copy is a branch of the graph, and waiting for it is waiting for the graph.
func (d *Device) StartDownload(dst, src []float32) (wait func()) {
	compute.CheckSame("StartDownload", len(dst), len(src))
	if len(src) == 0 {
		return func() {}
	}
	const doing = "downloading beside"
	q, a := &d.queue, &d.queue.copyStream
	a.pinned("StartDownload", dst)
	a.start(q)
	q.check(doing, a.fork.Record(q.stream))
	q.check(doing, a.stream.Await(a.fork))
	q.check(doing, a.stream.Download(bytesOf(dst), at(src)))
	if q.record != nil {
		a.copied = true
		return func() { q.collect("waiting for a replay's copies") }
	}
	done := a.event(q)
	q.check(doing, done.Record(a.stream))
	return func() {
		if done != nil {
			q.check(doing, done.Wait(q.patience))
			a.idle, done = append(a.idle, done), nil
		}
	}
}

// StartUpload enqueues a copy from pinned memory.
func (d *Device) StartUpload(dst, src []float32) {
	compute.CheckSame("StartUpload", len(dst), len(src))
	if len(src) == 0 {
		return
	}
	d.queue.copyStream.pinned("StartUpload", src)
	d.queue.owed = true // src is not the host's before the next wait
	d.queue.check("uploading beside", d.queue.stream.Upload(at(dst), bytesOf(src)))
}

// start makes the stream, if it is not there.
func (a *copyStream) start(q *queue) {
	const doing = "making a stream for copies"
	var err error
	if a.stream == nil {
		a.stream, err = q.context.NewStream()
		q.check(doing, err)
	}
	if a.fork == nil {
		a.fork, err = q.context.NewEvent()
		q.check(doing, err)
	}
}

// event is an event that no copy has.
func (a *copyStream) event(q *queue) *driver.Event {
	if n := len(a.idle); n > 0 {
		e := a.idle[n-1]
		a.idle = a.idle[:n-1]
		return e
	}
	e, err := q.context.NewEvent()
	q.check("making an event", err)
	a.events = append(a.events, e)
	return e
}

// join makes later work wait for all copies that were started. While recording, it waits for those
// of the recording, and must be its last call.
func (a *copyStream) join(q *queue) {
	if a.fork == nil || q.record != nil && !a.copied {
		return
	}
	a.copied = false
	q.check("joining copies", a.fork.Record(a.stream))
	q.check("joining copies", q.stream.Await(a.fork))
}

// close gives the stream and its events back. No copy is under way.
func (a *copyStream) close(q *queue) {
	for _, e := range append(a.events, a.fork) {
		if e != nil {
			q.check("closing", e.Close())
		}
	}
	if a.stream != nil {
		q.check("closing", a.stream.Close())
	}
	*a = copyStream{hosts: a.hosts} // which the memory's close frees
}
