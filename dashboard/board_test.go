package dashboard

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"rondo/telemetry"
)

// clock is a clock that tests set.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newClock() *clock { return &clock{time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)} }

// TestCurveOfALongRun: a curve stays within its limit and spans the whole run, and each point is
// the mean of its steps.
func TestCurveOfALongRun(t *testing.T) {
	c := newCurve()
	const steps = 100_000
	for step := int64(1); step <= steps; step++ {
		c.add(step, float64(step), 2*float64(step))
	}
	if n := len(c.points); n > curveLimit || n < curveLimit/2 {
		t.Errorf("%d points; the limit is %d", n, curveLimit)
	}
	from := int64(0)
	total := 0
	for _, p := range c.points {
		mean := float64(from+1+p.Step) / 2
		if math.Abs(float64(p.Loss)-mean) > 1e-6*mean ||
			math.Abs(float64(p.Rate)-2*mean) > 1e-5*mean {
			t.Fatalf("steps %d to %d: loss %v, rate %v; the mean step is %v", from+1, p.Step,
				p.Loss, p.Rate, mean)
		}
		from = p.Step
		total += p.count
	}
	if from != steps || total != steps {
		t.Errorf("the curve ends at step %d and is of %d steps, of %d", from, total, steps)
	}
}

// TestCurveGoesBack: repeated steps replace their old values, and values that are not finite do not
// count in a mean.
func TestCurveGoesBack(t *testing.T) {
	c := newCurve()
	for step := int64(1); step <= 10; step++ {
		c.add(step, 1, 1)
	}
	c.add(6, math.NaN(), 0)
	c.add(7, 3, 1)
	body, err := json.Marshal(c.whole().Points[4:])
	if err != nil {
		t.Fatal(err)
	}
	if want := `[[5,1,1],[6,null,null],[7,3,1]]`; string(body) != want {
		t.Errorf("%s, want %s", body, want)
	}
	c.stride = 4
	c.points = nil
	c.add(1, 1, 1)
	c.add(2, math.Inf(1), 3)
	c.add(3, 2, 5)
	if p := c.points[0]; len(c.points) != 1 || p.Loss != 1.5 || p.Rate != 3 || p.Step != 3 {
		t.Errorf("the mean of a stretch is %+v", c.points)
	}
}

// TestCurveSince: the changes sent to a page always add up to the whole curve.
func TestCurveSince(t *testing.T) {
	c := newCurve()
	page, sent := []Point(nil), Curve{}
	step := int64(0)
	for i := range 3000 {
		step++
		if i%700 == 699 {
			step -= 50
		}
		c.add(step, 1/float64(step), float64(i))
		if i%17 != 0 {
			continue
		}
		now := c.whole()
		part := now.since(sent)
		page = append(page[:part.From:part.From], part.Points...)
		sent = now
		if got, want := fmt.Sprint(page), fmt.Sprint(now.Points); got != want {
			t.Fatalf("after %d steps the page has %s, not %s", i, got, want)
		}
	}
}

// TestBoardIsBounded: every list is bounded and keeps its newest entries.
func TestBoardIsBounded(t *testing.T) {
	b := NewBoard("demo", newClock().now)
	long := strings.Repeat("é", textLimit)
	metrics := []telemetry.Metric{{Name: long}}
	for i := range 100 {
		metrics = append(metrics, telemetry.Metric{Name: fmt.Sprint(i, long[:metricName-8])})
	}
	seats := make([]telemetry.Seat, workerLimit+5)
	b.Stand(telemetry.Standing{Phase: telemetry.PhaseRunning, Reason: long, Seats: seats})
	for i := range int64(1000) {
		b.Show(telemetry.Notice{Text: long})
		b.Show(telemetry.Generation{Generation: uint64(i), Reason: long})
		b.Show(telemetry.Eval{Step: i, Metrics: metrics})
		b.Show(telemetry.Sample{Step: i, Text: long})
		b.Show(telemetry.Checkpoint{Step: i, Path: fmt.Sprint(i)})
		b.Show(telemetry.Step{Step: i + 1, TotalSteps: 1000, Loss: 1})
	}
	s := b.State()
	for what, n := range map[string][2]int{
		"notices": {len(s.Notices), noticeLimit}, "rings": {len(s.Formed), ringLimit},
		"evals": {len(s.Evals), evalLimit}, "samples": {len(s.Samples), sampleLimit},
		"checkpoints": {len(s.Checkpoints), checkpointLimit},
		"workers":     {len(s.Workers), workerLimit}, "others": {s.Others, 5},
		"metrics": {len(s.Evals[0].Metrics), metricLimit},
	} {
		if n[0] != n[1] {
			t.Errorf("%d %s are kept, want %d", n[0], what, n[1])
		}
	}
	if last := s.Samples[sampleLimit-1]; last.Step != 999 || len(last.Text) > textLimit+8 {
		t.Errorf("the newest sample is of step %d, with %d bytes", last.Step, len(last.Text))
	}
	body, err := json.Marshal(s)
	if err != nil || len(body) > 4<<20 {
		t.Errorf("the state has %d bytes, %v", len(body), err)
	}
}

// TestStateOfARun checks the JSON of a run's state.
func TestStateOfARun(t *testing.T) {
	c := newClock()
	b := NewBoard("demo", c.now)
	if s := b.State(); s.Phase != telemetry.PhaseWaiting || s.Progress.SecondsLeft != nil {
		t.Errorf("of nothing: %+v", s)
	}
	b.Begin(telemetry.Run{Number: 1795293174581460705})
	b.Stand(telemetry.Standing{Phase: telemetry.PhaseRunning, Leader: "c"})
	b.Show(telemetry.Notice{Text: "old"})
	c.at = c.at.Add(replayTime)
	b.Show(telemetry.Step{Step: 5, TotalSteps: 25, Loss: math.NaN(), Perplexity: math.NaN(),
		Tokens: 100, TokensPerSecond: 50, Skipped: true})
	b.Trouble("etcd", "away")
	c.at = c.at.Add(time.Minute)
	b.Trouble("etcd", "still away")
	body, err := json.Marshal(b.State())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"run":"1795293174581460705"`, `"loss":null`,
		`"seconds_left":40`, `"step_seconds":2`, `"nonfinite_steps":1`, `"phase":"running"`,
		`"since":"2030-01-02T03:04:05Z"`, `"curve":{"from":0,"stride":1,"points":[[5,null,50]]}`,
		`{"etcd":{"text":"still away","since":"2030-01-02T03:04:07Z"}}`,
		`{"kind":"notice","step":0,"time":null,"text":"old"}`,
		`{"kind":"step","step":5,"time":"2030-01-02T03:04:07Z","text":"step 5/25`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the state has no %s:\n%s", want, body)
		}
	}
	b.Trouble("etcd", "")
	b.Show(telemetry.Failed{Reason: "it broke"})
	s := b.State()
	if s.Phase != telemetry.PhaseFailed || s.Reason != "it broke" || len(s.Troubles) != 0 ||
		s.Progress.SecondsLeft != nil {
		t.Errorf("after the failure: %+v", s)
	}
	b.Begin(telemetry.Run{Number: 2})
	if s := b.State(); s.Run != 2 || s.Progress.Step != 0 || len(s.Notices) != 0 ||
		len(s.Curve.Points) != 0 {
		t.Errorf("another run has %+v", s)
	}
}

// TestReasonOfTheEnd: the reason in the job's last event prevails over the one in the leader's last
// plan.
func TestReasonOfTheEnd(t *testing.T) {
	b := NewBoard("song", time.Now)
	ended := telemetry.Standing{Phase: telemetry.PhaseEnded, Reason: "all workers are done"}
	b.Stand(telemetry.Standing{Phase: telemetry.PhaseRunning, Reason: "workers join"})
	b.Show(telemetry.Done{Step: 7, Reason: "--steps 7 reached"})
	b.Stand(ended)
	if s := b.State(); s.Reason != "--steps 7 reached" {
		t.Errorf("the reason is %q", s.Reason)
	}
	b.Stand(telemetry.Standing{Phase: telemetry.PhaseForming, Reason: "a new run of the job"})
	b.Stand(ended)
	if s := b.State(); s.Reason != ended.Reason {
		t.Errorf("of a new run the reason is %q", s.Reason)
	}
}
