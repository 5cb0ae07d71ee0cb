//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// pageBytes is the least size of a recording's page, and partAlign the alignment of its parts.
const (
	pageBytes = 64 << 10
	partAlign = 256
)

// recording is a CUDA graph, and the host data that each Replay gives it anew. Its host memory is
// on pages, each of which is copied at once, before the graph. The graph itself reads only the
// device's memory, so the host can fill one slot while the device still copies the other.
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

// fill is a part of a page, and the function that fills it.
type fill struct {
	page        *page
	begin, size int
	by          func(host []byte)
}

// unrecordable is the panic of a call that the device cannot record.
type unrecordable struct{ err error }

// Record implements compute.Recorder. It fails if the driver cannot record the work of f.
func (d *Device) Record(f func() error) (_ compute.Recording, err error) {
	q := &d.queue
	q.notRecording("Record")
	r := &recording{owner: &d.memory}
	if err := q.stream.BeginCapture(); err != nil {
		return nil, fmt.Errorf("%s cannot record: %w", q.name, err)
	}
	q.record, q.copyStream.copied = r, false
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
		q.copyStream.join(q)
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

// recordable calls f and returns an unrecordable panic as an error.
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

// abandon ends a failed capture and frees its memory.
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

// put registers data that each Replay fills, and returns its address on the device.
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

// Replay enqueues the work once more, on the current contents of the host's memory.
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
