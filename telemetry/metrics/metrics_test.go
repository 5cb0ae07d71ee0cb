package metrics

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"rondo/telemetry"
)

// aRun shows a run with every kind of event.
func aRun(m *Metrics) {
	m.Begin(telemetry.Run{Number: 1})
	m.Stand(telemetry.Standing{Phase: telemetry.PhaseRunning, Leader: "c", Generation: 3,
		Rings: 2, WorldSize: 2, MinWorkers: 1, Limit: 4, Seats: []telemetry.Seat{
			{State: telemetry.SeatRing}, {State: telemetry.SeatRing},
			{State: telemetry.SeatSpare}}})
	for _, e := range []telemetry.Event{
		telemetry.Step{Step: 10, TotalSteps: 40, Epoch: 1, Loss: 2, Perplexity: math.Exp(2),
			Tokens: 100, TokensPerSecond: 400, EpochLoss: 2.5, LearningRate: 0.5, GradientNorm: 3},
		telemetry.Step{Step: 13, TotalSteps: 40, Epoch: 2, Loss: 1, Perplexity: math.E,
			Tokens: 100, TokensPerSecond: 200, EpochLoss: 1.5, LearningRate: 0.25, GradientNorm: 4},
		telemetry.Eval{Step: 12, Loss: 2, Metrics: []telemetry.Metric{{Name: "f1", Value: 1}}},
		telemetry.Eval{Step: 13, Loss: 1.25, Metrics: []telemetry.Metric{{Name: "accuracy",
			Value: 0.5}}},
		telemetry.Checkpoint{Step: 13, Path: "p"},
		telemetry.Step{Step: 12, TotalSteps: 40, Epoch: 2, Loss: math.NaN(), Skipped: true,
			Perplexity: math.NaN(), Tokens: 100, EpochLoss: 1.5, LearningRate: 0.25},
	} {
		m.Show(e)
	}
	m.Trouble(Etcd, "")
	m.Trouble(Leader, "away")
}

func newMetrics() *Metrics {
	return New("demo", func() time.Time { return time.Unix(1000, 5e8) })
}

// values returns all series except histograms, by name and labels.
func values(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "rondo_") {
			continue
		}
		for _, series := range family.Metric {
			name := family.GetName()
			for _, label := range series.Label {
				if label.GetName() == Label {
					if label.GetValue() != "demo" {
						t.Errorf("%s is of job %s", name, label.GetValue())
					}
					continue
				}
				name += "/" + label.GetValue()
			}
			switch {
			case series.Counter != nil:
				out[name] = series.Counter.GetValue()
			case series.Histogram != nil:
				out[name+"_count"] = float64(series.Histogram.GetSampleCount())
				out[name+"_sum"] = series.Histogram.GetSampleSum()
			default:
				out[name] = series.Gauge.GetValue()
			}
		}
	}
	return out
}

func TestARun(t *testing.T) {
	m := newMetrics()
	aRun(m)
	got := values(t, m)
	for name, want := range map[string]float64{
		"rondo_step": 12, "rondo_planned_steps": 40, "rondo_epoch": 2, "rondo_eval_loss": 1.25,
		"rondo_steps_total": 5, "rondo_tokens_total": 500, "rondo_nonfinite_steps_total": 1,
		"rondo_step_seconds_count": 2, "rondo_step_seconds_sum": 0.75,
		"rondo_checkpoint_step": 13, "rondo_checkpoint_timestamp_seconds": 1000.5,
		"rondo_world_size": 2, "rondo_min_workers": 1, "rondo_worker_limit": 4,
		"rondo_generation": 3, "rondo_rings_total": 2, "rondo_leader": 1,
		"rondo_workers/ring": 2, "rondo_workers/spare": 1, "rondo_workers/lost": 0,
		"rondo_phase/running": 1, "rondo_phase/waiting": 0, "rondo_phase/ended": 0,
		"rondo_observer_reachable/etcd": 1, "rondo_observer_reachable/leader": 0,
		"rondo_learning_rate": 0.25, "rondo_epoch_loss": 1.5, "rondo_eval_metric/accuracy": 0.5,
	} {
		if value, is := got[name]; !is || value != want {
			t.Errorf("%s is %v, want %v", name, value, want)
		}
	}
	if old, is := got["rondo_eval_metric/f1"]; is {
		t.Errorf("the last evaluation but one had %v", old)
	}
	if !math.IsNaN(got["rondo_loss"]) || !math.IsNaN(got["rondo_perplexity"]) {
		t.Errorf("the loss of a step that is not finite is %v", got["rondo_loss"])
	}
}

// TestAnotherRun: counters continue in another run, whose rings and steps count from 0.
func TestAnotherRun(t *testing.T) {
	m := newMetrics()
	aRun(m)
	m.Show(telemetry.Done{Step: 40})
	if got := values(t, m); got["rondo_phase/ended"] != 1 || got["rondo_phase/running"] != 0 ||
		got["rondo_tokens_per_second"] != 0 || got["rondo_step"] != 40 {
		t.Errorf("after the end: %v", got)
	}
	m.Begin(telemetry.Run{Number: 2})
	m.Stand(telemetry.Standing{Phase: telemetry.PhaseRunning, Rings: 1})
	m.Show(telemetry.Step{Step: 1, TotalSteps: 2, Loss: 1, Tokens: 10, TokensPerSecond: 10})
	got := values(t, m)
	for name, want := range map[string]float64{"rondo_steps_total": 6, "rondo_tokens_total": 510,
		"rondo_rings_total": 3, "rondo_step": 1, "rondo_leader": 0, "rondo_workers/ring": 0} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	m.Begin(telemetry.Run{Number: 2}) // shown again: rings are not counted twice
	m.Stand(telemetry.Standing{Phase: telemetry.PhaseRunning, Rings: 1})
	if got := values(t, m); got["rondo_rings_total"] != 3 {
		t.Errorf("rondo_rings_total is %v after the run was told anew", got["rondo_rings_total"])
	}
}

// TestNothingIsKnown: unknown values have no series. A zero would show as a loss of zero, and an
// old series as this run's.
func TestNothingIsKnown(t *testing.T) {
	m := newMetrics()
	unknown := func(when string) {
		t.Helper()
		got := values(t, m)
		for _, name := range []string{"rondo_step", "rondo_planned_steps", "rondo_epoch",
			"rondo_loss", "rondo_epoch_loss", "rondo_perplexity", "rondo_learning_rate",
			"rondo_gradient_norm", "rondo_eval_loss", "rondo_eval_metric/accuracy",
			"rondo_checkpoint_step",
			"rondo_checkpoint_timestamp_seconds", "rondo_observer_reachable/leader"} {
			if value, is := got[name]; is {
				t.Errorf("%s: %s is %v", when, name, value)
			}
		}
	}
	m.Trouble(Leader, "")
	unknown("before any job")
	aRun(m)
	m.Stand(telemetry.Standing{Phase: telemetry.PhaseEnded})
	m.Trouble(Leader, "")
	if got := values(t, m); got["rondo_step"] != 12 || got["rondo_checkpoint_step"] != 13 {
		t.Errorf("after the end: %v", got)
	}
	m.Begin(telemetry.Run{Number: 2})
	unknown("of the next run")
}

// TestUnequalSteps: tokens and times are those of each step, and a squared error has no perplexity.
func TestUnequalSteps(t *testing.T) {
	m := newMetrics()
	m.Begin(telemetry.Run{Number: 1})
	for i, tokens := range []float64{90, 30} {
		m.Show(telemetry.Step{Step: int64(i + 1), Loss: 1, Tokens: tokens, TokensPerSecond: 60})
	}
	got := values(t, m)
	if got["rondo_tokens_total"] != 120 || got["rondo_step_seconds_sum"] != 2 {
		t.Errorf("%v", got)
	}
	if x, is := got["rondo_perplexity"]; is {
		t.Errorf("perplexity %v", x)
	}
}

// TestNames: the names follow Prometheus's conventions.
func TestNames(t *testing.T) {
	m := newMetrics()
	aRun(m)
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// known returns the names of all series and of their labels.
func known(t *testing.T) (names, labels []string) {
	t.Helper()
	m := newMetrics()
	aRun(m)
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels = []string{"le", "instance"}
	for _, family := range families {
		names = append(names, family.GetName())
		for _, series := range family.Metric {
			if series.Histogram != nil {
				names = append(names, family.GetName()+"_bucket", family.GetName()+"_sum",
					family.GetName()+"_count")
			}
			for _, label := range series.Label {
				labels = append(labels, label.GetName())
			}
		}
	}
	return names, labels
}

// monitoring is the folder with the files for Prometheus and Grafana.
const monitoring = "../../k8s/components/monitoring"

// expressions returns all queries in a dashboard.
func expressions(node any) (found []string) {
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			text, isText := value.(string)
			if isText && slices.Contains([]string{"expr", "query", "definition"}, key) {
				found = append(found, text)
			}
			found = append(found, expressions(value)...)
		}
	case []any:
		for _, value := range node {
			found = append(found, expressions(value)...)
		}
	}
	return found
}

// TestDashboardAsksForWhatThereIs: the dashboard queries only existing series and labels, and most
// of them.
func TestDashboardAsksForWhatThereIs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard any
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	names, labels := known(t)
	series := regexp.MustCompile(`\b(rondo|go|process)_\w+`)
	label := regexp.MustCompile(`(?:by|on|group_left) \(([^)]*)\)|(\w+)\s*=~?"`)
	asked := make(map[string]bool)
	for _, expression := range expressions(dashboard) {
		for _, name := range series.FindAllString(expression, -1) {
			asked[name] = true
			if !slices.Contains(names, name) {
				t.Errorf("%s: there is no %s", expression, name)
			}
		}
		for _, match := range label.FindAllStringSubmatch(expression, -1) {
			for _, name := range regexp.MustCompile(`\w+`).FindAllString(match[1]+match[2], -1) {
				if !slices.Contains(labels, name) {
					t.Errorf("%s: no series has a label %s", expression, name)
				}
			}
		}
	}
	for _, name := range []string{"rondo_loss", "rondo_phase", "rondo_tokens_total",
		"rondo_step_seconds_bucket", "rondo_workers", "rondo_observer_reachable"} {
		if !asked[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// TestMonitoringNamesWhatThereIs: the other Prometheus files name only existing series.
func TestMonitoringNamesWhatThereIs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(monitoring, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of manifests, %v", len(files), err)
	}
	names, _ := known(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\brondo_\w+`).FindAllString(string(text), -1) {
			if !slices.Contains(names, name) {
				t.Errorf("%s: there is no series %s", file, name)
			}
		}
	}
}
