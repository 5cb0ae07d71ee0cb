package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// traceStep is a step as a job reported it.
type traceStep struct {
	At      float64 `json:"at"`      // seconds since the job's first step
	Step    int64   `json:"step"`    // lower than before where the job went back to a snapshot
	Workers int64   `json:"workers"` // of the ring
}

// traceKill is a kill of a worker.
type traceKill struct {
	At    float64 `json:"at"`    // seconds since the job's first step
	Fresh float64 `json:"fresh"` // seconds until the first step beyond all completed ones
	Again int64   `json:"again"` // steps that were done again
}

// trace is one job of -trace's file: its steps and the kills, for bench/pictures to draw.
type trace struct {
	Job   string      `json:"job"`
	Kills []traceKill `json:"kills"`
	Steps []traceStep `json:"steps"`
}

// newTrace makes the trace of a job from the steps that were heard and from its losses.
func newTrace(job string, steps []event, losses []loss) trace {
	t := trace{Job: job, Kills: []traceKill{}, Steps: []traceStep{}}
	var begin time.Time
	for i, e := range steps {
		if i == 0 {
			begin = e.At
		}
		t.Steps = append(t.Steps, traceStep{At: e.At.Sub(begin).Seconds(), Step: e.Step,
			Workers: e.WorldSize})
	}
	for _, l := range losses {
		t.Kills = append(t.Kills, traceKill{At: l.began.Sub(begin).Seconds(),
			Fresh: l.fresh.Seconds(), Again: l.again})
	}
	return t
}

// writeTraces writes one JSON object a job and line.
func writeTraces(path string, all []trace) error {
	var text []byte
	for _, t := range all {
		line, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("-trace: %w", err)
		}
		text = append(append(text, line...), '\n')
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	return nil
}
