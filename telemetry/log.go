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

// LogFormats returns the values of --log-format.
func LogFormats() []string { return []string{"text", "json"} }

// eventKey is the attribute of a log record with the event's JSON.
const eventKey = "event"

// NewLog returns a log that writes one line per record to w, in the format "text" or "json". The
// text format omits the JSON of events, because the record's message already describes them.
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

// LogView writes a job's events to a log, for processes without a terminal. Step lines are limited
// to one per interval; the last step and skipped ones are always written. Worker events are
// omitted, because each worker reports itself in its own log. Its methods may be called
// concurrently.
type LogView struct {
	log *slog.Logger

	mu        sync.Mutex
	pace      pace
	evaluated Eval // the newest; Loss is NaN if there is none
}

// noEval is the value of LogView.evaluated before the first evaluation.
//
//nolint:gochecknoglobals // Go has no constant structs
var noEval = Eval{Loss: math.NaN()}

// NewLogView writes to log. Step lines are limited to one per interval; now is the clock.
func NewLogView(log *slog.Logger, interval time.Duration, now func() time.Time) *LogView {
	return &LogView{log: log, pace: pace{interval: interval, now: now}, evaluated: noEval}
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
		v.evaluated = noEval // another run may follow
	case Failed:
		v.evaluated = noEval
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

// Remember records an evaluation that another process logs, so that this log's step lines include
// it.
func (v *LogView) Remember(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	// Several workers may report old evaluations, in any order.
	if e, is := e.(Eval); is && e.Step >= v.evaluated.Step {
		v.evaluated = e
	}
}

// rounded rounds a loss to four decimal places.
func rounded(loss float64) float64 { return math.Round(loss*1e4) / 1e4 }

// pace limits how often steps are written.
type pace struct {
	interval time.Duration
	now      func() time.Time
	last     time.Time
}

// due reports whether a step is written. The last step and skipped ones always are.
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
