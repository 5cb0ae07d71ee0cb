package train

import "math"

// rates is a histogram of speeds on a logarithmic scale. Its size does not grow with the run, and
// the order of the values does not matter.
type rates struct {
	counts [rateBuckets]int64
	total  int64
}

// A bucket spans 1 %, so its middle is within 0.5 % of every value in it. All buckets span 1e-3 to
// 1e12 tokens/s. Values beyond count in the outermost buckets.
const (
	rateWidth   = 0.01
	rateLeast   = 1e-3
	rateBuckets = 3472 // ln(1e12/1e-3) / ln(1.01), rounded up
)

func (r *rates) add(rate float64) {
	i := math.Log(rate/rateLeast) / math.Log1p(rateWidth)
	if math.IsNaN(i) {
		return
	}
	r.counts[int(min(max(i, 0), rateBuckets-1))]++
	r.total++
}

// median returns the middle of the median's bucket; 0 if there are no values.
func (r *rates) median() float64 {
	below := int64(0)
	for i, n := range r.counts {
		if below += n; n > 0 && 2*below >= r.total {
			return rateLeast * math.Exp((float64(i)+0.5)*math.Log1p(rateWidth))
		}
	}
	return 0
}
