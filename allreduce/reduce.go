package allreduce

import (
	"encoding/binary"
	"math"
)

// Combine does to dst what the ring does with a chunk of phase, ReduceScatter or AllGather, whose
// payload is pieces, len(dst) numbers of e in all: for what is to be measured beside the ring.
func Combine(dst []float32, pieces [][]byte, phase Phase, e Element) {
	combine(dst, pieces, phase, e)
}

// combine adds the payload of a message to dst, or copies it there. The pieces hold len(dst)
// numbers of e in all; a number may be split between pieces.
func combine(dst []float32, pieces [][]byte, phase Phase, e Element) {
	var carry [4]byte // the head of a number whose tail is in the next piece
	width := e.Bytes()
	held, at := 0, 0
	for _, piece := range pieces {
		if held > 0 {
			n := copy(carry[held:width], piece)
			held, piece = held+n, piece[n:]
			if held < width {
				continue
			}
			apply(dst[at:at+1], carry[:width], phase, e)
			at++
		}
		whole := len(piece) / width
		apply(dst[at:at+whole], piece[:width*whole], phase, e)
		at += whole
		held = copy(carry[:], piece[width*whole:])
	}
}

// apply adds or copies len(dst) whole numbers.
func apply(dst []float32, src []byte, phase Phase, e Element) {
	switch {
	case len(dst) == 0:
	case phase == ReduceScatter:
		addDecoded(dst, src, e)
	default:
		decode(dst, src, e)
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
