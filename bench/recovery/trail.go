package main

import (
	"time"

	"rondo/audit"
)

// glance is the time between two looks at the audit logs, and so how exactly their lines are timed.
const glance = 2 * time.Millisecond

// follow passes on new lines of the logs in a folder, as events, until the stage is closed. A line
// that cannot be read becomes an unreadable event that says why, and ends it.
func (s *stage) follow(dir string) {
	logs := audit.NewTail(dir)
	defer logs.Close()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		lines, err := logs.Next()
		now := time.Now()
		for _, line := range lines {
			e := auditEvent(line)
			e.At = now
			if !s.pass(e) {
				return
			}
		}
		if err != nil {
			s.pass(event{Event: unreadable, Reason: err.Error(), At: now})
			return
		}
		select {
		case <-tick.C:
		case <-s.quit:
			return
		}
	}
}
