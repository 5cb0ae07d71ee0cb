// Package dashboard is a job's web page: a bounded summary of the job as one self-contained HTML
// page, as JSON, and as a stream of changes. It does not follow the job itself; the caller passes
// it events. It may import telemetry.
package dashboard

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"rondo/telemetry"
)

// Limits of what is kept of a job.
const (
	noticeLimit     = 200
	ringLimit       = 200
	evalLimit       = 400
	sampleLimit     = 5
	checkpointLimit = 10
	metricLimit     = 8  // of an evaluation
	metricName      = 64 // bytes; a metric with a longer name is left out
	workerLimit     = 1024
	textLimit       = 4 << 10 // bytes of one text
	// Old events are shown right after a run begins. An event within this time may be old, so it
	// gets no time of its own.
	replayTime = 2 * time.Second
)

// State is the known state of a job. Its JSON is served to the page and at /api/state.
type State struct {
	Job    string     `json:"job"`
	Run    int64      `json:"run,string"` // when the run was submitted, in nanoseconds since 1970
	Phase  string     `json:"phase"`
	Reason string     `json:"reason"`
	Since  *time.Time `json:"since"` // when the job entered the phase, as observed
	Leader string     `json:"leader"`
	// Troubles has, by peer, the reason why the observer cannot reach it.
	Troubles map[string]Trouble `json:"troubles"`

	Generation int64 `json:"generation"`
	Rings      int64 `json:"rings"`
	WorldSize  int64 `json:"world_size"`
	MinWorkers int64 `json:"min_workers"`
	Limit      int64 `json:"limit"`

	Progress    Progress         `json:"progress"`
	Workers     []telemetry.Seat `json:"workers"`
	Others      int              `json:"others"` // number of workers that are not listed
	Formed      []Ring           `json:"formed"`
	Evals       []Eval           `json:"evals"`
	Samples     []Sample         `json:"samples"`     // newest last
	Checkpoints []Checkpoint     `json:"checkpoints"` // newest last
	Notices     []Notice         `json:"notices"`     // newest last
	Curve       Curve            `json:"curve"`
}

// Progress is how far the job has come.
type Progress struct {
	Step            int64   `json:"step"`
	TotalSteps      int64   `json:"total_steps"`
	Epoch           int64   `json:"epoch"`
	Loss            Number  `json:"loss"` // nats per token
	EpochLoss       Number  `json:"epoch_loss"`
	Perplexity      Number  `json:"perplexity"` // 0: the loss is a mean squared error
	TokensPerSecond Number  `json:"tokens_per_second"`
	StepSeconds     Number  `json:"step_seconds"` // moving average
	SecondsLeft     *Number `json:"seconds_left"` // null: not known
	LearningRate    Number  `json:"learning_rate"`
	GradientNorm    Number  `json:"gradient_norm"`
	Skipped         int64   `json:"nonfinite_steps"`
}

// Trouble says why a peer is not reached, and since when.
type Trouble struct {
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}

// Ring describes a ring that formed.
type Ring struct {
	Generation uint64 `json:"generation"`
	WorldSize  int64  `json:"world_size"`
	Step       int64  `json:"step"` // last step before it
	Reason     string `json:"reason"`
}

// Eval is an evaluation. Metrics are the task's, by their names in events.
type Eval struct {
	Step       int64             `json:"step"`
	Loss       Number            `json:"loss"`
	Perplexity Number            `json:"perplexity"`
	Metrics    map[string]Number `json:"metrics,omitempty"`
}

func newEval(e telemetry.Eval) Eval {
	shown := Eval{e.Step, Number(e.Loss), Number(e.Perplexity), map[string]Number{}}
	for _, m := range e.Metrics {
		if len(m.Name) <= metricName && len(shown.Metrics) < metricLimit {
			shown.Metrics[m.Name] = Number(m.Value)
		}
	}
	return shown
}

// Sample is text that the model generated.
type Sample struct {
	Step int64  `json:"step"`
	Text string `json:"text"`
}

// Checkpoint is a checkpoint that is complete on storage.
type Checkpoint struct {
	Step int64      `json:"step"`
	Path string     `json:"path"`
	Time *time.Time `json:"time"` // null: before the job was watched
}

// Notice is one line about an event.
type Notice struct {
	Kind string     `json:"kind"`
	Step int64      `json:"step"` // last step before it
	Time *time.Time `json:"time"` // null: before the job was watched
	Text string     `json:"text"`
}

// Board keeps a job's state. Its methods may be called concurrently.
type Board struct {
	now func() time.Time

	mu      sync.Mutex
	run     telemetry.Run
	began   time.Time
	state   State // without Curve
	curve   curve
	changed chan struct{} // closed at the next change
}

// NewBoard returns the board of a job. Only its name is known yet. now is the clock.
func NewBoard(job string, now func() time.Time) *Board {
	b := &Board{now: now, changed: make(chan struct{})}
	b.state.Job = job
	b.state.Phase = telemetry.PhaseWaiting
	b.state.Troubles = map[string]Trouble{}
	b.clear()
	return b
}

// clear resets the state of the run. The lock is held, or the board is not shared yet.
func (b *Board) clear() {
	b.began = b.now()
	s := &b.state
	nan := Number(math.NaN())
	s.Progress = Progress{Loss: nan, EpochLoss: nan, Perplexity: nan, TokensPerSecond: nan,
		StepSeconds: nan, LearningRate: nan, GradientNorm: nan}
	s.Formed, s.Evals, s.Samples = []Ring{}, []Eval{}, []Sample{}
	s.Checkpoints, s.Notices = []Checkpoint{}, []Notice{}
	if s.Workers == nil {
		s.Workers = []telemetry.Seat{}
	}
	b.curve = newCurve()
}

// Begin resets the board before a run's events: for another run, or when this run's events are
// shown again.
func (b *Board) Begin(run telemetry.Run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run, b.state.Run = run, run.Number
	b.clear()
	b.notify()
}

// Show applies an event.
func (b *Board) Show(e telemetry.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.state
	switch e := e.(type) {
	case telemetry.Step:
		b.step(e)
	case telemetry.Generation:
		ring := Ring{Generation: e.Generation, WorldSize: e.WorldSize, Step: e.Step,
			Reason: truncate(e.Reason)}
		s.Formed = keep(s.Formed, ring, ringLimit)
	case telemetry.Eval:
		s.Evals = keep(s.Evals, newEval(e), evalLimit)
	case telemetry.Sample:
		s.Samples = keep(s.Samples, Sample{e.Step, truncate(e.Text)}, sampleLimit)
	case telemetry.Checkpoint:
		s.Checkpoints = slices.DeleteFunc(s.Checkpoints, func(c Checkpoint) bool {
			return c.Path == e.Path
		})
		s.Checkpoints = keep(s.Checkpoints, Checkpoint{e.Step, truncate(e.Path), b.stamp()},
			checkpointLimit)
	case telemetry.Done:
		if e.Step > 0 {
			s.Progress.Step = e.Step
		}
		b.phase(telemetry.PhaseEnded)
		s.Reason = cmp.Or(truncate(e.Reason), s.Reason)
	case telemetry.Failed:
		b.phase(telemetry.PhaseFailed)
		s.Reason = truncate(e.Reason)
	}
	if kind, text := telemetry.Line(e); text != "" && kind != "sample" {
		s.Notices = keep(s.Notices, Notice{kind, s.Progress.Step, b.stamp(), truncate(text)},
			noticeLimit)
	}
	b.notify()
}

// stamp returns the time of a new event, or nil while old events may come. The lock is held.
func (b *Board) stamp() *time.Time {
	now := b.now()
	if now.Sub(b.began) < replayTime {
		return nil
	}
	return &now
}

// step applies a step. The lock is held.
func (b *Board) step(e telemetry.Step) {
	p := &b.state.Progress
	p.Step, p.TotalSteps, p.Epoch = e.Step, e.TotalSteps, e.Epoch
	p.Loss, p.EpochLoss, p.Perplexity = Number(e.Loss), Number(e.EpochLoss), Number(e.Perplexity)
	p.TokensPerSecond = Number(e.TokensPerSecond)
	p.LearningRate, p.GradientNorm = Number(e.LearningRate), Number(e.GradientNorm)
	if e.Skipped {
		p.Skipped++
	}
	b.curve.add(e.Step, e.Loss, e.TokensPerSecond)
	const newest = 0.05 // its share in the moving average
	seconds := Number(e.Tokens / e.TokensPerSecond)
	if !(seconds > 0) || math.IsInf(float64(seconds), 0) {
		return
	}
	if p.StepSeconds > 0 {
		seconds = p.StepSeconds + newest*(seconds-p.StepSeconds)
	}
	p.StepSeconds = seconds
	left := seconds * Number(max(0, e.TotalSteps-e.Step))
	p.SecondsLeft = &left
}

// Stand applies the job's stored standing.
func (b *Board) Stand(st telemetry.Standing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.state
	ended := s.Phase == telemetry.PhaseEnded && st.Phase == telemetry.PhaseEnded
	b.phase(st.Phase)
	if !ended || s.Reason == "" { // the job's last event has the better reason
		s.Reason = truncate(st.Reason)
	}
	s.Leader = st.Leader
	s.Generation, s.Rings, s.WorldSize = st.Generation, st.Rings, st.WorldSize
	s.MinWorkers, s.Limit = st.MinWorkers, st.Limit
	shown := min(len(st.Seats), workerLimit)
	s.Workers = append([]telemetry.Seat{}, st.Seats[:shown]...)
	s.Others = len(st.Seats) - shown
	b.notify()
}

// phase sets the phase and when it was entered. The lock is held.
func (b *Board) phase(name string) {
	if b.state.Phase != name || b.state.Since == nil {
		now := b.now()
		b.state.Phase, b.state.Since = name, &now
	}
}

// Trouble sets why the observer cannot reach a peer; an empty text says that it can.
func (b *Board) Trouble(peer, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, was := b.state.Troubles[peer]
	if old.Text == text {
		return
	}
	delete(b.state.Troubles, peer)
	if text != "" {
		if !was {
			old.Since = b.now()
		}
		b.state.Troubles[peer] = Trouble{truncate(text), old.Since}
	}
	b.notify()
}

// State returns the current state.
func (b *Board) State() State {
	state, _ := b.snapshot()
	return state
}

// snapshot returns the current state, and a channel that is closed at the next change.
func (b *Board) snapshot() (State, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	s.Workers, s.Formed, s.Evals = slices.Clone(s.Workers), slices.Clone(s.Formed),
		slices.Clone(s.Evals)
	s.Samples, s.Checkpoints = slices.Clone(s.Samples), slices.Clone(s.Checkpoints)
	s.Notices = slices.Clone(s.Notices)
	s.Troubles = maps.Clone(s.Troubles)
	s.Curve = b.curve.whole()
	if s.Phase != telemetry.PhaseRunning {
		s.Progress.SecondsLeft = nil
	}
	return s, b.changed
}

// notify wakes all waiters for a change. The lock is held.
func (b *Board) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// keep appends to a list and drops the oldest entries beyond limit.
func keep[T any](list []T, item T, limit int) []T {
	list = append(list, item)
	return slices.Delete(list, 0, max(0, len(list)-limit))
}

// truncate truncates a text to textLimit.
func truncate(text string) string {
	if len(text) <= textLimit {
		return text
	}
	return strings.ToValidUTF8(text[:textLimit], "") + "…"
}
