package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Kind is what a line of a log records.
type Kind int

// The kinds of lines.
const (
	RingLine Kind = iota + 1
	ReadLine
	CommitLine
)

// Entry is the essence of a line of a log.
type Entry struct {
	Kind       Kind
	Log        string // name of its file
	Generation uint64
	Step       int64  // a ring starts after it; a read or commit is of it
	World      int    // of a ring; else 0
	Digest     uint64 // of the parameters after Step; of a read 0
}

// tailListing is how many calls of Next there are to a look for new logs.
const tailListing = 10

// Tail reads the logs in a folder while they are written.
type Tail struct {
	dir   string
	calls int
	logs  map[string]*tailed // by name
}

// tailed is a log that grows. file is nil once Drop has dropped it.
type tailed struct {
	file *os.File
	rest []byte // of a line whose end is not there yet
}

// NewTail returns a Tail of a folder, which need not exist yet.
func NewTail(dir string) *Tail { return &Tail{dir: dir, logs: map[string]*tailed{}} }

// Close closes the logs.
func (t *Tail) Close() {
	t.Drop(func(string) bool { return true })
}

// Drop ends the reading of the logs for which ended is true: no more lines will come. It keeps the
// number of open files small in a folder of many processes.
func (t *Tail) Drop(ended func(log string) bool) {
	for name, log := range t.logs {
		if log.file != nil && ended(name) {
			_ = log.file.Close() // it was only read
			log.file, log.rest = nil, nil
		}
	}
}

// Next returns the lines that have come since the last call, each log's in order.
func (t *Tail) Next() ([]Entry, error) {
	if t.calls%tailListing == 0 {
		t.list()
	}
	t.calls++
	var all []Entry
	for name, log := range t.logs {
		if log.file == nil {
			continue
		}
		var err error
		if all, err = log.next(name, all); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(t.dir, name), err)
		}
	}
	return all, nil
}

// list opens the logs that are new. One that cannot be opened yet is opened the next time.
func (t *Tail) list() {
	paths, _ := filepath.Glob(filepath.Join(t.dir, "*"+extension)) // the pattern is sound
	for _, path := range paths {
		name := filepath.Base(path)
		if t.logs[name] != nil {
			continue
		}
		if file, err := os.Open(path); err == nil {
			t.logs[name] = &tailed{file: file}
		}
	}
}

// next appends the new lines of a log.
func (l *tailed) next(name string, all []Entry) ([]Entry, error) {
	fresh, err := io.ReadAll(io.LimitReader(l.file, maxLine))
	if err != nil || len(fresh) == 0 {
		return all, err
	}
	l.rest = append(l.rest, fresh...)
	for {
		text, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		switch {
		case !whole && len(text) > maxLine:
			return all, errors.New("has a line that does not end")
		case !whole:
			return all, nil
		}
		l.rest = rest
		e, err := parse(text)
		if err != nil {
			return all, fmt.Errorf("%q %w", text, err)
		}
		all = append(all, e.entry(name))
	}
}

func (e *line) entry(log string) Entry {
	switch {
	case e.Ring != nil:
		return Entry{Kind: RingLine, Log: log, Generation: e.Ring.Generation, Step: e.Ring.From,
			World: e.Ring.World, Digest: e.Ring.Digest}
	case e.Read != nil:
		return Entry{Kind: ReadLine, Log: log, Generation: e.Read.Generation, Step: e.Read.Step}
	}
	return Entry{Kind: CommitLine, Log: log, Generation: e.Commit.Generation,
		Step: e.Commit.Step, Digest: e.Commit.Digest}
}
