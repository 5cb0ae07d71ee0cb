package worker

import (
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/job/jobspec"
	"rondo/rehearsal"
	"rondo/train"
)

// TestRoomsAgree: rooms that do not import each other must use the same words and numbers, because
// this one passes them on.
func TestRoomsAgree(t *testing.T) {
	if allreduce.HeartbeatsPerChunkTimeout != jobspec.HeartbeatsPerChunkTimeout {
		t.Errorf("the ring gives %d heartbeats in a --chunk-timeout, and the ladder says %d",
			allreduce.HeartbeatsPerChunkTimeout, jobspec.HeartbeatsPerChunkTimeout)
	}
	waits := allreduce.Config{StepTimeout: 10 * time.Second}
	if got, want := jobspec.AcrossHosts(waits.StepTimeout),
		waits.AcrossHosts().StepTimeout; got != want {
		t.Errorf("rings across hosts wait for %v, and the ladder says %v", want, got)
	}
	if got, want := jobspec.WithinHost(waits.StepTimeout),
		waits.WithinHost().GatherTimeout; got != want {
		t.Errorf("rings within hosts wait for %v, and the ladder says %v", want, got)
	}
	for _, phase := range []string{train.PhaseLoad, train.PhaseForward, train.PhaseBackward,
		train.PhaseUpdate, train.PhaseCheckpoint, allreduce.Carried.String(),
		allreduce.ReduceScatter.String(), allreduce.AllGather.String()} {
		plan, err := rehearsal.Parse("kill rank=0 phase=" + phase)
		if err != nil || len(plan) != 1 || string(plan[0].Phase) != phase {
			t.Errorf("phase %s cannot be ordered: %v, %v", phase, plan, err)
		}
	}
}
