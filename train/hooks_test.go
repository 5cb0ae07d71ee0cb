package train

import (
	"context"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// A pass has a BeforeBackward hook, which prevents recording and staging, only if a Rehearsal may
// need it. Beat is called in each phase either way.
func TestBeats(t *testing.T) {
	const steps, saves = 4, 2
	for _, rehearses := range []bool{false, true} {
		j := newJob(2)
		j.config.Steps, j.config.Save, j.config.SaveEvery = steps, true, 2
		j.config.HostMemory, j.model.GradientTail = false, 0
		j.device = func(_ int, dev compute.Device) compute.Device {
			return devicetest.NewRecorder(dev)
		}
		var w *watched
		beats, atRun := 0, []int{} // beats before each run
		heard := &rehearsed{}
		j.prepare = func(rank int, trainer *Trainer) {
			if rank != 0 {
				return
			}
			trainer.cfg.Beat = func() { beats++ }
			if rehearses {
				rehearse(trainer, heard)
			}
			w = &watched{Seat: trainer.seat}
			trainer.seat = beaten{w, func() { atRun = append(atRun, beats) }}
		}
		j.mustRun(t)
		phases := 3 // load, forward, update
		if rehearses {
			phases++ // backward
			if len(heard.heard) != beats {
				t.Errorf("%d beats in the phases %v", beats, heard.heard)
			}
		}
		if beats != phases*steps+saves {
			t.Errorf("rehearsal %t: %d beats, want %d", rehearses, beats, phases*steps+saves)
		}
		for i, in := range w.inputs {
			if (in.BeforeBackward != nil) != rehearses || (in.Stage == nil) != rehearses {
				t.Errorf("rehearsal %t: step %d is given %+v", rehearses, i+1, in)
			}
			if want := phases*i + 2 + i/2; atRun[i] != want { // load, forward; a save after two
				t.Errorf("rehearsal %t: %d beats before step %d runs, want %d", rehearses,
					atRun[i], i+1, want)
			}
		}
	}
}

// beaten calls a function before each run.
type beaten struct {
	Seat
	before func()
}

func (b beaten) Backward(in Pass) (float64, error) {
	b.before()
	return b.Seat.Backward(in)
}

// A device that cannot record is reported by its own rank, once, in any number of rings. The result
// does not change.
func TestUnrecordedIsTold(t *testing.T) {
	j := elasticJob(9)
	oracle := j.mustRun(t)
	j.config.HostMemory, j.model.GradientTail = false, 0
	j.device = func(rank int, dev compute.Device) compute.Device {
		r := devicetest.NewRecorder(dev)
		if rank == 1 {
			r.Fail = errTest
		}
		return r
	}
	e := newElastic(t, j, 2)
	regroupAt(e, 1, 4)
	e.ring(breakage{}, 0, 1)
	e.ring(breakage{}, 1, 0)
	e.allDone(0, 1)
	e.matches(1, oracle)
	if told := e.workers[0].own; len(told) != 0 {
		t.Errorf("of a device that records: %q", told)
	}
	if told := e.workers[1].own; len(told) != 1 || !strings.Contains(told[0], errTest.Error()) {
		t.Errorf("of a device that does not record: %q", told)
	}
}

// A device that records steps but not evaluations is reported too.
func TestUnrecordedEvaluationIsTold(t *testing.T) {
	j := newJob(1)
	j.config.Steps, j.evaluation = 4, newEvaluation(250)
	j.config.HostMemory, j.model.GradientTail = false, 0
	var recorder *devicetest.Recorder
	j.device = func(_ int, dev compute.Device) compute.Device {
		recorder = devicetest.NewRecorder(dev)
		return recorder
	}
	j.prepare = func(_ int, trainer *Trainer) {
		trainer.seat = unevaluated{trainer.seat, recorder}
	}
	var o outcome
	if err := j.runRank(t.Context(), 0, nil, &o); err != nil {
		t.Fatal(err)
	}
	if len(o.own) != 1 || !strings.Contains(o.own[0], errTest.Error()) || recorder.Recorded == 0 {
		t.Errorf("%d recordings, and it tells %q", recorder.Recorded, o.own)
	}
}

// unevaluated is a seat whose device cannot record an evaluation.
type unevaluated struct {
	Seat
	recorder *devicetest.Recorder
}

func (u unevaluated) Evaluate(ctx context.Context, lanes Lanes, add func(Score)) error {
	u.recorder.Fail = errTest
	defer func() { u.recorder.Fail = nil }()
	return u.Seat.Evaluate(ctx, lanes, add)
}
