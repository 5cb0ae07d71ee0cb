package model

import "rondo/compute"

// recordings keeps a device's recordings for runs of one kind, of a segment, an evaluator or a
// generator. A run consists of parts, mostly one per chunk; each part's input is loaded before its
// recording is replayed. A recording is valid for one setting. Recording begins when a run has the
// same setting as the run before it: by then kernels have allocated their workspaces. Another
// setting drops the recordings.
type recordings struct {
	model *Model
	dev   compute.Recorder // nil: the device cannot record
	ran   bool             // a run has completed
	last  setting          // setting of that run
	use   bool             // this run is recorded or replayed
	kept  map[part]recorded
}

// setting is everything that a run's recording depends on besides its loaded input.
type setting struct {
	scale float32
	stage *float32 // destination of staged gradients
	more  bool     // the run has a Behind callback
}

// forwards are the recordings of the two kinds of runs without gradients.
type forwards struct {
	carrying   recordings // advance the state only
	predicting recordings // advance the state, and compute the loss or the logits
}

func newForwards(m *Model) forwards { return forwards{newRecordings(m), newRecordings(m)} }

// of returns the recordings of one kind.
func (f *forwards) of(predicting bool) *recordings {
	if predicting {
		return &f.predicting
	}
	return &f.carrying
}

func (f *forwards) close() {
	f.carrying.close()
	f.predicting.close()
}

// recorded is a part's recording, and its pending copies.
type recorded struct {
	compute.Recording
	begun copies
}

// copies are a part's pending copies to host memory.
type copies struct {
	state     func() // waits for the state after the segment; nil: not copied
	gradients []compute.Staged
}

// part identifies the work of a chunk: in a segment the forward pass alone, or both passes. Chunks
// that load into the same memory and do the same work are one part.
type part struct {
	chunk int
	both  bool
	// swapped: the states before and after the segment are swapped, as after every run. So there
	// are two recordings for each chunk that uses one of them.
	swapped bool
}

func newRecordings(m *Model) recordings {
	recorder, _ := m.dev.(compute.Recorder)
	return recordings{model: m, dev: recorder, kept: map[part]recorded{}}
}

// begin decides whether the parts of a run are replayed. A run with a hook is not.
func (r *recordings) begin(now setting, hook bool) {
	same := r.ran && now == r.last
	r.use = r.dev != nil && same && !hook
	if !same {
		r.close()
	}
}

// end notes that a run has completed.
func (r *recordings) end(now setting) { r.ran, r.last = true, now }

// do runs a part: it replays the part's recording, which it makes first if there is none, or calls
// work. If the device cannot record the part, nothing is recorded from then on.
func (r *recordings) do(p part, work func() (copies, error)) (begun copies, err error) {
	if !r.use {
		return work()
	}
	kept, ok := r.kept[p]
	if !ok {
		if kept, err = r.record(work); err != nil {
			r.close()
			r.dev, r.use, r.model.unrecorded = nil, false, err
			return work()
		}
		r.kept[p] = kept
	}
	kept.Replay()
	return kept.begun, nil
}

// record records a part's work. If memory for the recording lacks, the work itself can still run.
func (r *recordings) record(work func() (copies, error)) (made recorded, err error) {
	defer compute.Catch(&err)
	made.Recording, err = r.dev.Record(func() (err error) {
		made.begun, err = work()
		return err
	})
	return made, err
}

// close drops all recordings.
func (r *recordings) close() {
	for p, kept := range r.kept {
		kept.Close()
		delete(r.kept, p)
	}
}
