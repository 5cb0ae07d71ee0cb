package framing

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"rondo/allreduce"
)

// HeaderBytes is the length of a header. A message is a header and a payload of length numbers. All
// numbers are little endian.
//
//	0  magic "RnD" and the format's version, 2
//	4  phase (1 reduce-scatter, 2 all-gather, 3 carry, 4 heartbeat)
//	5  element of the payload (0 float32, 1 bfloat16, 2 float16)
//	6  flags (1: the message has a checksum)
//	7  reserved, 0
//	8  generation
//	16 sequence
//	24 step (4 bytes)
//	28 length (4 bytes)
//	32 offset
//	40 total
//	48 checksum (4 bytes), or 0: see Seal
//
// A heartbeat has zeros from sequence to total. Heartbeats also travel from the receiver to the
// sender.
const HeaderBytes = checksumAt + checksumBytes

// Version is the version of the handshake and the header.
const Version = 3

// AppendHeader appends the wire form of h. The ring keeps h's numbers in range.
func AppendHeader(dst []byte, h allreduce.Header) []byte {
	dst = append(dst, 'R', 'n', 'D', Version, byte(h.Phase), byte(h.Element), 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Generation))
	dst = binary.LittleEndian.AppendUint64(dst, h.Sequence)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Step))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Length))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Offset))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Total))
	return append(dst, 0, 0, 0, 0)
}

// ParseHeader reads the header of a message of size bytes in all. It refuses headers that no sender
// writes: the result always names a range of a buffer and fits the payload's size.
func ParseHeader(b []byte, size int) (allreduce.Header, error) {
	var h allreduce.Header
	if len(b) < HeaderBytes {
		return h, fmt.Errorf("a message of %d bytes is shorter than its header (%d)",
			size, HeaderBytes)
	}
	if string(b[:3]) != "RnD" { // the comparison allocates nothing
		return h, fmt.Errorf("a message starts with %q, not with %q", b[:3], "RnD")
	}
	if b[3] != Version {
		return h, fmt.Errorf("a message has format %d, this worker reads %d", b[3], Version)
	}
	phase := allreduce.Phase(b[4])
	if phase < allreduce.ReduceScatter || phase > allreduce.Heartbeat {
		return h, fmt.Errorf("a message has %v, not 1 to 4", phase)
	}
	element := allreduce.Element(b[5])
	if element > allreduce.Float16 || b[flagsAt] > flagChecksum || b[7] != 0 {
		return h, fmt.Errorf("a message has %v and flags %#x, not 0 to 2 and at most %d", element,
			b[flagsAt:8], flagChecksum)
	}
	if b[flagsAt] == 0 && !zero(b[checksumAt:HeaderBytes]) {
		return h, fmt.Errorf("a message has the checksum %x, and says that it has none",
			b[checksumAt:HeaderBytes])
	}
	step := binary.LittleEndian.Uint32(b[24:])
	length := binary.LittleEndian.Uint32(b[28:])
	offset := binary.LittleEndian.Uint64(b[32:])
	total := binary.LittleEndian.Uint64(b[40:])
	payload := size - HeaderBytes
	if phase == allreduce.Heartbeat {
		if payload != 0 || element != allreduce.Float32 || !zero(b[16:checksumAt]) {
			return h, fmt.Errorf("a heartbeat of %d bytes says more than that its sender is alive",
				size)
		}
	} else if length == 0 || int64(payload) != int64(element.Bytes())*int64(length) {
		return h, fmt.Errorf("a message says %d numbers of %v and carries %d bytes of them",
			length, element, payload)
	}
	if total > math.MaxInt/4 || offset > total || uint64(length) > total-offset {
		return h, fmt.Errorf("a message says numbers from %d, %d of them, of %d",
			offset, length, total)
	}
	if step >= 2*allreduce.MaxWorld {
		return h, fmt.Errorf("a message says ring step %d, a ring has fewer than %d",
			step, 2*allreduce.MaxWorld)
	}
	h.Generation = allreduce.Generation(binary.LittleEndian.Uint64(b[8:]))
	h.Sequence = binary.LittleEndian.Uint64(b[16:])
	h.Phase, h.Element = phase, element
	h.Step, h.Length = int(step), int(length)
	h.Offset, h.Total = int(offset), int(total)
	return h, nil
}

func zero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}
