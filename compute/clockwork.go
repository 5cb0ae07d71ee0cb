package compute

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Periods are those of a Clockwork layer's groups of units, in ascending order; zeros follow them.
// Units are dealt to the groups in order, as evenly as their number allows.
type Periods [8]int32

// DefaultPeriods returns the default of RecurrentShape.Periods.
func DefaultPeriods() Periods { return Periods{1, 2, 4, 8} }

// maxPeriod is the largest period, in steps. Float32 counts to it exactly.
const maxPeriod = 1 << 20

// ParsePeriods parses periods, which commas separate: "1,2,4,8". "" is zero.
func ParsePeriods(text string) (p Periods, err error) {
	if text == "" {
		return p, nil
	}
	fields := strings.Split(text, ",")
	if len(fields) > len(p) {
		return p, fmt.Errorf("--periods %s: give at most %d", text, len(p))
	}
	for i, field := range fields {
		n, err := strconv.ParseInt(strings.TrimSpace(field), 10, 32)
		if err != nil || n < 1 || n > maxPeriod || i > 0 && int32(n) <= p[i-1] {
			return Periods{}, fmt.Errorf("--periods %s: give whole numbers from 1 to %d that "+
				"ascend, as 1,2,4,8", text, maxPeriod)
		}
		p[i] = int32(n)
	}
	return p, nil
}

// Groups is the number of periods.
func (p Periods) Groups() (n int) {
	for n < len(p) && p[n] > 0 {
		n++
	}
	return n
}

// String returns the text that ParsePeriods parses.
func (p Periods) String() string {
	var all []string
	for _, period := range p[:p.Groups()] {
		all = append(all, strconv.Itoa(int(period)))
	}
	return strings.Join(all, ",")
}

// periods are those of a Clockwork layer.
func (s RecurrentShape) periods() Periods { return cmp.Or(s.Periods, DefaultPeriods()) }

// Period is that of a unit of a Clockwork layer.
func (s RecurrentShape) Period(unit int) float32 {
	p := s.periods()
	return float32(p[unit*p.Groups()/s.H])
}

// UnitPeriods are the periods of all units; nil: the cell has none.
func (s RecurrentShape) UnitPeriods() (all []float32) {
	for unit := 0; s.Cell == Clockwork && unit < s.H; unit++ {
		all = append(all, s.Period(unit))
	}
	return all
}

// firstOf is the first unit of a group.
func (s RecurrentShape) firstOf(group int) int {
	groups := s.periods().Groups()
	return (group*s.H + groups - 1) / groups
}

// Removed reports whether a Clockwork layer has no connection from one unit to another: a group
// reads itself and those with longer periods.
func (s RecurrentShape) Removed(from, to int) bool { return s.Period(from) < s.Period(to) }

// clockwork is a device's Clockwork layer without the connections that are removed.
type clockwork struct {
	Recurrent
	dev   Device
	shape RecurrentShape
	hh    []float32 // W_hh, [H, H], with zeros in their places
	none  []int32   // ids of rows of zeros
}

func newClockwork(dev Device, s RecurrentShape, inference bool) *clockwork {
	c := &clockwork{dev: dev, shape: s, hh: dev.Alloc(s.H * s.H), none: make([]int32, s.H)}
	for i := range c.none {
		c.none[i] = -1
	}
	defer func() {
		if c.Recurrent == nil { // no memory for it
			dev.Free(c.hh)
		}
	}()
	c.Recurrent = dev.NewRecurrent(s, inference)
	return c
}

// remove zeroes the removed connections of W_hh, or of its gradient.
func (c *clockwork) remove(hh []float32) {
	s := c.shape
	for group := 1; group < s.periods().Groups(); group++ {
		from, to := s.firstOf(group), s.firstOf(group+1)
		rows := whole(hh[from*s.H:to*s.H], s.H)
		if from < to {
			c.dev.CopyRows(rows, whole(c.hh, s.H), to-from, from, c.none[:to-from], false)
		}
	}
}

// Forward implements Recurrent.
func (c *clockwork) Forward(w RecurrentWeights, in RecurrentInput, state RecurrentState,
	y []float32, out RecurrentState) {
	copyMatrix(c.dev, c.hh, w.HH, c.shape.H)
	c.remove(c.hh)
	w.HH = c.hh
	c.Recurrent.Forward(w, in, state, y, out)
}

// Backward implements Recurrent.
func (c *clockwork) Backward(dy []float32, dout RecurrentState, dw RecurrentWeights,
	dx []float32, dstate RecurrentState) {
	c.Recurrent.Backward(dy, dout, dw, dx, dstate)
	c.remove(dw.HH)
}

// Close implements Recurrent.
func (c *clockwork) Close() {
	c.Recurrent.Close()
	c.dev.Free(c.hh)
	c.hh = nil
}
