package compute

import "fmt"

// MemoryError is what a Device, or what it made, panics with when it has no memory for what it is
// to make or compute. It may be used on, and what it holds can be freed.
type MemoryError struct {
	What  string // with its shape
	Bytes int64  // that it takes, or more; 0 if that is not known
	Free  int64  // bytes that the device has left; 0 if that is not known
	Total int64  // bytes of the device; 0 if that is not known
}

func (e *MemoryError) Error() string {
	text := "no memory for " + e.What
	if e.Bytes > 0 {
		text += fmt.Sprintf(": %d bytes or more", e.Bytes)
	}
	if e.Total > 0 {
		text += fmt.Sprintf("; %d of the device's %d are free", e.Free, e.Total)
	}
	return text
}

// DeviceError is what a Device, or what it made, panics with when it has failed: a GPU that is
// gone, or whose memory is damaged. Nothing can be computed on it any more.
type DeviceError struct {
	Device string // its name
	Doing  string // what it was asked for
	Err    error
}

func (e *DeviceError) Error() string {
	return fmt.Sprintf("%s failed, %s: %v", e.Device, e.Doing, e.Err)
}

// Unwrap returns what the device said.
func (e *DeviceError) Unwrap() error { return e.Err }

// Catch is deferred by a function that calls a Device: it makes a panic with a MemoryError or a
// DeviceError the function's error, and is no obstacle to any other.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case *MemoryError:
		*err = p
	case *DeviceError:
		*err = p
	default:
		panic(p)
	}
}
