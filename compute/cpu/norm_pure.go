//go:build !cgo

package cpu

import (
	"math"

	"rondo/compute"
)

// refLayerNorm is Device.LayerNorm.
func refLayerNorm(n compute.LayerNorm) {
	W := len(n.Weight)
	for r := range n.Rows() {
		x, y := n.X[r*W:][:W], n.Y[r*W:][:W]
		sum, squares := float32(0), float32(0)
		for _, v := range x {
			sum += v
		}
		mean := sum / float32(W)
		for _, v := range x {
			squares += (v - mean) * (v - mean)
		}
		variance := float64(squares / float32(W))
		factor := float32(1 / math.Sqrt(variance+compute.LayerNormEpsilon))
		for j, v := range x {
			y[j] = (v-mean)*factor*n.Weight[j] + n.Bias[j]
		}
		if n.Stats != nil {
			n.Stats[2*r], n.Stats[2*r+1] = mean, factor
		}
	}
}

// refLayerNormBackward is Device.LayerNormBackward.
func refLayerNormBackward(n compute.LayerNorm, dy, dx, dw, db []float32) {
	W := len(n.Weight)
	clear(dw)
	clear(db)
	for r := range n.Rows() {
		x, mean, factor := n.X[r*W:][:W], n.Stats[2*r], n.Stats[2*r+1]
		dy, dx := dy[r*W:][:W], dx[r*W:][:W]
		sum, product := float32(0), float32(0)
		for j, d := range dy {
			z := (x[j] - mean) * factor
			dw[j] += d * z
			db[j] += d
			sum += d * n.Weight[j]
			product += d * n.Weight[j] * z
		}
		sum, product = sum/float32(W), product/float32(W)
		for j, d := range dy {
			z := (x[j] - mean) * factor
			dx[j] = (d*n.Weight[j] - sum - z*product) * factor
		}
	}
}
