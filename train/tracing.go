package train

import (
	"fmt"
	"time"
)

// Tracer records a timeline of a rank's work.
type Tracer interface {
	// Span records work between two times. Two spans of a track are nested or disjoint.
	Span(track, name string, began, ended time.Time)
	// Count records a value that holds from a time on.
	Count(name string, at time.Time, value float64)
}

// The tracks of a trace: the rank's own sequence of work, and its Sum's work beside it.
const (
	trackTraining = "training"
	TrackRing     = "ring"
)

// laps traces a rank's work as consecutive spans.
type laps struct {
	tracer Tracer // nil: no trace
	now    func() time.Time
	since  time.Time // start of the next span
}

// begin starts a span now.
func (l *laps) begin() {
	if l.tracer != nil {
		l.since = l.now()
	}
}

// end closes the span that started at the last end or begin.
func (l *laps) end(name string) {
	if l.tracer == nil {
		return
	}
	now := l.now()
	l.tracer.Span(trackTraining, name, l.since, now)
	l.since = now
}

// whole traces a whole step or round, and its speed at the end.
func (l *laps) whole(what string, step int64, began, ended time.Time, tokensPerSecond float64) {
	if l.tracer == nil {
		return
	}
	l.tracer.Span(trackTraining, fmt.Sprintf("%s %d", what, step), began, ended)
	l.tracer.Count("tokens/s", ended, tokensPerSecond)
}
