package allreduce

import (
	"encoding/binary"
	"math"
)

// Combine applies a received chunk to dst as the ring does: ReduceScatter adds, AllGather copies.
// pieces hold len(dst) numbers of e in all. It is exported for benchmarks beside the ring.
func Combine(dst []float32, pieces [][]byte, phase Phase, e Element) {
	combine(dst, pieces, phase, e)
}

// combine adds the payload of a message to dst, or copies it there. The pieces hold len(dst)
// numbers of e in all. A number may be split between two pieces.
func combine(dst []float32, pieces [][]byte, phase Phase, e Element) {
	reduction{dst: dst, phase: phase, element: e}.of(pieces)
}

// reduction says how a received chunk is applied to dst. A ReduceScatter chunk is added; any other
// is copied. With 16-bit elements there are three cases: a partial sum is rounded into out, which
// may begin at dst's own address; a complete sum is rounded into dst and, if out is not nil, into
// out; an all-gather chunk is decoded into dst and, if out is not nil, copied to out.
type reduction struct {
	dst      []float32
	phase    Phase
	element  Element
	rounds   bool
	complete bool
	residual []float32
	out      []byte
}

// of reduces the payload of a message.
func (r reduction) of(pieces [][]byte) {
	var carry [4]byte // first bytes of a number that the next piece completes
	width := r.element.Bytes()
	held, at := 0, 0
	for _, piece := range pieces {
		if held > 0 {
			n := copy(carry[held:width], piece)
			held, piece = held+n, piece[n:]
			if held < width {
				continue
			}
			r.apply(at, carry[:width])
			at++
		}
		whole := len(piece) / width
		r.apply(at, piece[:width*whole])
		at += whole
		held = copy(carry[:], piece[width*whole:])
	}
}

// apply reduces the whole numbers of src. The first of them is number at of the chunk.
func (r *reduction) apply(at int, src []byte) {
	width := r.element.Bytes()
	dst := r.dst[at : at+len(src)/width]
	var out []byte
	if r.out != nil {
		out = r.out[width*at:][:len(src)]
	}
	var residual []float32
	if r.residual != nil {
		residual = r.residual[at:][:len(dst)]
	}
	switch {
	case len(dst) == 0:
	case r.rounds && r.complete:
		addSettle(out, dst, src, residual, r.element)
	case r.rounds:
		addEncode(out, dst, src, residual, r.element)
	case r.phase == ReduceScatter:
		addDecoded(dst, src, r.element)
	default:
		decode(dst, src, r.element)
		copy(out, src)
	}
}

// addLoop is add without vector instructions, four floats at a time.
func addLoop(dst []float32, src []byte) {
	for len(dst) >= 4 && len(src) >= 16 {
		d, s := dst[:4], src[:16]
		d[0] += math.Float32frombits(binary.LittleEndian.Uint32(s[0:]))
		d[1] += math.Float32frombits(binary.LittleEndian.Uint32(s[4:]))
		d[2] += math.Float32frombits(binary.LittleEndian.Uint32(s[8:]))
		d[3] += math.Float32frombits(binary.LittleEndian.Uint32(s[12:]))
		dst, src = dst[4:], src[16:]
	}
	for i := range dst {
		dst[i] += math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}
