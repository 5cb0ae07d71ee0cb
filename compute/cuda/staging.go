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

// Upload and Download go through pinned memory, in parts: the device copies from and to it by
// itself while the processor copies the part before. Of memory that is not pinned the driver would
// make a copy of its own, and of Go's memory it must not keep an address after the call.
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

func (d *Device) newSlot(bytes int) *slot {
	host, err := d.queue.context.AllocHost(bytes)
	if driver.OutOfMemory(err) {
		panic(&compute.MemoryError{What: "pinned memory of the host", Bytes: int64(bytes)})
	}
	d.queue.check("making pinned memory", err)
	copied, err := d.queue.context.NewEvent()
	s := &slot{host: host, copied: copied}
	d.memory.slots[s] = struct{}{}
	if err != nil {
		d.closeSlot(s)
		d.queue.check("making an event", err)
	}
	return s
}

// closeSlot gives a slot back, unless Close has. No copy of it is under way.
func (d *Device) closeSlot(s *slot) {
	if _, ok := d.memory.slots[s]; !ok {
		return
	}
	delete(d.memory.slots, s)
	if d.queue.broken {
		return
	}
	if s.copied != nil {
		d.queue.check("freeing an event", s.copied.Close())
	}
	d.queue.check("freeing pinned memory", d.queue.context.FreeHost(s.host))
}

// mark says that the copy that was enqueued last is the slot's.
func (d *Device) mark(doing string, s *slot) {
	d.queue.check(doing, s.copied.Record(d.queue.stream))
	s.busy = true
}

// ready waits until the slot's memory is the host's again.
func (d *Device) ready(doing string, s *slot) {
	if s.busy {
		d.queue.check(doing, s.copied.Wait(d.queue.patience))
		s.busy = false
	}
}

// bytesOf is the memory of float32s, as bytes.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// Upload copies host memory to the GPU's.
func (d *Device) Upload(dst, src []float32) {
	compute.CheckSame("Upload", len(dst), len(src))
	if len(src) == 0 {
		return
	}
	const doing = "uploading"
	to, from := at(dst), bytesOf(src)
	if d.queue.record != nil {
		staged := d.queue.record.put(len(from), func(host []byte) { copy(host, bytesOf(src)) })
		d.queue.check(doing, d.queue.stream.Copy(to, staged, int64(len(from))))
		return
	}
	for done := 0; done < len(from); {
		s := d.ferry[d.aboard]
		d.aboard = (d.aboard + 1) % len(d.ferry)
		d.ready(doing, s)
		n := copy(s.host, from[done:])
		d.queue.check(doing, d.queue.stream.Upload(unsafe.Add(to, done), s.host[:n]))
		d.mark(doing, s)
		done += n
	}
}

// Download copies the GPU's memory to the host's. It waits for that, and what was enqueued before.
func (d *Device) Download(dst, src []float32) {
	compute.CheckSame("Download", len(dst), len(src))
	d.queue.notRecording("Download")
	if len(src) == 0 {
		return
	}
	to, from := bytesOf(dst), at(src)
	var asked, got [ferrySlots]int // of each slot: the bytes on their way, and where they go
	next := 0
	for done := 0; done < len(to); {
		for i, s := range d.ferry { // as many parts on their way as there is room for
			if asked[i] > 0 || next == len(to) {
				continue
			}
			d.ready("downloading", s)
			asked[i], got[i] = min(len(s.host), len(to)-next), next
			d.queue.check("downloading", d.queue.stream.Download(s.host[:asked[i]], unsafe.Add(from,
				next)))
			d.mark("downloading", s)
			next += asked[i]
		}
		for i, s := range d.ferry { // the one that comes first
			if asked[i] > 0 && got[i] == done {
				d.ready("downloading", s)
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
	device *Device
	bytes  int
	memory unsafe.Pointer
	slots  [stagedSlots]*slot
	next   int
}

func (d *Device) newStaged(bytes int) *staged {
	s := &staged{device: d, bytes: bytes, memory: d.malloc(bytes)}
	whole := false
	defer func() {
		if !whole {
			s.close()
		}
	}()
	for i := range s.slots {
		s.slots[i] = d.newSlot(bytes)
	}
	whole = true
	return s
}

// put has fill fill memory of the host, which holds anything, and enqueues its copy to the
// device's, whose address it returns: that is good until the next put. While recording, fill is
// kept, each Replay calls it again, and the address is the recording's own.
func (s *staged) put(fill func(host []byte)) unsafe.Pointer {
	d := s.device
	if s.memory == nil {
		panic(fmt.Sprintf("cuda: put of %d bytes into what has been closed", s.bytes))
	}
	if d.queue.record != nil {
		return d.queue.record.put(s.bytes, fill)
	}
	const doing = "uploading"
	to := s.slots[s.next]
	s.next = (s.next + 1) % len(s.slots)
	d.ready(doing, to)
	fill(to.host)
	d.queue.check(doing, d.queue.stream.Upload(s.memory, to.host))
	d.mark(doing, to)
	return s.memory
}

// close frees both memories; it may be called more than once.
func (s *staged) close() {
	if s.memory == nil {
		return
	}
	s.device.release(s.memory) // which waits for the copies
	s.memory = nil
	for _, slot := range s.slots {
		if slot != nil {
			s.device.closeSlot(slot)
		}
	}
}

// result is a float64 that a call returns later. The kernel that makes it writes it to pinned
// memory, which the device has at the host's addresses.
type result struct {
	device *Device
	slot   *slot
}

func (d *Device) newResult() *result { return &result{d, d.newSlot(resultBytes)} }

const resultBytes = 8

// place is where the kernel writes that is launched next.
func (r *result) place() unsafe.Pointer {
	r.device.queue.owed = true
	return unsafe.Pointer(unsafe.SliceData(r.slot.host))
}

// read waits for the device, unless that has been done since, and returns what was written last.
func (r *result) read() float64 {
	r.device.queue.collect("waiting for a result")
	return math.Float64frombits(binary.LittleEndian.Uint64(r.slot.host))
}

// close frees the memory; it may be called more than once.
func (r *result) close() {
	if r.slot == nil {
		return
	}
	r.device.queue.finish("freeing a result")
	r.device.closeSlot(r.slot)
	r.slot = nil
}
