package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"
)

// LogFormats are the values of --log-format.
func LogFormats() []string { return []string{"text", "json"} }

// eventKey is the attribute of a log record that holds an event as MarshalEvent writes it.
const eventKey = "event"

// NewLog returns a log that writes one line a record to w: "text", or "json" objects. Text leaves
// the JSON of events out, because the message of the record already says what happened.
func NewLog(w io.Writer, format string, level slog.Level) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: level}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case "text":
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == eventKey {
				return slog.Attr{}
			}
			return a
		}
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q is not one of text, json", format)
}

// LogView writes a job's events to a log, for a process whose output nobody watches. A step has a
// line at most once an interval; the last step and skipped ones always have. Workers that join have
// none: each says so in its own log. It may be called from several goroutines.
type LogView struct {
	log *slog.Logger

	mu        sync.Mutex
	pace      pace
	evaluated Eval // the newest; its loss is NaN if there is none
}

// none is the evaluation of a job that has not been evaluated.
//
//nolint:gochecknoglobals // a constant, but for Go
var none = Eval{Loss: math.NaN()}

// NewLogView writes to log, step lines at most one an interval by the clock now.
func NewLogView(log *slog.Logger, interval time.Duration, now func() time.Time) *LogView {
	return &LogView{log: log, pace: pace{interval: interval, now: now}, evaluated: none}
}

// Show logs the event if it is due.
func (v *LogView) Show(e Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	level, line := slog.LevelInfo, e.line()
	var more []slog.Attr
	switch e := e.(type) {
	case Worker:
		return nil
	case Step:
		if !v.pace.due(e) {
			return nil
		}
		more = append(more, slog.Int64("ring", e.WorldSize))
		if loss := v.evaluated.Loss; isFinite(loss) {
			more = append(more, slog.Float64("validation_loss", rounded(loss)))
		}
	case Eval:
		v.evaluated = e
	case Done:
		line = strings.ReplaceAll(line, "\n", "; ")
		v.evaluated = none // another run may follow
	case Failed:
		v.evaluated = none
		level, line = slog.LevelError, "the job has failed: "+e.Reason
	}
	body, err := MarshalEvent(e)
	if err != nil {
		return err
	}
	more = append(more, slog.Any(eventKey, json.RawMessage(body)))
	v.log.LogAttrs(context.Background(), level, line, more...)
	return nil
}

// Remember takes note of an event that another log has, so that step lines can tell the newest
// evaluation.
func (v *LogView) Remember(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	// Several workers may tell of old evaluations, in any order.
	if e, is := e.(Eval); is && e.Step >= v.evaluated.Step {
		v.evaluated = e
	}
}

// Close does nothing.
func (v *LogView) Close() error { return nil }

// rounded keeps the four digits of a loss that people read.
func rounded(loss float64) float64 { return math.Round(loss*1e4) / 1e4 }

// pace limits how often steps have a line.
type pace struct {
	interval time.Duration
	now      func() time.Time
	last     time.Time
}

// due reports whether a step gets a line. The last step and skipped ones always do.
func (p *pace) due(step Step) bool {
	if step.Skipped || step.Step >= step.TotalSteps {
		return true
	}
	now := p.now()
	if now.Sub(p.last) < p.interval {
		return false
	}
	p.last = now
	return true
}
