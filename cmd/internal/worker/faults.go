package worker

import (
	"context"
	"fmt"

	"rondo/rehearsal"
	"rondo/train"
)

// faults are the job's rehearsed faults (--inject) as they hit this worker's training. Those of the
// ring hit its links, and those of the disk its checkpoints.
type faults struct{ *rehearsal.Actor }

// Spoil implements train.Rehearsal.
func (f faults) Spoil(ctx context.Context, step int64) train.Spoil {
	nan, flip := f.Actor.Spoil(ctx, step)
	return train.Spoil{NaN: nan, Flip: flip}
}

// newFaults reads the job's --inject. What fires once does so for the whole job: the process that
// dies of it is followed by another.
func (w *worker) newFaults() (faults, error) {
	plan, err := rehearsal.Parse(w.spec.Inject)
	if err != nil {
		return faults{}, fmt.Errorf("--inject: %w", err)
	}
	actor, err := rehearsal.New(plan, rehearsal.Config{
		Spend: func(ctx context.Context, rule, occurrence int) (bool, error) {
			return w.claim(ctx, fmt.Sprintf("rehearsal-%d-%d", rule, occurrence))
		},
		Log: func(line string) {
			w.log.Warn(line)
			w.notice(context.Background(), line) // bounds its wait itself
		},
	})
	return faults{actor}, err
}
