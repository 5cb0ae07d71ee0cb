//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// Upload and Download copy in parts through pinned memory. The device copies one part while the
// processor copies the part before. The driver would copy other memory through a buffer of its own,
// and must not keep an address of Go's memory after the call.
const (
	ferrySlots = 4
	ferryBytes = 4 << 20
)

// slot is pinned memory, and the end of the last copy from or to it.
type slot struct {
	host   []byte
	copied *driver.Event
	busy   bool // copied has been recorded, and not waited for since
}

func (m *memory) newSlot(bytes int) *slot {
	host, err := m.queue.context.AllocHost(bytes)
	if driver.OutOfMemory(err) {
		panic(&compute.MemoryError{What: "pinned memory of the host", Bytes: int64(bytes)})
	}
	m.queue.check("making pinned memory", err)
	copied, err := m.queue.context.NewEvent()
	s := &slot{host: host, copied: copied}
	m.slots[s] = struct{}{}
	if err != nil {
		m.closeSlot(s)
		m.queue.check("making an event", err)
	}
	return s
}

// closeSlot gives a slot back, unless Close has. No copy of it is under way.
func (m *memory) closeSlot(s *slot) {
	if _, ok := m.slots[s]; !ok {
		return
	}
	delete(m.slots, s)
	if m.queue.broken {
		return
	}
	if s.copied != nil {
		m.queue.check("freeing an event", s.copied.Close())
	}
	m.queue.check("freeing pinned memory", m.queue.context.FreeHost(s.host))
}

// mark says that the slot's copy is the one that was enqueued last.
func (s *slot) mark(q *queue, doing string) {
	q.check(doing, s.copied.Record(q.stream))
	s.busy = true
}

// ready waits until the slot's memory is the host's again.
func (s *slot) ready(q *queue, doing string) {
	if s.busy {
		q.check(doing, s.copied.Wait(q.patience))
		s.busy = false
	}
}

// bytesOf is the memory of float32s, as bytes.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// ferry is the pinned memory through which Upload and Download go.
type ferry struct {
	memory *memory
	slots  []*slot
	aboard int // the slot that an upload takes next
}

// next is the slot that an upload takes, which is the host's.
func (f *ferry) next(doing string) *slot {
	s := f.slots[f.aboard]
	f.aboard = (f.aboard + 1) % len(f.slots)
	s.ready(f.memory.queue, doing)
	return s
}

// Upload copies host memory to the GPU's.
func (d *Device) Upload(dst, src []float32) {
	compute.CheckSame("Upload", len(dst), len(src))
	if len(src) > 0 {
		d.ferry.upload(at(dst), src)
	}
}

// upload copies numbers of the host.
func (f *ferry) upload(to unsafe.Pointer, src []float32) {
	const doing = "uploading"
	q, from := f.memory.queue, bytesOf(src)
	if q.record != nil {
		staged := q.record.put(len(from), func(host []byte) { copy(host, bytesOf(src)) })
		q.check(doing, q.stream.Copy(to, staged, int64(len(from))))
		return
	}
	for done := 0; done < len(from); {
		s := f.next(doing)
		n := copy(s.host, from[done:])
		q.check(doing, q.stream.Upload(unsafe.Add(to, done), s.host[:n]))
		s.mark(q, doing)
		done += n
	}
}

// Download copies the GPU's memory to the host's. It waits for the copy and all earlier work.
func (d *Device) Download(dst, src []float32) {
	compute.CheckSame("Download", len(dst), len(src))
	const doing = "downloading"
	q, to, from := &d.queue, bytesOf(dst), at(src)
	q.notRecording("Download")
	var asked, got [ferrySlots]int // of each slot: the bytes on their way, and where they go
	next := 0
	for done := 0; done < len(to); {
		for i, s := range d.ferry.slots { // as many parts on their way as there is room for
			if asked[i] > 0 || next == len(to) {
				continue
			}
			s.ready(q, doing)
			asked[i], got[i] = min(len(s.host), len(to)-next), next
			q.check(doing, q.stream.Download(s.host[:asked[i]], unsafe.Add(from, next)))
			s.mark(q, doing)
			next += asked[i]
		}
		for i, s := range d.ferry.slots { // the one that comes first
			if asked[i] > 0 && got[i] == done {
				s.ready(q, doing)
				done += copy(to[done:], s.host[:asked[i]])
				asked[i] = 0
				break
			}
		}
	}
	runtime.KeepAlive(dst)
}

// stagedSlots is how many fills may be under way: the host fills one while the device has still to
// copy the other.
const stagedSlots = 2

// staged is memory of the device that the host fills anew for every call: token ids, keys.
type staged struct {
	owner  *memory
	bytes  int
	memory unsafe.Pointer
	slots  [stagedSlots]*slot
	next   int
}

func (m *memory) newStaged(bytes int) *staged {
	s := &staged{owner: m, bytes: bytes, memory: m.malloc(bytes)}
	defer orUndo(s.close)
	for i := range s.slots {
		s.slots[i] = m.newSlot(bytes)
	}
	return s
}

// put has fill fill memory of the host, which holds anything, and enqueues its copy to the
// device's, whose address it returns: that is good until the next put. While recording, fill is
// kept, each Replay calls it again, and the address is the recording's own.
func (s *staged) put(fill func(host []byte)) unsafe.Pointer {
	q := s.owner.queue
	if s.memory == nil {
		panic(fmt.Sprintf("cuda: put of %d bytes into what has been closed", s.bytes))
	}
	if q.record != nil {
		return q.record.put(s.bytes, fill)
	}
	const doing = "uploading"
	to := s.slots[s.next]
	s.next = (s.next + 1) % len(s.slots)
	to.ready(q, doing)
	fill(to.host)
	q.check(doing, q.stream.Upload(s.memory, to.host))
	to.mark(q, doing)
	return s.memory
}

// close frees both memories; it may be called more than once.
func (s *staged) close() {
	if s.memory == nil {
		return
	}
	s.owner.release(s.memory) // which waits for the copies
	s.memory = nil
	for _, slot := range s.slots {
		if slot != nil {
			s.owner.closeSlot(slot)
		}
	}
}

// result is a float64 that a call returns later. The kernel that makes it writes it to pinned
// memory, which the device has at the host's addresses.
type result struct {
	owner *memory
	slot  *slot
}

func (m *memory) newResult() *result { return &result{m, m.newSlot(resultBytes)} }

const resultBytes = 8

// place is where the kernel writes that is launched next.
func (r *result) place() unsafe.Pointer {
	r.owner.queue.owed = true
	return unsafe.Pointer(unsafe.SliceData(r.slot.host))
}

// read returns the value that was written last. It waits for the device, unless it has since.
func (r *result) read() float64 {
	r.owner.queue.collect("waiting for a result")
	return math.Float64frombits(binary.LittleEndian.Uint64(r.slot.host))
}

// close frees the memory; it may be called more than once.
func (r *result) close() {
	if r.slot == nil {
		return
	}
	r.owner.queue.finish("freeing a result")
	r.owner.closeSlot(r.slot)
	r.slot = nil
}
