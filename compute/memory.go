package compute

import "fmt"

// MemoryError is what a Device, or what it made, panics with when it has no memory for what it is
// to make or compute. It may be used on, and what it holds can be freed.
type MemoryError struct {
	What  string // with its shape
	Bytes int64  // that it takes, or more; 0 if that is not known
}

func (e *MemoryError) Error() string {
	if e.Bytes == 0 {
		return "no memory for " + e.What
	}
	return fmt.Sprintf("no memory for %s: %d bytes or more", e.What, e.Bytes)
}

// CatchMemoryError is deferred by a function that may need more memory than there is: it makes a
// panic with a MemoryError the function's error, and is no obstacle to any other.
func CatchMemoryError(err *error) {
	switch p := recover().(type) {
	case nil:
	case *MemoryError:
		*err = p
	default:
		panic(p)
	}
}
