// Package dashboard is a job's web page: what is known of the job, within bounds, as one page of
// HTML that needs nothing else, as JSON, and as a stream of what changes. It follows no job
// itself: it is shown events. It may import telemetry.
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
	workerLimit     = 1024
	textLimit       = 4 << 10 // bytes of one text
	// history is told at once: an event that comes sooner than this after the beginning may be
	// old, and is given no time.
	history = 2 * time.Second
)

// State is what is known of a job. Its JSON members are what the page and /api/state have.
type State struct {
	Job    string     `json:"job"`
	Run    int64      `json:"run,string"` // when it was submitted, in nanoseconds since 1970
	Phase  string     `json:"phase"`
	Reason string     `json:"reason"`
	Since  *time.Time `json:"since"` // when it came into the phase, as far as was seen
	Leader string     `json:"leader"`
	// Troubles are what keeps the observer from knowing more, by whom it does not reach.
	Troubles map[string]Trouble `json:"troubles"`

	Generation int64 `json:"generation"`
	Rings      int64 `json:"rings"`
	WorldSize  int64 `json:"world_size"`
	MinWorkers int64 `json:"min_workers"`
	Limit      int64 `json:"limit"`

	Progress    Progress         `json:"progress"`
	Workers     []telemetry.Seat `json:"workers"`
	Others      int              `json:"others"` // workers that are not listed
	Formed      []Ring           `json:"formed"`
	Evals       []Eval           `json:"evals"`
	Samples     []Sample         `json:"samples"`     // the newest last
	Checkpoints []Checkpoint     `json:"checkpoints"` // the newest last
	Notices     []Notice         `json:"notices"`     // the newest last
	Curve       Curve            `json:"curve"`
}

// Progress is how far the job has come.
type Progress struct {
	Step            int64   `json:"step"`
	TotalSteps      int64   `json:"total_steps"`
	Epoch           int64   `json:"epoch"`
	Loss            Number  `json:"loss"` // nats per token
	EpochLoss       Number  `json:"epoch_loss"`
	Perplexity      Number  `json:"perplexity"`
	TokensPerSecond Number  `json:"tokens_per_second"`
	StepSeconds     Number  `json:"step_seconds"` // mean of the last steps
	SecondsLeft     *Number `json:"seconds_left"` // null: it cannot be told
	LearningRate    Number  `json:"learning_rate"`
	GradientNorm    Number  `json:"gradient_norm"`
	Skipped         int64   `json:"nonfinite_steps"`
}

// Trouble is since when somebody is not reached, and why.
type Trouble struct {
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}

// Ring is a ring that formed.
type Ring struct {
	Generation uint64 `json:"generation"`
	WorldSize  int64  `json:"world_size"`
	Step       int64  `json:"step"` // the last one before it
	Reason     string `json:"reason"`
}

// Eval is an evaluation.
type Eval struct {
	Step       int64  `json:"step"`
	Loss       Number `json:"loss"`
	Perplexity Number `json:"perplexity"`
}

// Sample is text that the model wrote.
type Sample struct {
	Step int64  `json:"step"`
	Text string `json:"text"`
}

// Checkpoint is one that is complete on storage.
type Checkpoint struct {
	Step int64      `json:"step"`
	Path string     `json:"path"`
	Time *time.Time `json:"time"` // null: before it was watched
}

// Notice is an event for people.
type Notice struct {
	Kind string     `json:"kind"`
	Step int64      `json:"step"` // the last one before it
	Time *time.Time `json:"time"` // null: before it was watched
	Text string     `json:"text"`
}

// Board keeps what is known of a job. Its methods may be called from any goroutine.
type Board struct {
	now func() time.Time

	mu      sync.Mutex
	run     telemetry.Run
	began   time.Time
	state   State // but for its curve
	curve   curve
	changed chan struct{} // closed at the next change
}

// NewBoard returns the board of a job of which nothing is known, by the clock now.
func NewBoard(job string, now func() time.Time) *Board {
	b := &Board{now: now, changed: make(chan struct{})}
	b.state.Job = job
	b.state.Phase = telemetry.PhaseWaiting
	b.state.Troubles = map[string]Trouble{}
	b.clear()
	return b
}

// clear forgets what was known of a run. The lock is held, or nobody else has the board.
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

// Begin says that what follows is of another run, or that what was shown of this one is shown
// again.
func (b *Board) Begin(run telemetry.Run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run, b.state.Run = run, run.Number
	b.clear()
	b.touch()
}

// Show takes an event.
func (b *Board) Show(e telemetry.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.state
	switch e := e.(type) {
	case telemetry.Step:
		b.step(e)
	case telemetry.Generation:
		ring := Ring{Generation: e.Generation, WorldSize: e.WorldSize, Step: e.Step,
			Reason: short(e.Reason)}
		s.Formed = keep(s.Formed, ring, ringLimit)
	case telemetry.Eval:
		s.Evals = keep(s.Evals, Eval{e.Step, Number(e.Loss), Number(e.Perplexity)}, evalLimit)
	case telemetry.Sample:
		s.Samples = keep(s.Samples, Sample{e.Step, short(e.Text)}, sampleLimit)
	case telemetry.Checkpoint:
		s.Checkpoints = slices.DeleteFunc(s.Checkpoints, func(c Checkpoint) bool {
			return c.Path == e.Path
		})
		s.Checkpoints = keep(s.Checkpoints, Checkpoint{e.Step, short(e.Path), b.stamp()},
			checkpointLimit)
	case telemetry.Done:
		if e.Step > 0 {
			s.Progress.Step = e.Step
		}
		b.phase(telemetry.PhaseEnded)
		s.Reason = cmp.Or(short(e.Reason), s.Reason)
	case telemetry.Failed:
		b.phase(telemetry.PhaseFailed)
		s.Reason = short(e.Reason)
	}
	if kind, text := telemetry.Line(e); text != "" && kind != "sample" {
		s.Notices = keep(s.Notices, Notice{kind, s.Progress.Step, b.stamp(), short(text)},
			noticeLimit)
	}
	b.touch()
}

// stamp is the time of an event that comes now; nil while old ones may come. The lock is held.
func (b *Board) stamp() *time.Time {
	now := b.now()
	if now.Sub(b.began) < history {
		return nil
	}
	return &now
}

// step takes a step. Skipped ones make a line. The lock is held.
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
	const newest = 0.05 // its share of the mean
	seconds := Number(float64(b.run.TokensPerStep) / e.TokensPerSecond)
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

// Stand takes how the job stands.
func (b *Board) Stand(st telemetry.Standing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.state
	ended := s.Phase == telemetry.PhaseEnded && st.Phase == telemetry.PhaseEnded
	b.phase(st.Phase)
	if !ended || s.Reason == "" { // the job's last event says more about the end
		s.Reason = short(st.Reason)
	}
	s.Leader = st.Leader
	s.Generation, s.Rings, s.WorldSize = st.Generation, st.Rings, st.WorldSize
	s.MinWorkers, s.Limit = st.MinWorkers, st.Limit
	shown := min(len(st.Seats), workerLimit)
	s.Workers = append([]telemetry.Seat{}, st.Seats[:shown]...)
	s.Others = len(st.Seats) - shown
	b.touch()
}

// phase notes the phase, and when it was entered. The lock is held.
func (b *Board) phase(name string) {
	if b.state.Phase != name || b.state.Since == nil {
		now := b.now()
		b.state.Phase, b.state.Since = name, &now
	}
}

// Trouble says what keeps the observer from hearing from a peer; empty: nothing does.
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
		b.state.Troubles[peer] = Trouble{short(text), old.Since}
	}
	b.touch()
}

// State returns what is known now.
func (b *Board) State() State {
	state, _ := b.look()
	return state
}

// look returns what is known now, and a channel that is closed when it has changed.
func (b *Board) look() (State, <-chan struct{}) {
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

// touch wakes whoever waits for a change. The lock is held.
func (b *Board) touch() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// keep adds to a list that forgets its oldest.
func keep[T any](list []T, item T, limit int) []T {
	list = append(list, item)
	return slices.Delete(list, 0, max(0, len(list)-limit))
}

// short cuts a text to what is kept of one.
func short(text string) string {
	if len(text) <= textLimit {
		return text
	}
	return strings.ToValidUTF8(text[:textLimit], "") + "…"
}
