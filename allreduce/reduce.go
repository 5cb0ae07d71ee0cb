package allreduce

import (
	"encoding/binary"
	"math"
)

// Combine does to dst what the ring does with a chunk of phase, ReduceScatter or AllGather, whose
// payload is pieces, 4*len(dst) bytes in all: for what is to be measured beside the ring.
func Combine(dst []float32, pieces [][]byte, phase Phase) { combine(dst, pieces, phase) }

// combine adds the payload of a message to dst, or copies it there. The pieces hold len(dst)
// floats in all; a float may be split between pieces.
func combine(dst []float32, pieces [][]byte, phase Phase) {
	var carry [4]byte // the head of a float whose tail is in the next piece
	held, at := 0, 0
	for _, piece := range pieces {
		if held > 0 {
			n := copy(carry[held:], piece)
			held, piece = held+n, piece[n:]
			if held < 4 {
				continue
			}
			apply(dst[at:at+1], carry[:], phase)
			at++
		}
		whole := len(piece) / 4
		apply(dst[at:at+whole], piece[:4*whole], phase)
		at += whole
		held = copy(carry[:], piece[4*whole:])
	}
}

// apply adds or copies 4*len(dst) bytes of whole floats.
func apply(dst []float32, src []byte, phase Phase) {
	switch {
	case len(dst) == 0:
	case phase == ReduceScatter:
		add(dst, src)
	default:
		copy(Bytes(dst), src)
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
