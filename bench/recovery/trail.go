package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"time"
)

// glance is the time between two looks at the audit logs, and so how exactly their lines are timed.
const glance = 2 * time.Millisecond

// listing is how many glances there are to a look for new logs.
const listing = 10

// follow passes on new lines of the logs in a folder, as events, until the stage is closed.
func (s *stage) follow(dir string) {
	files := map[string]*trail{}
	defer func() {
		for _, f := range files {
			_ = f.file.Close()
		}
	}()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n%listing == 0 {
			names, _ := filepath.Glob(filepath.Join(dir, "*.jsonl")) // the pattern is sound
			for _, name := range names {
				if files[name] == nil {
					if file, err := os.Open(name); err == nil {
						files[name] = &trail{file: file}
					}
				}
			}
		}
		for name, f := range files {
			for _, e := range f.next() {
				e.Log = filepath.Base(name)
				if !s.pass(e) {
					return
				}
			}
		}
		select {
		case <-tick.C:
		case <-s.quit:
			return
		}
	}
}

// trail is an audit log that grows.
type trail struct {
	file io.ReadCloser
	rest []byte // of a line whose end is not there yet
}

// next returns the events of the new lines. A line that cannot be read becomes an unreadable event
// that says why.
func (t *trail) next() []event {
	now := time.Now()
	fresh, _ := io.ReadAll(t.file) // what cannot be read yet is read the next time
	if len(fresh) == 0 {
		return nil
	}
	t.rest = append(t.rest, fresh...)
	var all []event
	for {
		line, rest, whole := bytes.Cut(t.rest, []byte("\n"))
		if !whole {
			return all
		}
		t.rest = rest
		e, err := parseAudit(line)
		if err != nil {
			e = event{Event: unreadable, Reason: err.Error()}
		}
		e.At = now
		all = append(all, e)
	}
}
