package devicetest

import (
	"slices"

	"rondo/compute"
)

// testStager copies beside other work. A copy has the results of earlier work, and is complete once
// it was waited for. Later work sees the uploaded values.
func testStager(r *rig) {
	d, ok := r.dev.(compute.Stager)
	if !ok {
		r.Skip("this device's memory is the host's")
	}
	const n, pieces = 100_003, 7
	host := d.AllocHost(n)
	defer d.FreeHost(host)
	if len(host) != n || slices.ContainsFunc(host, func(v float32) bool { return v != 0 }) {
		r.Fatalf("AllocHost(%d): %d floats, which are not zeros", n, len(host))
	}
	x, y := d.Alloc(n), d.Alloc(n)
	var want []float32
	download := func() (waits []func()) { // in pieces, with work on others between
		for i := range pieces {
			first, end := i*n/pieces, (i+1)*n/pieces
			d.Scale(x[first:end], 2)
			waits = append(waits, d.StartDownload(host[first:end], x[first:end]))
			d.Add(y, y)
		}
		return waits
	}
	finish := func(waits []func()) {
		for i, wait := range waits {
			wait()
			first, end := i*n/pieces, (i+1)*n/pieces
			SameBits(r, "a piece", host[first:end], want[first:end])
		}
	}
	draw := func() {
		want = narrow(normal(r.random, n, 1))
		copy(host, want)
		d.StartUpload(x, host)
		d.StartUpload(y, host)
		d.Scale(y, 3)
		for i := range want {
			want[i] *= 2
		}
	}
	for range 3 {
		draw()
		finish(download())
	}
	testStateBehind(r, d)
	recorder, ok := r.dev.(compute.Recorder)
	if !ok {
		return
	}
	var waits []func()
	recording, err := recorder.Record(func() error { waits = download(); return nil })
	if err != nil {
		r.Fatalf("recording copies: %v", err)
	}
	defer recording.Close()
	for range 3 {
		draw()
		recording.Replay()
		finish(waits)
	}
}

// testStateBehind copies the state that a step leaves to the same host memory in every step, from
// behind its loss, while the backward pass goes on and weights are updated: by calls, and where the
// device records, by two recordings in turn.
func testStateBehind(r *rig, d compute.Stager) {
	s := randomStack(d, r.random, compute.LSTM, 2, 9)
	defer s.close()
	host := d.AllocHost(s.B * s.H)
	defer d.FreeHost(host)
	var wait func()
	s.behind = func() { wait = d.StartDownload(host, s.after.H) }
	work := func() error {
		s.step()
		s.update(compute.Update{Optimizer: compute.SGD, LR: 0.5})
		return nil
	}
	arrives := func(wait func()) {
		r.Helper()
		s.head.Sum()
		wait()
		SameBits(r, "the state behind the loss", host, get(d, s.after.H))
		s.turn()
		s.read(r.random)
	}
	for range 2 {
		_ = work() // it has none
		arrives(wait)
	}
	recorder, ok := r.dev.(compute.Recorder)
	if !ok {
		return
	}
	var recordings [2]compute.Recording
	var waits [2]func()
	for i := range recordings {
		var err error
		if recordings[i], err = recorder.Record(work); err != nil {
			r.Fatalf("recording a step that copies its state: %v", err)
		}
		defer recordings[i].Close()
		waits[i] = wait
		s.turn()
	}
	for step := range 6 {
		recordings[step%2].Replay()
		arrives(waits[step%2])
	}
}
