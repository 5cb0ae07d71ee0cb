package worker

import (
	"context"
	"fmt"
	"strings"

	"rondo/allreduce"
	"rondo/allreduce/faultlink"
	"rondo/checkpoint"
	"rondo/rehearsal"
	"rondo/train"
)

// flippedBit is the bit that a rehearsal flips, of the float in the middle of a message: high in
// the mantissa, so that the number is another one, and stays a plausible one.
const flippedBit = 20

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
			if strings.Contains(line, "kill") || strings.Contains(line, "stop") {
				w.log.Warn(line) // what is only reported may not get out any more
			}
			w.notice(context.Background(), line) // bounds its wait itself
		},
	})
	return faults{actor}, err
}

// disk is what goes wrong with a checkpoint's files.
func (f faults) disk(op checkpoint.Op, step int64, _ string) error {
	return f.Disk(context.Background(), step, string(op)) // bounds its wait itself
}

// wrap puts the faults on what this worker sends in the ring.
func (f faults) wrap(links allreduce.Links) allreduce.Links {
	return faultlink.Wrap(links, func(d faultlink.Direction, h allreduce.Header) faultlink.Fault {
		if d != faultlink.ToSuccessor || h.Phase == allreduce.Heartbeat {
			return faultlink.Fault{}
		}
		verdict, err := f.Message(context.Background(), h.Phase.String())
		if err != nil {
			return faultlink.Fault{Action: faultlink.Drop} // this process is as good as dead
		}
		fault := faultlink.Fault{Delay: verdict.For}
		switch verdict.Act {
		case rehearsal.Lose:
			fault.Action = faultlink.Drop
		case rehearsal.Double:
			fault.Action = faultlink.Duplicate
		case rehearsal.Flip:
			fault.Action, fault.Bit = faultlink.Corrupt, 32*(h.Length/2)+flippedBit
		case rehearsal.Pass, rehearsal.Wait:
		}
		return fault
	})
}
