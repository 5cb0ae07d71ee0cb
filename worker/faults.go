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

// flippedBit is the bit that a corrupt fault flips in the float in the middle of a message. It is
// high in the mantissa: the number changes but stays plausible.
const flippedBit = 20

// faults applies the job's injected faults (--inject) to this worker: to its training, to its links
// in the ring, and to its checkpoint files.
type faults struct{ *rehearsal.Actor }

// Spoil implements train.Rehearsal.
func (f faults) Spoil(ctx context.Context, step int64) train.Spoil {
	nan, flip := f.Actor.Spoil(ctx, step)
	return train.Spoil{NaN: nan, Flip: flip}
}

// newFaults parses the job's --inject. A fault that fires once does so for the whole job, because
// another process succeeds the one that it kills.
func (w *worker) newFaults() (faults, error) {
	plan, err := rehearsal.Parse(w.spec.Inject)
	if err != nil {
		return faults{}, fmt.Errorf("--inject: %w", err)
	}
	actor, err := rehearsal.New(plan, rehearsal.Config{
		Spend: func(ctx context.Context, rule, occurrence int) (bool, error) {
			return w.claim(ctx, fmt.Sprintf("rehearsal-%d-%d", rule, occurrence))
		},
		Fire: func(ctx context.Context, rule int) (bool, error) {
			return w.claim(ctx, fmt.Sprintf("rehearsal-%d-fired", rule))
		},
		Log: func(line string) {
			if strings.Contains(line, "kill") || strings.Contains(line, "stop") {
				w.log.Warn(line) // a report might not be sent before the process ends
			}
			w.notice(context.Background(), line) // notice bounds its wait itself
		},
	})
	return faults{actor}, err
}

// reportUnfired names the rules of --inject that never fired, at the job's end.
func (s *session) reportUnfired(ctx context.Context) {
	if s.rank != 0 {
		return
	}
	for _, rule := range s.engine.faults.Unfired(ctx) {
		s.notice(ctx, fmt.Sprintf("--inject: %q never fired: check its rank, steps and phase",
			rule))
	}
}

// disk returns the fault of an operation on a checkpoint's files.
func (f faults) disk(op checkpoint.Op, step int64, _ string) error {
	return f.Disk(context.Background(), step, string(op)) // Disk bounds its wait itself
}

// wrap applies the faults to the messages that this worker sends in the ring.
func (f faults) wrap(links allreduce.Links) allreduce.Links {
	return faultlink.Wrap(links, func(d faultlink.Direction, h allreduce.Header) faultlink.Fault {
		if d != faultlink.ToSuccessor || h.Phase == allreduce.Heartbeat {
			return faultlink.Fault{}
		}
		verdict, err := f.Message(context.Background(), h.Phase.String())
		if err != nil {
			return faultlink.Fault{Action: faultlink.Drop} // this process is being killed
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
