package compress

// addScaled adds a*x to dst, of equal length. Each product is rounded before the addition, so that
// all processors get the same bits.
func addScaled(dst, x []float32, a float32) {
	n := addScaledVector(dst, x, a)
	dst, x = dst[n:], x[n:len(dst)]
	for i, v := range x {
		dst[i] += float32(a * v)
	}
}

// dot returns the inner product of x and y, of equal length. The order of its additions depends on
// the processor.
func dot(x, y []float32) float32 {
	n, sum := dotVector(x, y)
	x, y = x[n:], y[n:len(x)]
	for i, v := range x {
		sum += float32(v * y[i])
	}
	return sum
}
