package model

import (
	"math"
	"unsafe"

	"rondo/compute"
)

// recordings are what a segment's runs ask of a device that can record, kept to be done again at
// once. A run's work is that of its chunks, in parts: what each chunk reads is loaded before its
// part is replayed. A recording is of one Scale and one Stage, so there are none until a run has
// those of the one before, by which time kernels have made their room; others drop them.
type recordings struct {
	dev   compute.Recorder // nil: nothing is recorded
	scale float32          // of the last run that came to its end; NaN: none has
	stage *float32         // where that run's gradients were staged
	use   bool             // in this run
	kept  map[part]recorded
	// failed is why the device could not record: nothing is recorded any more.
	failed error
}

// recorded is a part's work, and what of it is waited for.
type recorded struct {
	compute.Recording
	begun copies
}

// copies are what a part's work has begun to copy to host memory.
type copies struct {
	state     func() // waits for the state after the segment; nil: it is not copied
	gradients []Staged
}

// part is a chunk's share of a run: the forward pass alone, or both.
type part struct {
	chunk int
	both  bool
	// turned says that the states before and after the segment have changed places, as they do in
	// every run, so that there are two recordings of the chunks that touch them.
	turned bool
}

// newRecordings keeps none yet.
func newRecordings(dev compute.Device) recordings {
	recorder, _ := dev.(compute.Recorder)
	return recordings{dev: recorder, scale: float32(math.NaN()), kept: map[part]recorded{}}
}

// begin decides whether the parts of a run are replayed. A hook cannot be.
func (r *recordings) begin(in SegmentInput) {
	same := in.Scale == r.scale && unsafe.SliceData(in.Stage) == r.stage
	r.use = r.dev != nil && same && in.BeforeBackward == nil
	if !same {
		r.close()
	}
}

// end notes that a run has come to its end.
func (r *recordings) end(in SegmentInput) {
	r.scale, r.stage = in.Scale, unsafe.SliceData(in.Stage)
}

// do does a part's work: by replaying it, once it has been recorded, or by calling work. Where the
// device cannot record it, nothing is recorded any more.
func (r *recordings) do(p part, work func() (copies, error)) (begun copies, err error) {
	if !r.use {
		return work()
	}
	kept, ok := r.kept[p]
	if !ok {
		if kept, err = r.record(work); err != nil {
			r.close()
			r.dev, r.use, r.failed = nil, false, err
			return work()
		}
		r.kept[p] = kept
	}
	kept.Replay()
	return kept.begun, nil
}

// record records a part's work. A lack of memory for the recording is no lack for the work.
func (r *recordings) record(work func() (copies, error)) (made recorded, err error) {
	defer compute.Catch(&err)
	made.Recording, err = r.dev.Record(func() (err error) {
		made.begun, err = work()
		return err
	})
	return made, err
}

// close frees what is kept.
func (r *recordings) close() {
	for p, kept := range r.kept {
		kept.Close()
		delete(r.kept, p)
	}
}
