package dashboard

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// curveLimit is how many points a curve has at most. It is even.
const curveLimit = 800

// A Number is written as null where JSON has no number for it.
type Number float64

// MarshalJSON writes six digits, as many as a curve or a table shows.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', 6, 64), nil
}

// A Point is the mean over the steps of one stretch of a curve. In JSON it is [Step, Loss,
// Rate].
type Point struct {
	Step   int64  // the last of the stretch
	Loss   Number // nats per token; NaN: no step of it was finite
	Rate   Number // tokens/s
	finite int    // steps that Loss is the mean of
	count  int    // steps that Rate is the mean of
}

// MarshalJSON implements json.Marshaler.
func (p Point) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{p.Step, p.Loss, p.Rate})
}

// add takes another stretch in.
func (p *Point) add(q Point) {
	p.Step = q.Step
	p.Loss, p.finite = mean(p.Loss, p.finite, q.Loss, q.finite)
	p.Rate, p.count = mean(p.Rate, p.count, q.Rate, q.count)
}

func mean(a Number, countA int, b Number, countB int) (Number, int) {
	switch {
	case countB == 0:
		return a, countA
	case countA == 0:
		return b, countB
	}
	return a + (b-a)*Number(countB)/Number(countA+countB), countA + countB
}

// curve is a whole run in at most curveLimit points, each of stride steps: when they are too many,
// the stride doubles.
type curve struct {
	stride int64
	points []Point
}

func newCurve() curve { return curve{stride: 1} }

// add takes a step. A job that went back to a checkpoint does steps again: what was known of them
// goes.
func (c *curve) add(step int64, loss, rate float64) {
	keep := len(c.points)
	for keep > 0 && c.points[keep-1].Step >= step {
		keep--
	}
	c.points = c.points[:keep]
	p := Point{Step: step, Loss: Number(loss), Rate: Number(rate), finite: 1, count: 1}
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		p.Loss, p.finite = Number(math.NaN()), 0
	}
	if math.IsNaN(rate) || math.IsInf(rate, 0) || rate <= 0 {
		p.Rate, p.count = Number(math.NaN()), 0
	}
	c.put(p)
	if len(c.points) > curveLimit {
		c.thin()
	}
}

// put adds a stretch to the last one, or starts another.
func (c *curve) put(p Point) {
	last := len(c.points) - 1
	if last >= 0 && (c.points[last].Step-1)/c.stride == (p.Step-1)/c.stride {
		c.points[last].add(p)
		return
	}
	c.points = append(c.points, p)
}

// thin doubles the stride until the points are few enough.
func (c *curve) thin() {
	for len(c.points) > curveLimit {
		old := c.points
		c.points = make([]Point, 0, curveLimit)
		c.stride *= 2
		for _, p := range old {
			c.put(p)
		}
	}
}

// Curve is how loss and rate went, from one point on.
type Curve struct {
	From   int     `json:"from"` // index of the first of Points in the whole curve
	Stride int64   `json:"stride"`
	Points []Point `json:"points"`
}

// whole returns all points.
func (c *curve) whole() Curve { return Curve{Stride: c.stride, Points: slices.Clone(c.points)} }

// since returns what of the curve is not in an older state of it.
func (c Curve) since(old Curve) Curve {
	if c.Stride != old.Stride {
		return c
	}
	same := 0
	for same < min(len(c.Points), len(old.Points)) && c.Points[same].equal(old.Points[same]) {
		same++
	}
	return Curve{From: same, Stride: c.Stride, Points: c.Points[same:]}
}

func (p Point) equal(q Point) bool {
	same := func(a, b Number) bool {
		return a == b || math.IsNaN(float64(a)) && math.IsNaN(float64(b))
	}
	return p.Step == q.Step && p.finite == q.finite && p.count == q.count &&
		same(p.Loss, q.Loss) && same(p.Rate, q.Rate)
}
