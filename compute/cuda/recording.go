//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// pageBytes is the least that a recording's page holds, and what its parts' addresses are multiples
// of.
const (
	pageBytes = 64 << 10
	partAlign = 256
)

// recording is a CUDA graph, and what the host has to give it anew for each Replay. Its host memory
// is on pages, each of which is copied at once, before the graph: the graph itself reads only the
// device's memory, so that the host fills one slot while the device has yet to copy the other.
type recording struct {
	owner *memory
	graph *driver.Graph
	pages []*page
	fills []fill
	next  int // the slot of every page that the next Replay fills
}

type page struct {
	memory unsafe.Pointer
	slots  [stagedSlots]*slot
	used   int
}

// fill is a part of a page, and who fills it.
type fill struct {
	page        *page
	begin, size int
	by          func(host []byte)
}

// unrecordable is what a call panics with that the device cannot record.
type unrecordable struct{ err error }

// Record has f call the device and what it has made, and returns the work of those calls, which has
// not been done. It fails where the driver cannot record what f does.
func (d *Device) Record(f func() error) (_ compute.Recording, err error) {
	q := &d.queue
	q.notRecording("Record")
	r := &recording{owner: &d.memory}
	if err := q.stream.BeginCapture(); err != nil {
		return nil, fmt.Errorf("%s cannot record: %w", q.name, err)
	}
	q.record, q.aside.copied = r, false
	whole := false
	defer func() {
		if !whole {
			r.abandon()
		}
		if cannot, ok := errors.AsType[*unrecordable](err); ok {
			err = fmt.Errorf("%s cannot record: %w", q.name, cannot.err)
		}
	}()
	err = recordable(func() error {
		if err := f(); err != nil {
			return err
		}
		q.aside.join(q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	graph, err := q.stream.EndCapture()
	q.record = nil
	if err != nil {
		return nil, &unrecordable{err}
	}
	r.graph, whole = graph, true
	d.memory.recordings[r] = struct{}{}
	return r, nil
}

// recordable calls f, and returns what it cannot record as an error.
func recordable(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *unrecordable:
			err = p
		default:
			panic(p)
		}
	}()
	return f()
}

func (u *unrecordable) Error() string { return u.err.Error() }

// abandon ends a capture that came to nothing, and frees what was made for it.
func (r *recording) abandon() {
	q := r.owner.queue
	if q.record != nil {
		graph, err := q.stream.EndCapture()
		q.record = nil
		if err == nil {
			q.check("abandoning a recording", graph.Close())
		}
	}
	r.free()
}

// put keeps what each Replay fills, and returns where the device will have it.
func (r *recording) put(size int, by func(host []byte)) unsafe.Pointer {
	m := r.owner
	room := (size + partAlign - 1) / partAlign * partAlign
	var p *page
	if n := len(r.pages); n > 0 && r.pages[n-1].used+room <= len(r.pages[n-1].slots[0].host) {
		p = r.pages[n-1]
	} else {
		p = &page{}
		r.pages = append(r.pages, p)
		bytes := max(room, pageBytes)
		p.memory = m.malloc(bytes)
		for i := range p.slots {
			p.slots[i] = m.newSlot(bytes)
		}
	}
	part := fill{p, p.used, size, by}
	r.fills = append(r.fills, part)
	p.used += room
	by(part.of(0))
	return unsafe.Add(p.memory, part.begin)
}

// of is the part in one of its page's slots.
func (f fill) of(slot int) []byte {
	return f.page.slots[slot].host[f.begin : f.begin+f.size : f.begin+f.size]
}

// Replay enqueues the work once more, on what the host's memory holds now.
func (r *recording) Replay() {
	const doing = "replaying"
	q := r.owner.queue
	q.notRecording(doing)
	if _, ok := r.owner.recordings[r]; !ok {
		panic("cuda: Replay of a recording that has been closed")
	}
	at := r.next
	r.next = (at + 1) % stagedSlots
	for _, p := range r.pages {
		p.slots[at].ready(q, doing)
	}
	for _, f := range r.fills {
		f.by(f.of(at))
	}
	for _, p := range r.pages {
		q.check(doing, q.stream.Upload(p.memory, p.slots[at].host[:p.used]))
		p.slots[at].mark(q, doing)
	}
	q.owed = true
	if err := q.stream.Replay(r.graph); err != nil {
		q.refused("a recording", 0, err)
	}
}

// Close frees the recording, unless the device's has; it may be called more than once.
func (r *recording) Close() {
	q := r.owner.queue
	if _, ok := r.owner.recordings[r]; !ok {
		return
	}
	const doing = "closing a recording"
	q.finish(doing)
	delete(r.owner.recordings, r)
	if !q.broken {
		q.check(doing, r.graph.Close())
	}
	r.free()
}

// free gives back the pages, and the outgrown scratches that no other recording can use.
func (r *recording) free() {
	m := r.owner
	for _, p := range r.pages {
		for _, s := range p.slots {
			if s != nil {
				m.closeSlot(s)
			}
		}
		m.release(p.memory)
	}
	r.pages, r.fills = nil, nil
	m.dropOutgrown(r)
}
