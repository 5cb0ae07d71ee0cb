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
// that fails for longer does.
func TestRestoreTriesAgain(t *testing.T) {
	for _, heals := range []bool{true, false} {
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
			if took != want || errors.As(err, &lost) == heals || e.scratch != heals {
				t.Errorf("heals %v: %v after %v; want it after %v", heals, err, took, want)
			}
		})
	}
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
