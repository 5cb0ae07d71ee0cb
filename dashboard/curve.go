package dashboard

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
)

// curveLimit is the largest number of points in a curve. It is even.
const curveLimit = 800

// A Number is a float64 whose JSON is null if it is not finite.
type Number float64

// MarshalJSON writes six digits, enough for a curve or a table.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', 6, 64), nil
}

// A Point is the mean over a range of steps. Its JSON is [Step, Loss, Rate].
type Point struct {
	Step   int64  // last step of the range
	Loss   Number // nats per token; NaN: it was finite in no step
	Rate   Number // tokens/s
	finite int    // number of steps in the mean Loss
	count  int    // number of steps in the mean Rate
}

// MarshalJSON implements json.Marshaler.
func (p Point) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{p.Step, p.Loss, p.Rate})
}

// add merges the steps of q into p.
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

// curve is a whole run in at most curveLimit points of stride steps each. When there are too many
// points, the stride doubles.
type curve struct {
	stride int64
	points []Point
}

func newCurve() curve { return curve{stride: 1} }

// add adds a step. A job that returned to a checkpoint repeats steps; their old values are dropped.
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

// put merges a point into the last one if both are in one range, or appends it.
func (c *curve) put(p Point) {
	last := len(c.points) - 1
	if last >= 0 && (c.points[last].Step-1)/c.stride == (p.Step-1)/c.stride {
		c.points[last].add(p)
		return
	}
	c.points = append(c.points, p)
}

// thin doubles the stride until there are few enough points.
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

// Curve is the loss and rate over time, from one point on.
type Curve struct {
	From   int     `json:"from"` // index of Points[0] in the whole curve
	Stride int64   `json:"stride"`
	Points []Point `json:"points"`
}

// whole returns all points.
func (c *curve) whole() Curve { return Curve{Stride: c.stride, Points: slices.Clone(c.points)} }

// since returns the points that differ from an older state of the curve.
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
