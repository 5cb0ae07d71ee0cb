// Package metrics holds a job's metrics for Prometheus in its own registry. It neither serves nor
// measures anything; the caller passes it events. It may import telemetry.
package metrics

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"rondo/telemetry"
)

// The peers that an observer must reach to know everything.
const (
	Etcd       = "etcd"
	Leader     = "leader"
	Kubernetes = "kubernetes"
)

// Label is the label with the job's name in every series. It is not "job", because Prometheus sets
// that label to the name of the scrape target.
const Label = "job_name"

// Metrics are one job's metrics. Its methods may be called concurrently.
type Metrics struct {
	registry *prometheus.Registry
	now      func() time.Time

	step, planned, epoch, loss, epochLoss, perplexity, tokenRate runGauge
	learningRate, gradientNorm, evalLoss                         runGauge
	compute, exposed, waiting                                    runGauge // seconds
	checkpointStep, checkpointTime                               runGauge
	worldSize, minWorkers, limit, generation, leader             prometheus.Gauge
	steps, tokens, nonfinite, rings                              prometheus.Counter
	stepSeconds                                                  prometheus.Histogram
	workers, phase, reached                                      *prometheus.GaugeVec
	evalMetric                                                   *prometheus.GaugeVec // of one run

	mu          sync.Mutex
	run         telemetry.Run
	needsLeader bool  // the job needs a leader
	lastStep    int64 // 0: no step of this run was shown
	lastRings   int64 // rings of this run
}

// New returns the metrics of a job. Nothing is known of it yet. now is the clock.
func New(job string, now func() time.Time) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), now: now}
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.define(registrar{prometheus.WrapRegistererWith(prometheus.Labels{Label: job}, m.registry)})
	m.Stand(telemetry.Standing{Phase: telemetry.PhaseWaiting})
	return m
}

// Gatherer returns the registry, which /metrics serves.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// runGauge is a gauge of one run. It has no series until it is set in that run.
type runGauge struct{ *prometheus.GaugeVec }

func (g runGauge) set(x float64) { g.WithLabelValues().Set(x) }

// runGauges returns the gauges of one run.
func (m *Metrics) runGauges() []runGauge {
	return []runGauge{m.step, m.planned, m.epoch, m.loss, m.epochLoss, m.perplexity, m.tokenRate,
		m.learningRate, m.gradientNorm, m.evalLoss, m.checkpointStep, m.checkpointTime,
		m.compute, m.exposed, m.waiting}
}

// registrar registers metrics with the job's label.
type registrar struct{ to prometheus.Registerer }

func register[C prometheus.Collector](k registrar, c C) C {
	k.to.MustRegister(c)
	return c
}

func (k registrar) gauge(name, help string) prometheus.Gauge {
	return register(k, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

func (k registrar) runGauge(name, help string) runGauge {
	return runGauge{register(k, prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Name: name, Help: help}, nil))}
}

func (k registrar) counter(name, help string) prometheus.Counter {
	return register(k, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func (k registrar) gauges(name, label, help string) *prometheus.GaugeVec {
	return register(k, prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Name: name, Help: help}, []string{label}))
}

func (m *Metrics) define(k registrar) {
	m.step = k.runGauge("rondo_step", "Last step that all ranks have completed.")
	m.planned = k.runGauge("rondo_planned_steps", "Steps after which the run is done.")
	m.epoch = k.runGauge("rondo_epoch", "Pass over the corpus, from 1.")
	m.loss = k.runGauge("rondo_loss", "Loss of the last step, in nats per token, mean over the "+
		"global batch.")
	m.epochLoss = k.runGauge("rondo_epoch_loss",
		"Mean loss of the epoch so far, in nats per token.")
	m.perplexity = k.runGauge("rondo_perplexity", "Perplexity of the last step: exp of its loss.")
	m.tokenRate = k.runGauge("rondo_tokens_per_second", "Tokens that all workers together read "+
		"per second, in the last step.")
	m.learningRate = k.runGauge("rondo_learning_rate", "Learning rate of the last step.")
	m.gradientNorm = k.runGauge("rondo_gradient_norm", "L2 norm of the last step's gradient "+
		"before clipping; if each worker clips its own, of rank 0's own lanes.")
	m.compute = k.runGauge("rondo_compute_seconds", "Rank 0's time for the last step's reading, "+
		"forward, backward, clipping and updating.")
	m.exposed = k.runGauge("rondo_exposed_seconds", "Rank 0's time for the part of the last "+
		"step's all-reduce that did not overlap with backward.")
	m.waiting = k.runGauge("rondo_waiting_seconds", "The part of rondo_exposed_seconds before a "+
		"slower rank arrived at the all-reduce.")
	m.evalLoss = k.runGauge("rondo_eval_loss", "Loss of the last evaluation, in nats per token.")
	m.evalMetric = k.gauges("rondo_eval_metric", "metric", "The task's metrics of the last "+
		"evaluation, by their names in events, such as accuracy.")
	m.checkpointStep = k.runGauge("rondo_checkpoint_step", "Step of the newest checkpoint.")
	m.checkpointTime = k.runGauge("rondo_checkpoint_timestamp_seconds", "When the newest "+
		"checkpoint was reported, in seconds since 1970.")
	m.worldSize = k.gauge("rondo_world_size", "Workers of the ring.")
	m.minWorkers = k.gauge("rondo_min_workers", "With fewer workers the job pauses.")
	m.limit = k.gauge("rondo_worker_limit", "Maximum number of workers in the ring.")
	m.generation = k.gauge("rondo_generation", "Generation of the plan; it grows with each ring.")
	m.leader = k.gauge("rondo_leader", "1 while a coordinator leads the job, else 0.")
	m.steps = k.counter("rondo_steps_total", "Steps completed, including repeated ones.")
	m.tokens = k.counter("rondo_tokens_total", "Tokens read in completed steps, including "+
		"repeated ones.")
	m.nonfinite = k.counter("rondo_nonfinite_steps_total", "Steps skipped by all ranks because "+
		"loss or gradient was not finite.")
	m.rings = k.counter("rondo_rings_total", "Rings formed.")
	m.stepSeconds = register(k, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "rondo_step_seconds", Help: "Time of one step, in seconds.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}))
	m.workers = k.gauges("rondo_workers", "state", "Workers, by state.")
	m.phase = k.gauges("rondo_phase", "phase", "1 for the phase that the job is in, else 0.")
	m.reached = k.gauges("rondo_observer_reachable", "peer", "1 while the observer hears from "+
		"the peer, else 0: then the other figures may be old.")
}

// Begin precedes a run's events: of another run, or when this run's events are shown again.
func (m *Metrics) Begin(run telemetry.Run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if run.Number != m.run.Number {
		m.lastRings = 0
		for _, figure := range m.runGauges() {
			figure.Reset()
		}
		m.evalMetric.Reset()
	}
	m.run, m.lastStep = run, 0
}

// Show applies an event.
func (m *Metrics) Show(e telemetry.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch e := e.(type) {
	case telemetry.Step:
		m.showStep(e)
	case telemetry.Eval:
		m.evalLoss.set(e.Loss)
		m.evalMetric.Reset() // an event bounds its metrics
		for _, metric := range e.Metrics {
			m.evalMetric.WithLabelValues(metric.Name).Set(metric.Value)
		}
	case telemetry.Checkpoint:
		m.checkpointStep.set(float64(e.Step))
		m.checkpointTime.set(float64(m.now().UnixMilli()) / 1000)
	case telemetry.Done:
		if e.Step > 0 {
			m.step.set(float64(e.Step))
		}
		m.setPhase(telemetry.PhaseEnded)
	case telemetry.Failed:
		m.setPhase(telemetry.PhaseFailed)
	}
}

// showStep counts this step and all steps since the last one shown, because not every step is
// reported. A step that does not follow the last one is a repeated step. The lock is held.
func (m *Metrics) showStep(e telemetry.Step) {
	passed := int64(1)
	if m.lastStep > 0 && e.Step > m.lastStep {
		passed = e.Step - m.lastStep
	}
	m.lastStep = e.Step
	m.steps.Add(float64(passed))
	m.tokens.Add(float64(passed) * e.Tokens)
	if e.Skipped {
		m.nonfinite.Inc()
	}
	m.step.set(float64(e.Step))
	m.planned.set(float64(e.TotalSteps))
	m.epoch.set(float64(e.Epoch))
	m.loss.set(e.Loss)
	m.epochLoss.set(e.EpochLoss)
	if e.Perplexity != 0 {
		m.perplexity.set(e.Perplexity)
	}
	m.tokenRate.set(e.TokensPerSecond)
	m.learningRate.set(e.LearningRate)
	m.gradientNorm.set(e.GradientNorm)
	m.compute.set(e.Compute)
	m.exposed.set(e.Exposed)
	m.waiting.set(e.Waiting)
	if seconds := e.Tokens / e.TokensPerSecond; seconds > 0 && !math.IsInf(seconds, 0) {
		m.stepSeconds.Observe(seconds)
	}
}

// Stand applies the job's stored standing.
func (m *Metrics) Stand(s telemetry.Standing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.worldSize.Set(float64(s.WorldSize))
	m.minWorkers.Set(float64(s.MinWorkers))
	m.limit.Set(float64(s.Limit))
	m.generation.Set(float64(s.Generation))
	m.leader.Set(boolValue(s.Leader != ""))
	if s.Rings > m.lastRings {
		m.rings.Add(float64(s.Rings - m.lastRings))
	}
	m.lastRings = s.Rings
	m.setPhase(s.Phase)
	count := make(map[string]int)
	for _, seat := range s.Seats {
		count[seat.State]++
	}
	for _, state := range telemetry.SeatStates() {
		m.workers.WithLabelValues(state).Set(float64(count[state]))
	}
}

// setPhase sets the phase. The lock is held.
func (m *Metrics) setPhase(now string) {
	for _, phase := range telemetry.Phases() {
		m.phase.WithLabelValues(phase).Set(boolValue(phase == now))
	}
	m.needsLeader = now != telemetry.PhaseWaiting && now != telemetry.PhaseEnded &&
		now != telemetry.PhaseFailed
	if now != telemetry.PhaseRunning {
		m.tokenRate.set(0) // a job that does not run reads no tokens
	}
}

// Trouble sets why the observer cannot reach a peer; an empty text says that it can. A leader that
// the job does not need has no series.
func (m *Metrics) Trouble(peer, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if peer == Leader && !m.needsLeader {
		m.reached.DeleteLabelValues(peer)
		return
	}
	m.reached.WithLabelValues(peer).Set(boolValue(text == ""))
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
