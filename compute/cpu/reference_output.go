package cpu

import (
	"math"

	"rondo/compute"
)

// refHead is the reference of the output layer: N rows of width H to V logits, in chunks.
type refHead[F float] struct {
	compute.OutputShape
	rows   rows[F]
	chunk  int
	logits []F // [chunk, V]; then their gradient
}

func newRefHead[F float](s compute.OutputShape, r rows[F], chunk int) *refHead[F] {
	return &refHead[F]{OutputShape: s, rows: r, chunk: chunk, logits: make([]F, chunk*s.V)}
}

// run returns the summed loss, and the gradients unless dx is nil.
func (o *refHead[F]) run(x, w, b []F, targets []int32, scale F, dx, dw, db []F) float64 {
	loss := 0.0
	clear(dx)
	clear(dw)
	clear(db)
	for first := 0; first < len(targets); first += o.chunk {
		n := min(o.chunk, len(targets)-first)
		logits := o.logits[:n*o.V]
		rows := x[first*o.H : (first+n)*o.H]
		clear(logits)
		if b != nil {
			addRow(logits, b)
		}
		o.rows.timesTransposed(n, o.V, o.H, rows, o.H, w, logits, o.V)
		for i := range n {
			smoothing := F(o.Smoothing)
			if dx == nil {
				smoothing = 0
			}
			loss += softmaxRow(logits[i*o.V:(i+1)*o.V], targets[first+i], scale, smoothing)
		}
		if dx == nil {
			continue
		}
		o.rows.times(n, o.H, o.V, logits, o.V, w, dx[first*o.H:(first+n)*o.H])
		o.rows.transposedTimes(o.V, o.H, n, logits, o.V, rows, dw)
		if db != nil {
			for i, v := range logits {
				db[i%o.V] += v
			}
		}
	}
	return loss
}

// softmaxRow returns the cross-entropy of softmax(row) and what is wanted, (1-smoothing)
// onehot(target) + smoothing/V, and overwrites row with the gradient of scale times that: scale
// (softmax(row) - wanted). Both are zero if the target is negative.
func softmaxRow[F float](row []F, target int32, scale, smoothing F) float64 {
	if target < 0 {
		clear(row)
		return 0
	}
	largest := row[0]
	for _, v := range row {
		largest = max(largest, v)
	}
	wanted, sum, total := float64(row[target]-largest), F(0), 0.0
	for i, v := range row {
		total += float64(v - largest)
		row[i] = F(math.Exp(float64(v - largest)))
		sum += row[i]
	}
	for i := range row {
		row[i] = row[i]*(scale/sum) - scale*smoothing/F(len(row))
	}
	row[target] -= scale * (1 - smoothing)
	if smoothing > 0 {
		wanted += float64(smoothing) * (total/float64(len(row)) - wanted)
	}
	return math.Log(float64(sum)) - wanted
}
