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

// Sizer returns the memory that a Device takes for its objects and calls, without making them.
type Sizer interface {
	// TensorSize is the memory of Alloc.
	TensorSize(n int) Size
	// RecurrentSize is the memory of NewRecurrent and its calls, with token ids or dense rows as
	// input and without Lengths, which may take a little more.
	RecurrentSize(s RecurrentShape, inference, ids bool) Size
	// OutputSize is the memory of NewOutput and its calls.
	OutputSize(s OutputShape) Size
	// GemmSize is the memory of Gemm.
	GemmSize(m, n, k int) Size
}
