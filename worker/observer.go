package worker

import (
	"context"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/train"
)

// observer reports rank 0's events. On other ranks it reports only their own notices.
type observer struct {
	engine   *engine
	last     train.StepReport // the last step, on every rank
	reported int64            // the last step that this worker has reported
}

// Step implements train.Observer.
func (o *observer) Step(r train.StepReport) {
	o.last = r
	if o.rankZero() {
		o.reportStep(r)
	}
}

// catchUp reports the step from which a ring goes on, if this worker has not reported it. The rank
// 0 that completed it may have died before it could.
func (o *observer) catchUp(step int64) {
	if o.last.Step == step && o.reported < step {
		o.reportStep(o.last)
	}
}

func (o *observer) reportStep(r train.StepReport) {
	plan := o.engine.seat.Load().plan
	o.reported = r.Step
	o.report(&rondov1.Event{Kind: &rondov1.Event_Step{Step: &rondov1.StepEvent{
		Step: r.Step, TotalSteps: r.Steps, Epoch: r.Epoch, Loss: r.Loss, EpochLoss: r.EpochLoss,
		LearningRate: r.LearningRate, GradientNorm: r.GradientNorm,
		TokensPerSecond: r.TokensPerSecond, WorldSize: int64(len(plan.Members)),
		Generation: uint64(plan.Generation), Skipped: r.Skipped,
		ComputeSeconds: r.Times.Compute.Seconds(), ExposedSeconds: r.Times.Exposed.Seconds(),
		WaitingSeconds: r.Times.Waiting.Seconds(), Tokens: r.Tokens,
		SquaredError: o.squaredError()}}})
}

// Evaluated implements train.Observer.
func (o *observer) Evaluated(r train.EvalReport) {
	o.report(&rondov1.Event{Kind: &rondov1.Event_Eval{Eval: &rondov1.EvalEvent{
		Step: r.Step, Loss: r.Loss, Tokens: r.Tokens, Metrics: metrics(r),
		SquaredError: o.squaredError()}}})
}

func (o *observer) squaredError() bool { return task.SquaredError(o.engine.worker.spec.Task) }

// metrics are the task's metrics of an evaluation, as events carry them.
func metrics(r train.EvalReport) (all []*rondov1.Metric) {
	for _, m := range r.Metrics {
		all = append(all, &rondov1.Metric{Name: m.Name, Value: m.Value})
	}
	return all
}

// Sampled implements train.Observer.
func (o *observer) Sampled(step int64, text string) {
	o.report(&rondov1.Event{Kind: &rondov1.Event_Sample{Sample: &rondov1.SampleEvent{
		Step: step, Text: text}}})
}

// Checkpoint implements train.Observer. The saver reports a checkpoint when it is on storage.
func (o *observer) Checkpoint(int64) {}

// Notice implements train.Observer.
func (o *observer) Notice(text string) {
	if o.rankZero() { // all ranks get the same notice
		o.engine.worker.notice(context.Background(), text)
	}
}

// OwnNotice implements train.Observer.
func (o *observer) OwnNotice(text string) {
	w := o.engine.worker
	w.log.Warn(text)
	w.notice(context.Background(), text) // notice bounds its wait itself
}

func (o *observer) report(e *rondov1.Event) {
	if o.rankZero() {
		o.engine.worker.reportEvent(context.Background(), e) // reportEvent bounds its wait itself
	}
}

func (o *observer) rankZero() bool { return o.engine.seat.Load().rank == 0 }
