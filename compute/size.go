package compute

// Size is how many bytes something takes of a device's memory.
type Size struct {
	Own    int64 // for itself
	Shared int64 // of the room in which a device works, which all that it does shares
}

// And is the size of both.
func (s Size) And(t Size) Size { return Size{s.Own + t.Own, max(s.Shared, t.Shared)} }

// Total is all of it.
func (s Size) Total() int64 { return s.Own + s.Shared }

// Sizer says how much memory a Device takes for what it makes and does, and makes nothing.
type Sizer interface {
	// TensorSize is of Alloc.
	TensorSize(n int) Size
	// RecurrentSize is of NewRecurrent and its calls, whose input is token ids or dense rows and
	// has no Lengths: those may take a little more.
	RecurrentSize(s RecurrentShape, inference, ids bool) Size
	// OutputSize is of NewOutput and its calls.
	OutputSize(s OutputShape) Size
	// GemmSize is of Gemm.
	GemmSize(m, n, k int) Size
}
