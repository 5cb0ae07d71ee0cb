package main

import (
	"time"

	"rondo/bench/internal/killtrace"
)

// newTrace makes the trace of a job from the steps that were heard and from its losses.
func newTrace(job string, steps []event, losses []loss) killtrace.Job {
	t := killtrace.Job{Job: job, Kills: []killtrace.Kill{}, Steps: []killtrace.Step{}}
	var begin time.Time
	for i, e := range steps {
		if i == 0 {
			begin = e.At
		}
		t.Steps = append(t.Steps, killtrace.Step{At: e.At.Sub(begin).Seconds(), Step: e.Step,
			Workers: e.WorldSize})
	}
	for _, l := range losses {
		t.Kills = append(t.Kills, killtrace.Kill{At: l.began.Sub(begin).Seconds(),
			Fresh: l.fresh.Seconds(), Again: l.again})
	}
	return t
}
