package worker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/job/jobspec"
)

func TestPulse(t *testing.T) {
	spec := jobspec.Textbook() // --step-timeout 30s, --regroup-timeout 1m, --join-timeout 5m
	const limit, first = 3 * time.Minute, 8 * time.Minute
	for _, c := range []struct {
		name  string
		live  func(p *pulse)
		after time.Duration // time after which it must count as stuck; 0: never
	}{
		{"in no ring", func(*pulse) {}, 0},
		{"the device opens", func(p *pulse) { p.begin() }, first},
		{"steps", func(p *pulse) {
			p.begin()
			time.Sleep(time.Second)
			p.beat()
		}, limit},
		{"long steps", func(p *pulse) {
			p.begin()
			time.Sleep(2 * time.Minute)
			p.beat()
		}, 20 * time.Minute},
		{"the ring has ended", func(p *pulse) {
			p.begin()
			p.beat()
			p.rest()
		}, 0},
		{"a beat after the ring's end", func(p *pulse) {
			p.begin()
			p.rest()
			p.beat()
		}, 0},
		{"a next ring", func(p *pulse) {
			p.begin()
			time.Sleep(time.Second)
			p.beat()
			p.rest()
			time.Sleep(time.Hour)
			p.begin()
		}, limit},
		{"storage", func(p *pulse) {
			p.begin()
			p.pause()
		}, 0},
		{"after storage", func(p *pulse) {
			p.begin()
			time.Sleep(time.Second)
			p.beat()
			resume := p.pause()
			time.Sleep(time.Hour)
			resume()
		}, limit},
		{"storage outside of a ring", func(p *pulse) { p.pause()() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				w := &worker{reports: reports{log: slog.New(slog.NewTextHandler(&log, nil))}}
				w.pulse.follow(spec)
				c.live(&w.pulse)
				wait := c.after
				if wait == 0 {
					wait = 100 * time.Hour
				}
				time.Sleep(wait - time.Millisecond)
				if !w.alive() {
					t.Errorf("stuck before %v", wait)
				}
				time.Sleep(time.Millisecond)
				for range 2 { // every probe gets the same answer
					if stuck := !w.alive(); stuck != (c.after != 0) {
						t.Errorf("stuck after %v: %t", wait, stuck)
					}
				}
				if said := strings.Count(log.String(), "is stuck"); (said == 1) != (c.after != 0) {
					t.Errorf("it was said %d times:\n%s", said, &log)
				}
			})
		})
	}
}
