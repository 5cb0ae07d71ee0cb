package compute

import "fmt"

// MemoryError is the panic of a Device, or of an object that it made, that lacks memory. The Device
// stays usable, and its memory can be freed.
type MemoryError struct {
	What  string // with its shape
	Bytes int64  // needed, at least; 0: unknown
	Free  int64  // bytes free on the device; 0: unknown
	Total int64  // bytes of the device; 0: unknown
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

// DeviceError is the panic of a Device, or of an object that it made, that has failed, such as a
// lost GPU or one with damaged memory. The Device cannot compute any more.
type DeviceError struct {
	Device string // its name
	Doing  string // the failed operation
	Err    error
}

func (e *DeviceError) Error() string {
	return fmt.Sprintf("%s failed, %s: %v", e.Device, e.Doing, e.Err)
}

// Unwrap returns the device's own error.
func (e *DeviceError) Unwrap() error { return e.Err }

// Catch is deferred by a function that calls a Device. It turns a panic with a MemoryError or a
// DeviceError into the function's error, and lets other panics pass.
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
