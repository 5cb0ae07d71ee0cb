package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Tensor is a named float32 array in row-major order. len(Data) is the product of Shape; an empty
// shape is a scalar.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// pieceBytes is the size of the pieces in which data is read, written and hashed.
const pieceBytes = 1 << 20

// hostIsLittleEndian reports whether a float32 has the same bytes in memory as in a file.
func hostIsLittleEndian() bool {
	return binary.NativeEndian.Uint16([]byte{1, 0}) == 1
}

// floatMemory returns the memory of x as bytes, in the host's byte order.
func floatMemory(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// littleEndianFloats converts x to a file's bytes on a big-endian host.
func littleEndianFloats(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// toFloats converts the little-endian elements of src to dst. It returns an error for an integer
// that float32 cannot hold exactly, and for a dtype without conversion.
func toFloats(dst []float32, src []byte, dtype string) error {
	switch dtype {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case "I64", "U64":
		for i := range dst {
			v := binary.LittleEndian.Uint64(src[8*i:])
			f, exact := integerToFloat(v, dtype == "I64")
			if !exact {
				return fmt.Errorf("holds the %s bits %#x, which float32 cannot hold exactly",
					dtype, v)
			}
			dst[i] = f
		}
	default:
		return fmt.Errorf("is %s; only F32, BF16, I64 and U64 can be read", dtype)
	}
	return nil
}

// integerToFloat converts an integer from its 64 bits. exact reports whether the magnitude's
// significant bits fit into the 24 of a float32.
func integerToFloat(v uint64, signed bool) (f float32, exact bool) {
	negative := signed && int64(v) < 0
	if negative {
		v = -v
	}
	f = float32(v)
	if negative {
		f = -f
	}
	return f, v == 0 || bits.Len64(v)-bits.TrailingZeros64(v) <= 24
}

// dtypeBytes returns the size of one element, or 0 for a dtype that the format does not define.
func dtypeBytes(dtype string) uint64 {
	switch dtype {
	case "BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ":
		return 1
	case "U16", "I16", "F16", "BF16":
		return 2
	case "U32", "I32", "F32":
		return 4
	case "U64", "I64", "F64", "C64":
		return 8
	}
	return 0
}

// elements multiplies the dimensions of a shape. ok is false if one is negative or the product
// overflows an int64.
func elements(shape []int) (n uint64, ok bool) {
	n = 1
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		high, low := bits.Mul64(n, uint64(d))
		if high != 0 || low > math.MaxInt64 {
			return 0, false
		}
		n = low
	}
	return n, true
}
