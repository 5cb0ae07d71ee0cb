//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

// lane is a queue beside the Device's own stream, for what may be done at the same time: a stream
// with a scratch of its own. cuBLAS has the Device's stream alone, so in a lane our own kernels do
// all products.
type lane struct {
	stream  *driver.Stream
	scratch unsafe.Pointer
	room    int           // bytes of the scratch
	reached *driver.Event // what was marked last
}

// lanes are those that were made so far, and where the Device's stream lets go of them.
type lanes struct {
	all  []*lane
	fork *driver.Event
}

// makeLanes sees to it that there are so many lanes, each with so many bytes of scratch. Where
// there is no memory for these it returns the lack, and every lane has what it had.
func (d *Device) makeLanes(n, scratch int) *compute.MemoryError {
	const doing = "making a stream for a layer"
	var err error
	if d.lanes.fork == nil {
		d.lanes.fork, err = d.context.NewEvent()
		d.check(doing, err)
	}
	for len(d.lanes.all) < n {
		l := &lane{}
		d.lanes.all = append(d.lanes.all, l)
		l.stream, err = d.context.NewStream()
		d.check(doing, err)
		l.reached, err = d.context.NewEvent()
		d.check(doing, err)
	}
	larger := map[*lane]unsafe.Pointer{}
	for _, l := range d.lanes.all[:n] {
		if scratch <= l.room {
			continue
		}
		p, lack := d.takeScratch(scratch)
		if lack != nil {
			for _, p := range larger {
				d.drop(p)
			}
			return lack
		}
		larger[l] = p
	}
	for l, p := range larger {
		d.on(l, func() { d.replaceScratch(p) })
	}
	return nil
}

// on has f enqueue in a lane what it would in the Device's stream.
func (d *Device) on(l *lane, f func()) {
	m := &d.memory
	stream, blas, scratch, room := d.stream, d.blas, m.scratch, m.room
	d.stream, d.blas, m.scratch, m.room = l.stream, nil, l.scratch, l.room
	defer func() {
		l.scratch, l.room = m.scratch, m.room
		d.stream, d.blas, m.scratch, m.room = stream, blas, scratch, room
	}()
	f()
}

// forkLanes has so many lanes begin behind what was enqueued so far.
func (d *Device) forkLanes(n int) []*lane {
	d.check("beginning lanes", d.lanes.fork.Record(d.stream))
	for _, l := range d.lanes.all[:n] {
		d.check("beginning lanes", l.stream.Await(d.lanes.fork))
	}
	return d.lanes.all[:n]
}

// markLane makes what await waits for all that the lane was given so far.
func (d *Device) markLane(l *lane) { d.check("marking a lane", l.reached.Record(l.stream)) }

// await has what is enqueued next wait for what a lane had been given when it was last marked.
func (d *Device) await(l *lane) { d.check("waiting for a lane", d.stream.Await(l.reached)) }

// joinLanes has what the Device's own stream is given next wait for all that lanes were given,
// marked or not: for what was broken off.
func (d *Device) joinLanes() {
	for _, l := range d.lanes.all {
		if l.reached != nil {
			d.markLane(l)
			d.check("joining lanes", d.own.Await(l.reached))
		}
	}
}

// closeLanes gives the streams and events back. No lane has anything to do.
func (d *Device) closeLanes() {
	for _, l := range d.lanes.all {
		if l.reached != nil {
			d.check("closing", l.reached.Close())
		}
		if l.stream != nil {
			d.check("closing", l.stream.Close())
		}
	}
	if d.lanes.fork != nil {
		d.check("closing", d.lanes.fork.Close())
	}
	d.lanes = lanes{}
}
