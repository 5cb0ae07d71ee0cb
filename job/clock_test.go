package job

import (
	"testing"
	"time"

	"rondo/checkpoint"
	rondov1 "rondo/proto/rondo/v1"
)

// TestElapsed: the time of training counts from the submission on, goes on over a worker that
// opens the folder later and over runs, and is unknown where a part of it is.
func TestElapsed(t *testing.T) {
	submitted := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	minutes := func(n int) time.Time { return submitted.Add(time.Duration(n) * time.Minute) }
	saved := func(at time.Time, metrics checkpoint.Metrics) *checkpoint.Checkpoint {
		c := &checkpoint.Checkpoint{}
		c.Created, c.Metrics = at, metrics
		return c
	}
	for name, c := range map[string]struct {
		submitted int64
		newest    *checkpoint.Checkpoint
		want      time.Duration
		known     bool
	}{
		"a first run": {submitted.UnixNano(), nil, 10 * time.Minute, true},
		"goes on": {submitted.UnixNano(), saved(minutes(-60), checkpoint.Metrics{"seconds": 120}),
			12 * time.Minute, true},
		"opened during the run": {submitted.UnixNano(), saved(minutes(4),
			checkpoint.Metrics{"seconds": 360}), 12 * time.Minute, true},
		"goes on from an old manifest": {submitted.UnixNano(), saved(minutes(-60), nil), 0, false},
		"runs counted by hand":         {3, nil, 0, false},
	} {
		var clock Checkpoints
		clock.startClock(&rondov1.JobSpec{Submitted: c.submitted}, c.newest)
		got, known := clock.Elapsed(minutes(10))
		if known != c.known || known && got != c.want {
			t.Errorf("%s: %v, known: %t; want %v, %t", name, got, known, c.want, c.known)
		}
	}
}
