package model

import "rondo/compute"

// recordings are what runs of one kind, of a segment, an evaluator or a generator, ask of a device
// that can record, kept to be done again at once. A run's work is that of its chunks, in parts:
// what each chunk reads is loaded before its part is replayed. A recording is of one setting, so
// there are none until a run has that of the one before, by which time kernels have made their
// room; others drop them.
type recordings struct {
	model *Model
	dev   compute.Recorder // nil: nothing is recorded, or any more
	ran   bool             // a run has come to its end
	last  setting          // of that run
	use   bool             // in this run
	kept  map[part]recorded
}

// setting is what the work of a segment's run depends on besides what is loaded.
type setting struct {
	scale float32
	stage *float32 // where gradients are staged
	more  bool     // there is something behind the run
}

// forwards are the recordings of runs without gradients, of which there are two kinds.
type forwards struct {
	carrying   recordings // the state alone
	predicting recordings // the state, and the loss or the logits
}

func newForwards(m *Model) forwards { return forwards{newRecordings(m), newRecordings(m)} }

// of is a kind's.
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

// recorded is a part's work, and what of it is waited for.
type recorded struct {
	compute.Recording
	begun copies
}

// copies are what a part's work has begun to copy to host memory.
type copies struct {
	state     func() // waits for the state after the segment; nil: it is not copied
	gradients []compute.Staged
}

// part is a chunk's share of a run, of a segment the forward pass alone, or both. Chunks that load
// into the same place and do the same are one part.
type part struct {
	chunk int
	both  bool
	// turned says that the states before and after the segment have changed places, as they do in
	// every run, so that there are two recordings of the chunks that touch them.
	turned bool
}

// newRecordings keeps none yet.
func newRecordings(m *Model) recordings {
	recorder, _ := m.dev.(compute.Recorder)
	return recordings{model: m, dev: recorder, kept: map[part]recorded{}}
}

// begin decides whether the parts of a run are replayed. A hook cannot be.
func (r *recordings) begin(now setting, hook bool) {
	same := r.ran && now == r.last
	r.use = r.dev != nil && same && !hook
	if !same {
		r.close()
	}
}

// end notes that a run has come to its end.
func (r *recordings) end(now setting) { r.ran, r.last = true, now }

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
			r.dev, r.use, r.model.unrecorded = nil, false, err
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
