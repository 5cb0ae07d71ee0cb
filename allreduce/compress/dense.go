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
	d.ring, d.place = ring, place
	if d.lookup != nil {
		d.lookup.join(place.World)
	}
}

func (d *dense) settle(bool) {}

func (d *dense) sum(ctx context.Context, gradient, kept, next []float32) error {
	copy(next, kept)
	if d.lookup == nil {
		return d.sumParts(ctx, part{gradient, next})
	}
	sparse, err := d.lookup.agree(ctx, d.ring, d.place)
	if err != nil {
		return err
	}
	all := part{gradient, next}
	if !sparse {
		return d.sumParts(ctx, all)
	}
	l := d.lookup
	begin, end := l.Offset, l.Offset+l.size()
	l.packed = l.pack(l.packed, gradient)
	touched := part{buf: l.packed}
	if next != nil {
		l.held = l.pack(l.held, next)
		touched.residual = l.held
	}
	err = d.sumParts(ctx, all.cut(0, begin), touched, all.cut(end, len(gradient)))
	if err != nil {
		return err
	}
	l.unpack(gradient, l.packed)
	if next != nil {
		l.unpack(next, l.held)
	}
	return nil
}

// part is a part of a gradient, and what is withheld of it; nil: nothing is.
type part struct{ buf, residual []float32 }

func (p part) cut(begin, end int) part {
	c := part{buf: p.buf[begin:end]}
	if p.residual != nil {
		c.residual = p.residual[begin:end]
	}
	return c
}

// sumParts sums parts, all of them started before the first is waited for.
func (d *dense) sumParts(ctx context.Context, parts ...part) (err error) {
	d.started = d.started[:0]
	for _, p := range parts {
		if len(p.buf) == 0 {
			continue
		}
		var started Pending
		if started, err = d.ring.Start(ctx, p.buf, p.residual); err != nil {
			break
		}
		d.started = append(d.started, started)
	}
	for _, started := range d.started {
		if failed := started.Wait(ctx); err == nil {
			err = failed
		}
	}
	return err
}
