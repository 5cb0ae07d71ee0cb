// Package trace writes a process's timeline as a file for Perfetto (ui.perfetto.dev) and
// chrome://tracing, in the JSON array format of Chrome's Trace Event Format. It measures nothing
// and imports nothing of this module.
//
// Times are wall-clock times, so the files of several processes can be loaded side by side. They
// align only as well as the machines' clocks agree.
package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// DefaultLimit is the default number of events per file, of about 100 bytes each.
const DefaultLimit = 1 << 20

// flushInterval is the longest time between flushes while events come.
const flushInterval = time.Second

// Writer writes one process's file. Its methods may be called concurrently. After an error it drops
// events and Close returns the error, so that a job does not fail because of its trace.
type Writer struct {
	mu      sync.Mutex
	out     *bufio.Writer
	file    io.Closer
	process int
	tracks  map[string]int
	left    int // number of events that may still be written
	limit   int
	any     bool
	flushed time.Time
	err     error
}

// event is an event of the Trace Event Format.
type event struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"`
	Time     float64        `json:"ts"` // microseconds
	Duration *float64       `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Track    int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
	Scope    string         `json:"s,omitempty"` // of an instant event
}

// Create creates folder/name.json, and the folder if necessary. limit is the largest number of
// events.
func Create(folder, name string, process, limit int) (*Writer, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	f, err := os.Create(filepath.Join(folder, name+".json"))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return newWriter(f, f, process, limit), nil
}

func newWriter(w io.Writer, file io.Closer, process, limit int) *Writer {
	return &Writer{out: bufio.NewWriter(w), file: file, process: process, limit: limit,
		left: limit, tracks: map[string]int{}}
}

// Name sets the name of the process, for example its rank, and its order. The last call counts.
func (w *Writer) Name(name string, order int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write(event{Name: "process_name", Phase: "M", Args: map[string]any{"name": name}})
	w.write(event{Name: "process_sort_index", Phase: "M",
		Args: map[string]any{"sort_index": order}})
}

// Span records an activity. The spans of one track must be nested or disjoint.
func (w *Writer) Span(track, name string, began, ended time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	took := max(microseconds(ended)-microseconds(began), 0)
	w.write(event{Name: name, Phase: "X", Time: microseconds(began), Duration: &took,
		Track: w.track(track)})
}

// Count records the value of a figure from a time on.
func (w *Writer) Count(name string, at time.Time, value float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write(event{Name: name, Phase: "C", Time: microseconds(at),
		Args: map[string]any{name: value}})
}

// microseconds returns the time since 1970, exact to a quarter of a microsecond.
func microseconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e3 }

// track numbers tracks in the order of their first use. The lock is held.
func (w *Writer) track(name string) int {
	n, ok := w.tracks[name]
	if !ok {
		n = len(w.tracks) + 1
		w.tracks[name] = n
		w.write(event{Name: "thread_name", Phase: "M", Track: n,
			Args: map[string]any{"name": name}})
	}
	return n
}

// write writes an event. The last event allowed is replaced by one that says that the trace ends.
// The lock is held.
func (w *Writer) write(e event) {
	if w.left == 0 || w.err != nil {
		return
	}
	if w.left--; w.left == 0 {
		e = event{Name: fmt.Sprintf("the trace ends here: it has %d events", w.limit), Phase: "i",
			Time: e.Time, Track: e.Track, Scope: "g"}
	}
	e.Process = w.process
	line, err := json.Marshal(e)
	if err != nil { // a value is not finite
		return
	}
	between := "[\n"
	if w.any {
		between = ",\n"
	}
	w.any = true
	if _, err = w.out.WriteString(between); err == nil {
		_, err = w.out.Write(line)
	}
	if now := time.Now(); err == nil && now.Sub(w.flushed) > flushInterval {
		w.flushed, err = now, w.out.Flush()
	}
	w.err = err
}

// Close completes the file. A file without Close can be opened too.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && !w.any {
		_, w.err = w.out.WriteString("[")
	}
	if w.err == nil {
		_, w.err = w.out.WriteString("\n]\n")
	}
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if err := w.file.Close(); w.err == nil {
		w.err = err
	}
	if w.err != nil {
		return fmt.Errorf("trace: %w", w.err)
	}
	return nil
}
