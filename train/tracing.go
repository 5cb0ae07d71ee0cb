package train

import (
	"fmt"
	"time"
)

// Tracer hears what a rank does when, for people to look at.
type Tracer interface {
	// Span hears of something that was done from one time to another. Of those on one track, each
	// is within another one or apart from it.
	Span(track, name string, began, ended time.Time)
	// Count hears a figure's value from a time on.
	Count(name string, at time.Time, value float64)
}

// The tracks of a trace: what the rank does, one thing after the other, and what its Sum does
// beside it.
const (
	trackTraining = "training"
	TrackRing     = "ring"
)

// laps traces what a rank does as one thing after the other.
type laps struct {
	tracer Tracer // nil: nobody looks
	now    func() time.Time
	since  time.Time // when the next one began
}

// begin says that the next begins now.
func (l *laps) begin() {
	if l.tracer != nil {
		l.since = l.now()
	}
}

// end says what has been done since the last one's end, or since begin.
func (l *laps) end(name string) {
	if l.tracer == nil {
		return
	}
	now := l.now()
	l.tracer.Span(trackTraining, name, l.since, now)
	l.since = now
}

// whole traces what commits, a step or a round up to one, and, behind it, its speed.
func (l *laps) whole(what string, step int64, began, ended time.Time, tokensPerSecond float64) {
	if l.tracer == nil {
		return
	}
	l.tracer.Span(trackTraining, fmt.Sprintf("%s %d", what, step), began, ended)
	l.tracer.Count("tokens/s", ended, tokensPerSecond)
}
