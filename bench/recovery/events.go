package main

import (
	"encoding/json"
	"fmt"
	"time"

	"rondo/audit"
)

// event is a line of `rondo train --json`, of bench/peers/torch_elastic.py, or of an audit log.
type event struct {
	Event      string `json:"event"`
	Rank       int64  `json:"rank"`
	PID        int64  `json:"pid"`
	Step       int64  `json:"step"`
	WorldSize  int64  `json:"world_size"`
	Generation uint64 `json:"generation"`
	Reason     string `json:"reason"`

	At   time.Time `json:"-"` // when its line was read
	From *process  `json:"-"` // whose line it is; nil: an audit log's
	Log  string    `json:"-"` // the audit log's name
}

// unreadable is the name of an event whose line could not be read. Its text says why.
const unreadable = "unreadable"

func parseEvent(line []byte) (event, error) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Event == "" {
		return event{}, fmt.Errorf("%q is not an event: %w", line, err)
	}
	return e, nil
}

// auditEvent makes an event of a line of an audit log: "ring" (Step are done when it starts),
// "read" or "commit".
func auditEvent(e audit.Entry) event {
	names := map[audit.Kind]string{audit.RingLine: "ring", audit.ReadLine: "read",
		audit.CommitLine: "commit"}
	return event{Event: names[e.Kind], Generation: e.Generation, Step: e.Step,
		WorldSize: int64(e.World), Log: e.Log}
}

// ring tells the rings of a job apart: Rondo's by generation, torchrun's by the process that has
// rank 0, which is a new one each time.
func (e event) ring() string {
	if e.Generation > 0 {
		return fmt.Sprintf("generation %d", e.Generation)
	}
	return fmt.Sprintf("process %d", e.PID)
}

// sight is the knowledge of a job from its events so far.
type sight struct {
	workers int64 // of a full ring

	members map[int64]event  // by rank: the process that reported it last
	rings   map[string]bool  // those that have taken a step
	begun   map[string]int64 // steps that were done when a ring began
	last    event            // the newest step
	highest int64            // step
	settled int              // steps of the newest ring
	pace    []time.Duration  // of steps of full rings, from one to the next
	steps   []event          // all that were heard
}

func newSight(workers int64) *sight {
	return &sight{workers: workers, members: map[int64]event{}, rings: map[string]bool{},
		begun: map[string]int64{}}
}

// hear takes the next event.
func (s *sight) hear(e event) {
	switch e.Event {
	case "worker":
		s.members[e.Rank] = e
		if e.Rank == 0 {
			s.begun[e.ring()] = e.Step
		}
	case "generation":
		s.begun[e.ring()] = e.Step
	case "step":
		if s.echo(e) {
			return
		}
		if s.rings[e.ring()] && s.last.ring() != e.ring() {
			return // a late word of a ring that is no more
		}
		if s.last.Event != "" && s.last.ring() == e.ring() {
			s.settled++
			if e.WorldSize == s.workers && e.Step == s.last.Step+1 {
				s.pace = append(s.pace, e.At.Sub(s.last.At))
			}
		} else {
			s.settled = 0
		}
		s.rings[e.ring()] = true
		s.steps = append(s.steps, e)
		s.last = e
		s.highest = max(s.highest, e.Step)
	}
}

// echo reports whether a step belongs to an older ring. A newer ring reports the last step again in
// case the older one did not.
func (s *sight) echo(e event) bool { return e.Step <= s.begun[e.ring()] }

// steady reports whether the newest ring is full and has taken this many steps after its first.
func (s *sight) steady(steps int) bool {
	return s.last.WorldSize == s.workers && s.settled >= steps
}
