// Package telemetry shows a job to people and programs: as JSON lines, plain lines, log records, or
// a progress bar on a terminal. It neither decides nor measures anything, and imports nothing of
// this module.
package telemetry

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"rondo/internal/printable"
)

// An Event is something that happened in a job. In its JSON the first member, "event", is its name.
// Losses are in nats per token, and perplexity is exp(loss); or they are mean squared errors, and
// there is no perplexity.
type Event interface {
	// name returns the value of the member "event".
	name() string
	// line returns the event as text for people, without a final line break, or "" if it has none.
	line() string
}

// Folder says where a job's checkpoints are saved. An empty Path means that the model is not kept.
type Folder struct {
	Path string `json:"path"`
}

// Page is the job's web page.
type Page struct {
	URL string `json:"url"`
}

// Worker says that a worker joined the ring.
type Worker struct {
	Rank   int64  `json:"rank"`
	PID    int64  `json:"pid"` // negative: not a process id (see cluster.Member)
	ID     string `json:"id"`
	Device string `json:"device"`
	Host   string `json:"host"`
}

// Generation says that a ring formed. Step is the last step completed before it.
type Generation struct {
	Generation uint64 `json:"generation"`
	WorldSize  int64  `json:"world_size"`
	Step       int64  `json:"step"`
	Reason     string `json:"reason"`
}

// Step says that all ranks completed a step.
type Step struct {
	Step            int64   `json:"step"`
	Epoch           int64   `json:"epoch"`
	Loss            float64 `json:"loss"`
	Perplexity      float64 `json:"perplexity,omitempty"`
	Tokens          float64 `json:"tokens"` // of all ranks; in a round the mean of its steps
	TokensPerSecond float64 `json:"tokens_per_second"`
	WorldSize       int64   `json:"world_size"`
	Generation      uint64  `json:"generation"`
	TotalSteps      int64   `json:"total_steps"`
	EpochLoss       float64 `json:"epoch_loss"`
	LearningRate    float64 `json:"learning_rate"`
	GradientNorm    float64 `json:"gradient_norm"`
	Skipped         bool    `json:"skipped,omitempty"`

	// Rank 0's times for the step, in seconds. Compute covers reading, forward, backward, clipping
	// and updating. Exposed is the part of the all-reduce that did not overlap with backward.
	// Waiting is the part of Exposed before a slower rank arrived.
	Compute float64 `json:"compute_seconds"`
	Exposed float64 `json:"exposed_seconds"`
	Waiting float64 `json:"waiting_seconds"`
}

// Checkpoint says that a checkpoint is complete on storage.
type Checkpoint struct {
	Step int64  `json:"step"`
	Path string `json:"path"`
}

// Sample is text that the model generated.
type Sample struct {
	Step int64  `json:"step"`
	Text string `json:"text"`
}

// Metric is a figure of the task's own. In JSON it is a member of its event.
type Metric struct {
	Name  string
	Value float64
}

// Eval is an evaluation of the model on all evaluation data.
type Eval struct {
	Step             int64   `json:"step"`
	Loss             float64 `json:"loss"`
	Perplexity       float64 `json:"perplexity,omitempty"`
	BitsPerToken     float64 `json:"bits_per_token,omitempty"`
	BitsPerCharacter float64 `json:"bits_per_character,omitempty"`
	BitsPerByte      float64 `json:"bits_per_byte,omitempty"`
	// PerplexityPerWord is exp(loss summed over the text / its words); 0: no subwords.
	PerplexityPerWord float64 `json:"perplexity_per_word,omitempty"`
	Tokens            int64   `json:"tokens"` // targets
	// Confusion[i][j] is the number of targets with label i that were predicted as label j. Nil:
	// the task has no labels, or too many.
	Confusion [][]int64 `json:"confusion,omitempty"`
	Labels    []string  `json:"labels,omitempty"` // names of its rows and columns

	Metrics []Metric `json:"-"`
}

// Done is the end of a job.
type Done struct {
	Step            int64   `json:"step"`
	Epoch           int64   `json:"epoch"`
	Loss            float64 `json:"loss"`
	Perplexity      float64 `json:"perplexity,omitempty"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	Checkpoint      string  `json:"checkpoint"`
	Stopped         bool    `json:"stopped"`
	NonfiniteSteps  int64   `json:"nonfinite_steps"`
	// Reason is why the job ended, for example "--steps 3000 reached".
	Reason string `json:"reason"`
	// BestLoss is the lowest validation loss, measured after BestStep. 0: there was no evaluation.
	BestStep int64   `json:"best_step,omitempty"`
	BestLoss float64 `json:"best_loss,omitempty"`

	Metrics []Metric `json:"-"` // of the last evaluation
}

// EarlyStopped is the Reason of a job that --early-stop ended. Its argument is a number of
// evaluations.
const EarlyStopped = "stopped early: validation loss has not improved in %d evaluations"

// Failed is the end of a job that failed. It has no line, because the command reports it as its
// error.
type Failed struct {
	Reason string `json:"reason"`
	Usage  bool   `json:"usage"` // the job's input was wrong
}

// Notice is a message for the user.
type Notice struct {
	ID   string `json:"id,omitempty"`
	Text string `json:"text"`
}

// KindDone is what Line calls a Done.
const KindDone = "done"

func (Folder) name() string     { return "folder" }
func (Page) name() string       { return "page" }
func (Worker) name() string     { return "worker" }
func (Generation) name() string { return "generation" }
func (Step) name() string       { return "step" }
func (Checkpoint) name() string { return "checkpoint" }
func (Sample) name() string     { return "sample" }
func (Eval) name() string       { return "eval" }
func (Done) name() string       { return KindDone }
func (Failed) name() string     { return "failed" }
func (Notice) name() string     { return "notice" }

func (e Folder) line() string {
	if e.Path == "" {
		return "the model is not kept: --checkpoint-dir none"
	}
	return "checkpoints go to " + e.Path
}

func (e Page) line() string { return "page: " + e.URL }

func (e Worker) line() string {
	process := fmt.Sprintf("process %d", e.PID)
	if e.PID < 0 { // in a container; its ID has the container's name
		process = e.ID
	}
	return fmt.Sprintf("rank %d: %s, %s on %s", e.Rank, e.Device, process, e.Host)
}

func (e Generation) line() string {
	return fmt.Sprintf("ring of %d, generation %d, after step %d: %s",
		e.WorldSize, e.Generation, e.Step, e.Reason)
}

func (e Step) line() string {
	text := fmt.Sprintf("step %d/%d  epoch %d  loss %.4f%s  %s tokens/s", e.Step, e.TotalSteps,
		e.Epoch, e.Loss, perplexity("  perplexity %.3f", e.Perplexity),
		thousands(e.TokensPerSecond))
	if e.Skipped {
		text += "  skipped: not finite"
	}
	return text
}

// times says where the step's time went.
func (e Step) times() string {
	return fmt.Sprintf("compute %.1f ms, exposed to the ring %.1f ms, of that waiting for the "+
		"slowest %.1f ms", 1e3*e.Compute, 1e3*e.Exposed, 1e3*e.Waiting)
}

func (e Checkpoint) line() string {
	return fmt.Sprintf("checkpoint of step %d: %s", e.Step, e.Path)
}

func (e Sample) line() string {
	return fmt.Sprintf("sample at step %d:\n%s\n", e.Step, e.Text)
}

func (e Eval) line() string {
	if len(e.Metrics) > 0 {
		return fmt.Sprintf("evaluation at step %d: loss %.4f%s, %d targets", e.Step, e.Loss,
			metricsText(e.Metrics), e.Tokens)
	}
	text := fmt.Sprintf("evaluation at step %d: loss %.4f, perplexity %.3f, %.3f bits/token",
		e.Step, e.Loss, e.Perplexity, e.BitsPerToken)
	if e.BitsPerCharacter > 0 {
		text += fmt.Sprintf(", %.3f bits/character", e.BitsPerCharacter)
	}
	if e.BitsPerByte > 0 {
		text += fmt.Sprintf(", %.3f bits/byte", e.BitsPerByte)
	}
	if e.PerplexityPerWord > 0 {
		text += fmt.Sprintf(", perplexity %.3f per word", e.PerplexityPerWord)
	}
	return fmt.Sprintf("%s, %d tokens", text, e.Tokens)
}

func (e Done) line() string {
	how := "done"
	if e.Stopped {
		how = "stopped"
	}
	if e.Step == 0 {
		return how + " before the first step"
	}
	why := ""
	if e.Reason != "" && e.Reason != how {
		why = " (" + strings.TrimPrefix(e.Reason, "stopped: ") + ")"
	}
	text := fmt.Sprintf("%s after step %d%s: loss %.4f%s, %s tokens/s", how, e.Step, why, e.Loss,
		perplexity(", perplexity %.3f", e.Perplexity), thousands(e.TokensPerSecond))
	if e.NonfiniteSteps > 0 {
		text += fmt.Sprintf(", %d steps skipped as not finite", e.NonfiniteSteps)
	}
	if e.BestStep > 0 {
		text += fmt.Sprintf("\nbest: step %d, validation loss %.3f", e.BestStep, e.BestLoss)
	}
	if len(e.Metrics) > 0 {
		text += "\nlast evaluation" + strings.TrimPrefix(metricsText(e.Metrics), ",")
	}
	if e.Checkpoint == "" {
		return text + "\nthe model was not kept"
	}
	return text + "\ncheckpoint: " + e.Checkpoint
}

func (Failed) line() string { return "" }

func (e Notice) line() string {
	if e.ID == "" {
		return e.Text
	}
	return e.ID + ": " + e.Text
}

// A View receives the events of a job in order. Its methods are not called concurrently.
type View interface {
	Show(Event) error
	// Close ends the display. No event follows.
	Close() error
}

// JSONView writes one JSON object per line. A number that is not finite is written as null.
type JSONView struct{ w io.Writer }

// NewJSONView writes to w.
func NewJSONView(w io.Writer) *JSONView { return &JSONView{w: w} }

// Show writes the event's line.
func (v *JSONView) Show(e Event) error {
	line, err := MarshalEvent(e)
	if err != nil {
		return err
	}
	_, err = v.w.Write(append(line, '\n'))
	return err
}

// Close does nothing.
func (v *JSONView) Close() error { return nil }

// MarshalEvent returns the event's JSON object. Its first member is the name.
func MarshalEvent(e Event) ([]byte, error) {
	body, err := json.Marshal(finite(e))
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", e.name(), err)
	}
	head := fmt.Sprintf(`{"event":%q`, e.name())
	if len(body) > len("{}") {
		head += ","
	}
	return appendMetrics(append([]byte(head), body[1:]...), e), nil
}

// appendMetrics adds an event's metrics to its JSON object.
func appendMetrics(object []byte, e Event) []byte {
	var metrics []Metric
	switch e := e.(type) {
	case Eval:
		metrics = e.Metrics
	case Done:
		metrics = e.Metrics
	}
	object = object[:len(object)-1]
	for _, m := range metrics {
		value := "null"
		if isFinite(m.Value) {
			value = strconv.FormatFloat(m.Value, 'g', -1, 64)
		}
		name, _ := json.Marshal(m.Name) // a string has no error
		object = fmt.Appendf(object, ",%s:%s", name, value)
	}
	return append(object, '}')
}

// metricsText lists metrics for people.
func metricsText(metrics []Metric) string {
	var b strings.Builder
	for _, m := range metrics {
		fmt.Fprintf(&b, ", %s %.4f", m.Name, m.Value)
	}
	return b.String()
}

// Line returns an event's name and its text for people. A Step has text only if it was skipped; the
// text of Failed is its reason.
func Line(e Event) (name, line string) {
	switch e := e.(type) {
	case Step:
		if !e.Skipped {
			return e.name(), ""
		}
	case Failed:
		return e.name(), e.Reason
	}
	return e.name(), e.line()
}

// PlainView writes a line for each event. Step lines are limited to one per interval; the last step
// is always written.
type PlainView struct {
	w    io.Writer
	pace pace
	// Times adds to each step line where the step's time went.
	Times bool
}

// NewPlainView writes to w. Step lines are limited to one per interval; now is the clock.
func NewPlainView(w io.Writer, interval time.Duration, now func() time.Time) *PlainView {
	return &PlainView{w: w, pace: pace{interval: interval, now: now}}
}

// Show writes the event's line if it is due.
func (v *PlainView) Show(e Event) error {
	if step, ok := e.(Step); ok && !v.pace.due(step) {
		return nil
	}
	line := e.line()
	if line == "" {
		return nil
	}
	if step, ok := e.(Step); ok && v.Times {
		line += "  " + step.times()
	}
	_, err := fmt.Fprintln(v.w, printable.Text(line))
	return err
}

// Close does nothing.
func (v *PlainView) Close() error { return nil }

// Perplexity is exp(loss), loss in nats per token.
func Perplexity(loss float64) float64 { return math.Exp(loss) }

// perplexity formats a perplexity; 0: there is none.
func perplexity(format string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// thousands formats a rate with commas: 1,234,567.
func thousands(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) || math.Abs(v) >= 1<<53 {
		return "?"
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
