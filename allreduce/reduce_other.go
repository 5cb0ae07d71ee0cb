//go:build !amd64

package allreduce

// add adds the little-endian floats of src, at any address, to dst.
func add(dst []float32, src []byte) { addLoop(dst, src) }
