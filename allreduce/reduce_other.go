//go:build !amd64

package allreduce

// add adds src, little-endian floats at any address, to dst.
func add(dst []float32, src []byte) { addLoop(dst, src) }
