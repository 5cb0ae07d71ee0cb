package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// A target is a job whose workers are killed, one at a time.
type target struct {
	*stage
	sight   *sight
	rng     *rand.Rand
	timeout time.Duration     // of each wait
	calm    time.Duration     // without a kill, before each and after the last
	strike  func(event) error // kills a worker; nil: its process alone
	spare   func(event) bool  // workers that are not to be killed; nil: none
	mend    func() error      // restores the number of workers; nil: the job does so itself
	early   bool              // mend right after the kill, not when the job goes on
	vital   *process          // with it the job ends; nil: none
}

// A loss is the cost of a worker's kill.
type loss struct {
	rank  int64
	began time.Time     // when the worker was killed
	next  time.Duration // from the kill to the next step that a new ring completed
	fresh time.Duration // to the first step beyond those that were completed before
	again int64         // completed steps that were done again
	join  time.Duration // from the start of a new worker to the first step of a full ring; 0: n/a
}

// await hears events until done, which is asked after each.
func (t *target) await(ctx context.Context, what string, done func(event) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.timeout,
		fmt.Errorf("no %s within %v", what, t.timeout))
	defer cancel()
	var ended <-chan struct{}
	if t.vital != nil {
		ended = t.vital.ended
	}
	for {
		select {
		case e := <-t.events:
			t.sight.hear(e)
			if e.Event == unreadable {
				return errors.New(e.Reason)
			}
			if done(e) {
				return nil
			}
		case <-ended:
			if len(t.events) == 0 {
				return t.vital.dead()
			}
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), t.dead())
		}
	}
}

// steady waits until the ring is full and has taken a few steps, a random number of them, then for
// the calm, and on until a random moment within a step.
func (t *target) steady(ctx context.Context) error {
	steps := 4 + t.rng.IntN(8)
	err := t.await(ctx, "full ring", func(event) bool { return t.sight.steady(steps) })
	if err != nil {
		return err
	}
	usual := percentile(seconds(t.sight.pace), 0.5)
	return t.listen(ctx, t.calm+time.Duration(t.rng.Float64()*usual*float64(time.Second)))
}

// listen receives events for d.
func (t *target) listen(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case e := <-t.events:
			t.sight.hear(e)
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// kill kills the worker of a rank, or the next that may be, at a random moment, and returns when
// the ring is full again.
func (t *target) kill(ctx context.Context, rank int64) (loss, error) {
	if err := t.steady(ctx); err != nil {
		return loss{}, err
	}
	victim, err := t.victim(rank)
	if err != nil {
		return loss{}, err
	}
	began := time.Now()
	if err := t.strike(victim); err != nil {
		return loss{}, fmt.Errorf("killing rank %d: %w", victim.Rank, err)
	}
	cost := loss{rank: victim.Rank, began: began}
	mended := began
	if t.mend != nil && t.early {
		if err := t.mend(); err != nil {
			return loss{}, err
		}
	}
	if err := t.recovery(ctx, began, &cost); err != nil {
		return cost, fmt.Errorf("after the kill of rank %d: %w", victim.Rank, err)
	}
	if t.mend != nil && !t.early {
		mended = time.Now()
		if err := t.mend(); err != nil {
			return loss{}, err
		}
	}
	if t.sight.last.WorldSize == t.sight.workers {
		return cost, nil
	}
	err = t.await(ctx, "full ring again", func(e event) bool { return t.sight.steady(0) })
	if t.mend != nil && !t.early {
		cost.join = t.sight.last.At.Sub(mended)
	}
	return cost, err
}

// victim returns the process with that rank, or the next that may be killed.
func (t *target) victim(rank int64) (event, error) {
	for range t.sight.workers {
		one, known := t.sight.members[rank%t.sight.workers]
		if !known {
			return event{}, fmt.Errorf("nobody has said that it is rank %d", rank)
		}
		if t.spare == nil || !t.spare(one) {
			return one, nil
		}
		rank++
	}
	return event{}, errors.New("every worker is to be spared")
}

// recovery waits for the first steps after a kill.
func (t *target) recovery(ctx context.Context, began time.Time, cost *loss) error {
	old := make(map[string]bool, len(t.sight.rings))
	for ring := range t.sight.rings {
		old[ring] = true
	}
	// Reports of the old ring may arrive after the kill, but not after a new ring's steps.
	before := t.sight.highest
	return t.await(ctx, "step of a new ring", func(e event) bool {
		if e.Event != "step" {
			return false
		}
		if old[e.ring()] || t.sight.echo(e) {
			before = max(before, e.Step)
			return false
		}
		if cost.next == 0 {
			cost.next = e.At.Sub(began)
			cost.again = max(before-e.Step+1, 0)
		}
		cost.fresh = e.At.Sub(began)
		return e.Step > before
	})
}

// killProcess is a strike at a worker's process alone.
func killProcess(victim event) error {
	p, err := os.FindProcess(int(victim.PID))
	if err != nil {
		return err
	}
	return p.Kill()
}
