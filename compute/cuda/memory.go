//go:build cuda

package cuda

import (
	"fmt"
	"maps"
	"unsafe"

	"rondo/compute"
)

// memory makes and frees the device's memory, and counts it. It knows the recordings, which may
// still use a scratch that was outgrown.
type memory struct {
	queue     *queue
	blocks    map[unsafe.Pointer]block
	now, peak int64          // bytes of the blocks
	room      unsafe.Pointer // the scratch
	roomBytes int
	outgrown  []outgrown
	slots     map[*slot]struct{}
	// recordings are those that are not closed.
	recordings map[*recording]struct{}
}

// outgrown is a scratch that has been replaced, and the recordings that there were by then, of
// which any may use it.
type outgrown struct {
	scratch unsafe.Pointer
	by      map[*recording]struct{}
}

// block is memory that was made: a tensor, of Alloc, or a workspace, of malloc.
type block struct {
	bytes  int64
	tensor bool
}

func newMemory(q *queue) memory {
	return memory{queue: q, blocks: map[unsafe.Pointer]block{}, slots: map[*slot]struct{}{},
		recordings: map[*recording]struct{}{}}
}

// scratchStep is the unit of the scratch's size.
const scratchStep = 1 << 20

// Bytes returns the bytes of GPU memory that the Device's tensors and workspaces hold, and their
// peak. The driver's own memory, for the context and the kernels, is not included.
func (d *Device) Bytes() (now, peak int64) { return d.memory.now, d.memory.peak }

// Alloc returns n zeros in the GPU's memory.
func (d *Device) Alloc(n int) []float32 {
	if n < 0 {
		panic(fmt.Sprintf("cuda: Alloc of %d elements", n))
	}
	d.queue.notRecording("Alloc")
	if n == 0 {
		return []float32{}
	}
	bytes := 4 * int64(n)
	p := d.memory.take(fmt.Sprintf("a tensor of %d elements", n), bytes, true)
	d.queue.check("zeroing a tensor", d.queue.stream.Zero(p, bytes))
	return unsafe.Slice((*float32)(p), n)
}

// Free gives memory from Alloc back. The slice must begin where Alloc's did.
func (d *Device) Free(x []float32) {
	if len(x) == 0 {
		return
	}
	if b, ok := d.memory.blocks[at(x)]; !ok || !b.tensor {
		panic(fmt.Sprintf("cuda: Free of %d elements at %p, which Alloc did not give", len(x),
			at(x)))
	}
	d.memory.free("freeing a tensor", at(x))
}

// Zero fills x with zeros.
func (d *Device) Zero(x []float32) {
	if len(x) > 0 {
		d.queue.check("zeroing a tensor", d.queue.stream.Zero(at(x), 4*int64(len(x))))
	}
}

// malloc makes a workspace, which holds anything. It may be called while recording.
func (m *memory) malloc(bytes int) unsafe.Pointer {
	return m.take(workspace(bytes), int64(bytes), false)
}

func workspace(bytes int) string { return fmt.Sprintf("a workspace of %d bytes", bytes) }

// part is a piece of a workspace: where its address goes, and its bytes.
type part struct {
	place *unsafe.Pointer
	bytes int
}

// partsBytes is the size of parts laid one behind the other, each on a 256-byte boundary.
func partsBytes(parts []part) (bytes int) {
	for _, p := range parts {
		bytes += alignedBytes(p.bytes)
	}
	return bytes
}

func alignedBytes(n int) int { return (n + 255) &^ 255 }

// cut makes a workspace of these parts.
func (m *memory) cut(parts []part) unsafe.Pointer {
	memory, lack := m.tryCut(parts)
	if lack != nil {
		panic(lack)
	}
	return memory
}

// tryCut is cut that returns the lack of memory.
func (m *memory) tryCut(parts []part) (unsafe.Pointer, *compute.MemoryError) {
	bytes := partsBytes(parts)
	memory, lack := m.tryTake(workspace(bytes), int64(bytes), false)
	if lack != nil {
		return nil, lack
	}
	next := memory
	for _, p := range parts {
		*p.place = next
		next = unsafe.Add(next, alignedBytes(p.bytes))
	}
	return memory, nil
}

// orUndo calls undo if its caller panics, for lack of memory for a part of its object.
func orUndo(undo func()) {
	if p := recover(); p != nil {
		undo()
		panic(p)
	}
}

// release frees a workspace, unless Close has; nil does nothing. It waits for running work.
func (m *memory) release(p unsafe.Pointer) {
	if p == nil || m.queue.context == nil {
		return
	}
	if b, ok := m.blocks[p]; !ok || b.tensor {
		panic(fmt.Sprintf("cuda: release of %p, which malloc did not give", p))
	}
	m.free("freeing a workspace", p)
}

// take makes a block and counts it.
func (m *memory) take(what string, bytes int64, tensor bool) unsafe.Pointer {
	p, lack := m.tryTake(what, bytes, tensor)
	if lack != nil {
		panic(lack)
	}
	return p
}

// tryTake is take that returns the lack of memory.
func (m *memory) tryTake(what string, bytes int64, tensor bool) (unsafe.Pointer,
	*compute.MemoryError) {
	if bytes < 1 {
		panic(fmt.Sprintf("cuda: %s has no memory", what))
	}
	p, err := m.queue.context.Alloc(bytes)
	if err != nil {
		return nil, m.queue.lack(what, bytes, err)
	}
	m.blocks[p] = block{bytes, tensor}
	m.now += bytes
	m.peak = max(m.peak, m.now)
	return p, nil
}

// free gives a block back, once all that may use it is done.
func (m *memory) free(doing string, p unsafe.Pointer) {
	m.queue.finish(doing)
	m.drop(p)
}

// drop gives back a block that nothing uses.
func (m *memory) drop(p unsafe.Pointer) {
	b := m.blocks[p]
	delete(m.blocks, p)
	m.now -= b.bytes
	if !m.queue.broken {
		m.queue.check("freeing memory", m.queue.context.Free(p))
	}
}

// scratch returns memory with arbitrary contents, valid until the next call of scratch. It grows to
// the largest request and never shrinks.
func (m *memory) scratch(bytes int) unsafe.Pointer {
	if bytes <= m.roomBytes {
		return m.room
	}
	room := (bytes + scratchStep - 1) / scratchStep * scratchStep
	larger := m.take(fmt.Sprintf("a scratch of %d bytes", room), int64(room), false)
	old := m.room
	m.room, m.roomBytes = larger, room
	if old == nil {
		return larger
	}
	// A graph has the addresses of the memory that it was recorded with.
	by := maps.Clone(m.recordings)
	if m.queue.record != nil {
		by[m.queue.record] = struct{}{}
	}
	if len(by) > 0 {
		m.outgrown = append(m.outgrown, outgrown{old, by})
		return larger
	}
	m.free("freeing a scratch", old)
	return larger
}

// dropOutgrown frees the scratches that only this recording could still use, which is no more.
func (m *memory) dropOutgrown(r *recording) {
	var kept []outgrown
	for _, o := range m.outgrown {
		if delete(o.by, r); len(o.by) > 0 {
			kept = append(kept, o)
			continue
		}
		m.free("freeing a scratch", o.scratch)
	}
	m.outgrown = kept
}

// close frees all remaining memory.
func (m *memory) close() {
	for p := range m.blocks {
		m.drop(p)
	}
	for s := range m.slots {
		m.closeSlot(s)
	}
}
