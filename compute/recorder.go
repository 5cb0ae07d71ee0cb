package compute

// Recorder is a Device that can record a sequence of calls and repeat it without the host's cost of
// the calls: a CUDA graph.
type Recorder interface {
	Device
	// Record runs f, which calls the device and its objects, and returns the work of these calls
	// without doing it. f must not make or free anything, nor read from the device. If the device
	// cannot record, Record returns an error; f may have been called.
	Record(f func() error) (Recording, error)
}

// Recording is the work of a sequence of calls.
type Recording interface {
	// Replay repeats the calls with the same arguments: numbers with their old values, slices and a
	// Clipper's pointers with their current contents, host memory included.
	Replay()
	// Close frees the recording.
	Close()
}

// Stager is a Device with its own memory that can copy between it and host memory during other
// work.
type Stager interface {
	Device
	// AllocHost returns n zeros of page-locked host memory, which the device can read and write;
	// FreeHost frees it.
	AllocHost(n int) []float32
	FreeHost(x []float32)
	// StartDownload copies src to dst, which is AllocHost's memory, after the work queued so far
	// and during later work. wait waits for the copy; until then src must not change. It may be
	// recorded: wait then waits for the last Replay.
	StartDownload(dst, src []float32) (wait func())
	// StartUpload copies src, which is AllocHost's memory, to dst before later work. src must not
	// change until a call has waited for the device.
	StartUpload(dst, src []float32)
}

// Staged is a part of a gradient, from the previous part's End to its own, in transfer to memory of
// Stager.AllocHost. Wait waits for the transfer; until then the gradient must not change.
type Staged struct {
	End  int
	Wait func()
}
