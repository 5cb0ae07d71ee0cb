package compress

// addScaled adds a*x to dst, which are of one length. Each product is rounded before it is added,
// so that all processors get the same bits.
func addScaled(dst, x []float32, a float32) {
	n := addScaledVector(dst, x, a)
	dst, x = dst[n:], x[n:len(dst)]
	for i, v := range x {
		dst[i] += float32(a * v)
	}
}

// dot is the sum of the products of x and y, which are of one length, in an order of its own.
func dot(x, y []float32) float32 {
	n, sum := dotVector(x, y)
	x, y = x[n:], y[n:len(x)]
	for i, v := range x {
		sum += float32(v * y[i])
	}
	return sum
}
