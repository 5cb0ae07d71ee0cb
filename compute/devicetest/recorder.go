package devicetest

import (
	"errors"
	"math/rand/v2"

	"rondo/compute"
)

// testRecorder replays steps with other tokens, targets and dropout masks in the same host memory,
// after the weights have changed. The results have the bits of the calls themselves, whatever the
// device did in between.
func testRecorder(r *rig) {
	d, ok := r.dev.(compute.Recorder)
	if !ok {
		r.Skip("this device does not record")
	}
	for _, cell := range compute.Cells() {
		for _, E := range []int{0, 9} {
			seed := r.random.Uint64()
			called := randomStack(d, rand.New(rand.NewPCG(seed, 1)), cell, 2, E)
			replayed := randomStack(d, rand.New(rand.NewPCG(seed, 1)), cell, 2, E)
			testReplay(r, d, called, replayed)
			called.close()
			replayed.close()
		}
	}
	testAbandoned(r, d)
}

// testAbandoned begins recordings that come to nothing, before they have asked for anything and
// after a step and a copy: none of it is done, and the device works and records as before.
func testAbandoned(r *rig, d compute.Recorder) {
	seed, broken := r.random.Uint64(), errors.New("it broke")
	called := randomStack(d, rand.New(rand.NewPCG(seed, 1)), compute.GRU, 2, 9)
	abandoned := randomStack(d, rand.New(rand.NewPCG(seed, 1)), compute.GRU, 2, 9)
	defer called.close()
	defer abandoned.close()
	work := abandoned.step
	if stager, ok := d.(compute.Stager); ok {
		host := stager.AllocHost(abandoned.B * abandoned.H)
		defer stager.FreeHost(host)
		work = func() {
			abandoned.behind = func() { stager.StartDownload(host, abandoned.after.H) }
			abandoned.step()
			abandoned.behind = nil
		}
	}
	for _, work := range []func(){func() {}, work} {
		called.step()
		abandoned.step()
		recording, err := d.Record(func() error { work(); return broken })
		if !errors.Is(err, broken) || recording != nil {
			r.Errorf("recording what fails: %v, %v", recording, err)
		}
		SameBits(r, "after a recording that failed", abandoned.all(), called.all())
	}
	testReplay(r, d, called, abandoned)
}

func testReplay(r *rig, d compute.Recorder, called, replayed *stack) {
	a, b := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2)) // the inputs of both
	work := func(s *stack) {
		s.step()
		s.update(compute.Update{Optimizer: compute.SGD, LR: 0.5})
	}
	same := func(what string) {
		r.Helper()
		SameBits(r, what, replayed.all(), called.all())
	}
	for _, s := range []*stack{called, replayed} { // the first makes room
		work(s)
	}
	same("the first step")
	var recordings [2]compute.Recording // the states change places
	for i := range recordings {
		before := replayed.all()
		var err error
		recordings[i], err = d.Record(func() error { work(replayed); return nil })
		if err != nil {
			r.Fatalf("recording a step: %v", err)
		}
		defer recordings[i].Close()
		SameBits(r, "after recording, before replaying", replayed.all(), before)
		replayed.turn()
	}
	for step := range 6 {
		called.read(a)
		work(called)
		replayed.read(b)
		recordings[step%2].Replay()
		replayed.read(rand.New(rand.NewPCG(7, 7))) // its inputs are the caller's again
		same("a step")
		called.turn()
		replayed.turn()
		// The device works on something larger, and memory comes and goes: for one cell, as this
		// takes longer than all else.
		if step == 2 && called.cell == compute.LSTM {
			Everything(d, rand.New(rand.NewPCG(3, 4)), 3)
		}
	}
}
