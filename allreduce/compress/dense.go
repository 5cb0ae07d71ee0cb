package compress

import (
	"context"
	"time"
)

// dense sums all numbers. Of a lookup it sums only the tokens that some rank has touched, if these
// are fewer than all: the other numbers are zero on every rank. Packing may change the order in
// which a ring of more than two ranks adds.
type dense struct {
	lookup  *touchedTokens // nil: none
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

func (d *dense) renew(int64) {
	if d.lookup != nil {
		d.lookup.renew()
	}
}

// ready starts all sums but the lookup's: its touched tokens are not known yet. The withheld
// rounding errors are not scaled, because the next step's rate is about the same.
func (d *dense) ready(
	ctx context.Context, g gradient, begin, end int, ended *time.Time,
) error {
	if g.next != nil {
		copy(g.next[begin:end], g.kept[begin:end])
	}
	if d.lookup == nil {
		return d.start(ctx, g.part(begin, end), ended)
	}
	first, last := d.lookup.Offset, d.lookup.Offset+d.lookup.size()
	if err := d.start(ctx, g.part(begin, min(end, first)), ended); err != nil {
		return err
	}
	return d.start(ctx, g.part(max(begin, last), end), ended)
}

func (d *dense) sum(ctx context.Context, g gradient, begin int) (err error) {
	defer func() { d.started = d.started[:0] }()
	if err := d.ready(ctx, g, begin, len(g.sum), nil); err != nil {
		return err
	}
	sparse := false
	if l := d.lookup; l != nil {
		if sparse, err = l.exchange(ctx, d.ring, d.place); err != nil {
			return err
		}
		of := g.part(l.Offset, l.Offset+l.size())
		if sparse {
			of = l.packTouched(g)
		}
		if err := d.start(ctx, of, nil); err != nil {
			return err
		}
	}
	for _, started := range d.started {
		if err := started.Wait(ctx); err != nil {
			return err
		}
	}
	if sparse {
		d.lookup.unpackTouched(g)
	}
	return nil
}

// part is a range of a gradient with its residual; residual is nil if nothing is withheld.
type part struct{ buf, residual []float32 }

// part returns an empty part if begin >= end.
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

func (d *dense) start(ctx context.Context, p part, ended *time.Time) error {
	if len(p.buf) == 0 {
		return nil
	}
	started, err := d.ring.Start(ctx, p.buf, p.residual, ended)
	if err == nil {
		d.started = append(d.started, started)
	}
	return err
}
