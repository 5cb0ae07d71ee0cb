// Package events converts the coordinator's events to those that telemetry shows. It may import
// proto and telemetry.
package events

import (
	"fmt"
	"math"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Telemetry converts an event. A scale event becomes a notice.
func Telemetry(e *rondov1.Event) (telemetry.Event, error) {
	switch k := e.GetKind().(type) {
	case *rondov1.Event_Worker:
		w := k.Worker
		return telemetry.Worker{Rank: w.Rank, PID: w.Pid, ID: w.Id, Device: w.Device,
			Host: w.Host}, nil
	case *rondov1.Event_Generation:
		g := k.Generation
		return telemetry.Generation{Generation: g.Generation, WorldSize: g.WorldSize,
			Step: g.Step, Reason: g.Reason}, nil
	case *rondov1.Event_Step:
		return step(k.Step), nil
	case *rondov1.Event_Checkpoint:
		return telemetry.Checkpoint{Step: k.Checkpoint.Step, Path: k.Checkpoint.Path}, nil
	case *rondov1.Event_Sample:
		return telemetry.Sample{Step: k.Sample.Step, Text: k.Sample.Text}, nil
	case *rondov1.Event_Eval:
		shown := telemetry.Eval{Step: k.Eval.Step, Loss: k.Eval.Loss, Tokens: k.Eval.Tokens,
			Perplexity: perplexity(k.Eval.Loss, k.Eval.SquaredError),
			Metrics:    metrics(k.Eval.Metrics)}
		if !k.Eval.SquaredError {
			shown.BitsPerToken = k.Eval.Loss / math.Ln2
		}
		return shown, nil
	case *rondov1.Event_Done:
		d := k.Done
		return telemetry.Done{Step: d.Step, Epoch: d.Epoch, Loss: d.Loss,
			Perplexity:      perplexity(d.Loss, d.SquaredError),
			TokensPerSecond: d.TokensPerSecond, Checkpoint: d.Checkpoint, Stopped: d.Stopped,
			NonfiniteSteps: d.NonfiniteSteps, Reason: d.Reason,
			BestStep: d.BestStep, BestLoss: d.BestLoss, Metrics: metrics(d.Metrics)}, nil
	case *rondov1.Event_Notice:
		return telemetry.Notice{ID: k.Notice.Id, Text: k.Notice.Text}, nil
	case *rondov1.Event_Scale:
		return telemetry.Notice{Text: fmt.Sprintf("the ring has at most %d workers from now on",
			k.Scale.Workers)}, nil
	case *rondov1.Event_Failure:
		return telemetry.Failed{Reason: k.Failure.Text, Usage: k.Failure.Usage}, nil
	}
	return nil, fmt.Errorf("the coordinator sent an event of kind %T, which this version does "+
		"not know", e.GetKind())
}

// perplexity is 0 if the loss is a squared error.
func perplexity(loss float64, squaredError bool) float64 {
	if squaredError {
		return 0
	}
	return telemetry.Perplexity(loss)
}

func metrics(all []*rondov1.Metric) (out []telemetry.Metric) {
	for _, m := range all {
		out = append(out, telemetry.Metric{Name: m.GetName(), Value: m.GetValue()})
	}
	return out
}

func step(s *rondov1.StepEvent) telemetry.Step {
	return telemetry.Step{Step: s.Step, TotalSteps: s.TotalSteps, Epoch: s.Epoch, Loss: s.Loss,
		Perplexity: perplexity(s.Loss, s.SquaredError), Tokens: s.Tokens,
		TokensPerSecond: s.TokensPerSecond,
		WorldSize:       s.WorldSize, Generation: s.Generation, EpochLoss: s.EpochLoss,
		LearningRate: s.LearningRate, GradientNorm: s.GradientNorm, Skipped: s.Skipped,
		Compute: s.ComputeSeconds, Exposed: s.ExposedSeconds, Waiting: s.WaitingSeconds}
}
