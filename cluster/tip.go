package cluster

import (
	"cmp"
	"fmt"
)

// Tip is the furthest state of a job on record in the store. The rank 0 of each ring stores it, at
// most every second, and when its ring has nothing left to train. The ring that completed a step
// names the branch: two rings may both complete a step, and then the later ring's counts.
type Tip struct {
	Run        int64      // JobSpec.submitted of the run that it belongs to
	Generation Generation // of the ring that completed the step
	Step       int64
	Digest     uint64 // of the parameters after it, as train.Trainer.Digest makes it
	Saved      int64  // step of the newest checkpoint on storage; 0: none is known
	// Final: nothing is left to train, and the final checkpoint, if the job keeps any, is on
	// storage. No later ring takes that back.
	Final  bool
	Result string // with Final: for Plan.Result, as in Done
}

// Before reports whether a tip gives way to another one.
func (t Tip) Before(u Tip) bool {
	final := func(t Tip) int {
		if t.Final {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(t.Run, u.Run), cmp.Compare(final(t), final(u)),
		cmp.Compare(t.Generation, u.Generation), cmp.Compare(t.Step, u.Step),
		cmp.Compare(t.Saved, u.Saved)) < 0
}

// Validate checks the shape of a tip that was read from outside.
func (t Tip) Validate() error {
	if t.Generation < 0 || t.Step < 0 || t.Saved < 0 || len(t.Result) > ResultLimit {
		return fmt.Errorf("a tip of generation %d, step %d, saved %d, with a result of %d bytes",
			t.Generation, t.Step, t.Saved, len(t.Result))
	}
	return nil
}

// Recorded reports the tip of this run, when a leader takes over and when members come or go.
type Recorded struct{ Tip Tip }

func (Recorded) event() {}

// recorded ends a job whose last step and final checkpoint are on record: its workers may have
// left, and others, that are behind, need not train again.
func recorded(s State, e Recorded) (State, []Action) {
	if !e.Tip.Final {
		return s, nil
	}
	if n := len(e.Tip.Result); s.result == "" && n <= ResultLimit {
		s.result = e.Tip.Result
	}
	if s.plan.Phase == Stopping {
		return end(s, s.plan.Reason)
	}
	return end(s, doneReason)
}

// doneReason is Plan.Reason of a job that ended well.
const doneReason = "all workers are done"
