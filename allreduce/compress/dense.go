package compress

import "context"

// dense sums all numbers, but of a lookup only those of tokens that some rank has looked up, where
// these are fewer. Each number is the sum of the same numbers either way, for all others are zeros;
// in which order a ring of more than two adds them depends on where they lie.
type dense struct {
	lookup  *looked // nil: none
	ring    Ring
	place   Place
	started []Pending
}

func (d *dense) join(ring Ring, place Place) {
	d.ring, d.place, d.started = ring, place, nil
	if d.lookup != nil {
		d.lookup.join(place.World)
	}
}

func (d *dense) settle(bool) {}

// ready begins to sum all but what belongs to the lookup, of which it is not known yet what of it
// travels. What rounding has withheld travels in the next step, whose rate is about the same: it is
// not scaled.
func (d *dense) ready(ctx context.Context, g gradient, begin, end int) error {
	if g.next != nil {
		copy(g.next[begin:end], g.kept[begin:end])
	}
	if d.lookup == nil {
		return d.start(ctx, g.part(begin, end))
	}
	first, last := d.lookup.Offset, d.lookup.Offset+d.lookup.size()
	if err := d.start(ctx, g.part(begin, min(end, first))); err != nil {
		return err
	}
	return d.start(ctx, g.part(max(begin, last), end))
}

func (d *dense) sum(ctx context.Context, g gradient, begin int) (err error) {
	defer func() { d.started = d.started[:0] }()
	if err := d.ready(ctx, g, begin, len(g.sum)); err != nil {
		return err
	}
	sparse := false
	if l := d.lookup; l != nil {
		if sparse, err = l.agree(ctx, d.ring, d.place); err != nil {
			return err
		}
		of := g.part(l.Offset, l.Offset+l.size())
		if sparse {
			of = l.take(g)
		}
		if err := d.start(ctx, of); err != nil {
			return err
		}
	}
	for _, started := range d.started {
		if err := started.Wait(ctx); err != nil {
			return err
		}
	}
	if sparse {
		d.lookup.put(g)
	}
	return nil
}

// part is a part of a gradient, and what is withheld of it; nil: nothing is.
type part struct{ buf, residual []float32 }

// part is empty where it would end before it begins.
func (g gradient) part(begin, end int) part {
	if begin >= end {
		return part{}
	}
	p := part{buf: g.sum[begin:end:end]}
	if g.next != nil {
		p.residual = g.next[begin:end:end]
	}
	return p
}

// start begins to sum a part, behind those before.
func (d *dense) start(ctx context.Context, p part) error {
	if len(p.buf) == 0 {
		return nil
	}
	started, err := d.ring.Start(ctx, p.buf, p.residual)
	if err == nil {
		d.started = append(d.started, started)
	}
	return err
}
