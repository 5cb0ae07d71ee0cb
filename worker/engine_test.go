//go:build !wasm

package worker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/checkpoint"
	"rondo/cluster"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
	"rondo/train/agree"
)

// TestWatch: each phase is a beat in every job. A job without --inject has no Rehearsal, which
// would prevent its devices from recording.
func TestWatch(t *testing.T) {
	for _, inject := range []string{"", "delay rank=0 phase=load for=1ms"} {
		spec := jobspec.Textbook()
		spec.Inject = inject
		w := &worker{spec: spec}
		e := &engine{worker: w}
		var err error
		if e.faults, err = w.newFaults(); err != nil {
			t.Fatal(err)
		}
		var settings train.Config
		e.watch(&settings)
		if (settings.Rehearsal != nil) != (inject != "") {
			t.Errorf("--inject %q: the Rehearsal is %v", inject, settings.Rehearsal)
		}
		w.pulse.follow(spec)
		w.pulse.begin()
		before := w.pulse.last
		if settings.Beat(); !w.pulse.last.After(before) {
			t.Errorf("--inject %q: no beat", inject)
		}
	}
}

// TestOwnNotice: a notice about one rank is reported and logged by that rank.
func TestOwnNotice(t *testing.T) {
	var log bytes.Buffer
	w := &worker{reports: reports{log: slog.New(slog.NewTextHandler(&log, nil))}}
	heard := &listener{}
	w.current.Store(&memberReporter{reporter: heard, id: "w3"})
	o := &observer{engine: &engine{worker: w}}
	o.engine.seat.Store(&seat{rank: 1})
	o.Notice("all know it")
	o.OwnNotice("it is slow")
	if len(heard.notices) != 1 || heard.notices[0].GetId() != "w3" ||
		heard.notices[0].GetText() != "it is slow" ||
		!strings.Contains(log.String(), "it is slow") {
		t.Errorf("reported %v, logged %q", heard.notices, log.String())
	}
}

// TestRestoreTriesAgain: storage that fails for a while does not end a job without a state. Storage
// that fails for longer ends this worker alone if the ring has another one that may try.
func TestRestoreTriesAgain(t *testing.T) {
	alone, others := []cluster.Member{{}}, []cluster.Member{{}, {}}
	for _, c := range []struct {
		heals bool
		plan  cluster.Plan
		ends  bool // the job
	}{
		{true, cluster.Plan{Rings: 2, Members: others}, false},
		{false, cluster.Plan{Rings: 2, Members: others}, false},
		{false, cluster.Plan{Rings: 2, Members: alone}, true},
		{false, cluster.Plan{Rings: 1, Members: others}, true},
	} {
		heals := c.heals
		folder := filepath.Join(t.TempDir(), "run")
		if err := os.WriteFile(folder, nil, 0o600); err != nil { // it cannot be listed
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			store, err := checkpoint.Open(t.Context(), folder, checkpoint.Config{})
			if err != nil {
				t.Fatal(err)
			}
			w := &worker{spec: jobspec.Textbook()}
			w.pulse.follow(w.spec)
			heard := &listener{}
			w.current.Store(&memberReporter{reporter: heard, id: "w3"})
			e := &engine{worker: w, stored: &job.Checkpoints{Store: store}}
			e.seat.Store(&seat{worker: w, plan: c.plan})
			if heals {
				time.AfterFunc(2*storageInterval+1, func() {
					if err := os.Remove(folder); err != nil {
						t.Error(err)
					}
				})
			}
			began := time.Now()
			snapshot, err := e.restore(t.Context(), agree.NoState, -1)
			took := time.Since(began)
			var lost *lostStateError
			if snapshot != nil || len(heard.notices) != 1 || (err == nil) != heals {
				t.Errorf("heals %v: %v, %v, notices %v", heals, snapshot, err, heard.notices)
			}
			want := 3 * storageInterval
			if !heals {
				want = w.spec.RegroupTimeout.AsDuration()
			}
			if took != want || errors.As(err, &lost) != c.ends || e.scratch != heals {
				t.Errorf("heals %v: %v after %v; want it after %v", heals, err, took, want)
			}
		})
	}
}

// TestServedNeedsAState: a worker that dropped its state does not register as one that has it.
func TestServedNeedsAState(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	spec := simSpec()
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	w := newWorker(Config{})
	w.spec, w.data = spec, data
	if w.engine, err = w.openEngine(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(w.engine.close(), w.closeDevice()); err != nil {
			t.Error(err)
		}
	}()
	note := func(what string, trained bool, generation, want cluster.Generation) {
		w.noteServed(generation, trained)
		if w.member.Served != want {
			t.Errorf("%s: it served in %d; want %d", what, w.member.Served, want)
		}
	}
	note("it has no state yet", true, 3, 0)
	ring := train.Ring{LaneEnds: []int{int(spec.Batch)}, Generation: 4}
	if _, err := w.engine.trainer.Join(t.Context(), ring, w.engine.restore); err != nil {
		t.Fatal(err)
	}
	note("it trained", true, 4, 4)
	note("it did not train", false, 5, 4)
	w.engine.trainer.Forget()
	note("it trained and dropped its state", true, 6, 0)
}

// listener is a reporter that records notices.
type listener struct {
	reporter
	notices []*rondov1.NoticeEvent
}

func (l *listener) Report(_ context.Context, e *rondov1.Event) error {
	l.notices = append(l.notices, e.GetNotice())
	return nil
}
