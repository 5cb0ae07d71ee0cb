//go:build cuda

package cuda

import (
	"fmt"
	"time"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// queue is the work that a GPU has been given: kernels and copies, in the order of the calls.
type queue struct {
	info       Info
	name       string          // of the Device
	context    *driver.Context // nil after Close
	stream     *driver.Stream
	fence      *driver.Event // end of the enqueued work, for waits
	kernels    kernelTable
	copyStream copyStream
	record     *recording // that is under way
	owed       bool       // a result or a Replay was asked for, and nothing waited for since
	broken     bool       // the device has failed for good: it is asked for nothing any more
	// patience is how long a wait for the device lasts before it counts as hanging.
	patience time.Duration
	watch    []byte // where persistent kernels report a wait without end; nil: they need not
}

// open creates the streams, events and libraries in the context.
func (q *queue) open() (err error) {
	if q.info.Free, _, err = q.context.Memory(); err != nil {
		return err
	}
	if q.stream, err = q.context.NewStream(); err != nil {
		return err
	}
	if q.fence, err = q.context.NewEvent(); err != nil {
		return err
	}
	return q.openWatch()
}

// close gives it back. Nothing is under way.
func (q *queue) close() {
	const doing = "closing"
	q.check(doing, q.kernels.close())
	if q.watch != nil {
		q.check(doing, q.context.FreeHost(q.watch))
		q.watch = nil
	}
	if q.fence != nil {
		q.check(doing, q.fence.Close())
	}
	if q.stream != nil {
		q.check(doing, q.stream.Close())
	}
}

// check panics if a call of the driver has failed. The Device counts as broken only if the failure
// is permanent: otherwise its memory can still be freed, and is.
func (q *queue) check(doing string, err error) {
	if err == nil {
		return
	}
	if q.record != nil { // nothing is done while it is recorded, so nothing can break
		panic(&unrecordable{fmt.Errorf("%s: %w", doing, err)})
	}
	q.broken = q.broken || driver.Broken(err)
	panic(&compute.DeviceError{Device: q.name, Doing: doing, Err: q.withReport(err)})
}

// wait waits for all that was enqueued.
func (q *queue) wait(doing string) {
	q.notRecording(doing)
	q.check(doing, q.fence.Record(q.stream))
	q.check(doing, q.fence.Wait(q.patience))
	q.owed = false
}

// collect waits for the requested results and Replays. It does nothing if they are known to be
// complete: a step waits once, however many results it reads.
func (q *queue) collect(doing string) {
	q.notRecording(doing)
	if q.owed {
		q.wait(doing)
	}
}

// finish waits for running work, if there may be any, before its memory is freed.
func (q *queue) finish(doing string) {
	if !q.broken && q.context != nil {
		q.notRecording(doing)
		q.copyStream.join(q)
		q.wait(doing)
	}
}

// refused panics with the error of a call that may have failed for lack of memory.
func (q *queue) refused(what string, bytes int64, err error) { panic(q.lack(what, bytes, err)) }

// lack describes the memory that a failed call lacked. It panics with any other failure.
func (q *queue) lack(what string, bytes int64, err error) *compute.MemoryError {
	if !driver.OutOfMemory(err) {
		q.check(what, err)
	}
	lack := &compute.MemoryError{What: what, Bytes: bytes}
	if free, total, err := q.context.Memory(); err == nil {
		lack.Free, lack.Total = free, total
	}
	return lack
}

// notRecording panics if a recording is under way.
func (q *queue) notRecording(doing string) {
	if q.record != nil {
		panic(fmt.Sprintf("cuda: %s while recording", doing))
	}
}
