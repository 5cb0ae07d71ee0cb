package observe

import (
	"slices"
	"testing"
	"time"

	"rondo/cluster"
	"rondo/dashboard"
	"rondo/k8s/kube"
	"rondo/telemetry"
)

// reasons are those of the events since the last call.
func (b *bench) reasons() (reasons []string) {
	for _, e := range b.job.events {
		reasons = append(reasons, e.Reason)
	}
	b.job.events = nil
	return reasons
}

func (b *bench) wantEvents(what string, want ...string) {
	b.t.Helper()
	b.look(time.Second)
	if got := b.reasons(); !slices.Equal(got, want) {
		b.t.Errorf("%s: the events are %q, want %q", what, got, want)
	}
}

// The Job's events tell each change once: rings, lost and evicted workers, checkpoints, the end.
func TestKeeperTellsEvents(t *testing.T) {
	b := newBench(t)
	member := func(id string) cluster.Member { return cluster.Member{ID: id} }
	b.view.Plan.Members = []cluster.Member{member("a"), member("b"), member("c")}
	b.view.Plan.LaneEnds = []cluster.Lane{1, 2, 3}
	b.state.Formed = []dashboard.Ring{{Generation: 1, WorldSize: 2}, {Generation: 2, WorldSize: 3}}
	b.wantEvents("before this observer came", "RingFormed")
	b.state.Checkpoints = []dashboard.Checkpoint{{Step: 20, Path: "/mnt/pvc/models/song/20"}}
	b.look(time.Second)
	want := kube.Event{Reason: "CheckpointSaved", Text: "step 20: pvc://models/song/20",
		Once: "checkpoint-1-20"}
	if got := b.job.events; len(got) != 1 || got[0] != want {
		t.Errorf("of a checkpoint the Job was told %+v", got)
	}
	b.job.events = nil
	b.wantEvents("without a change")

	b.view.Plan.Generation++
	b.view.Plan.Members = b.view.Plan.Members[:2]
	b.view.Plan.Evicted = []cluster.Eviction{{ID: "c", Reason: "its link is broken"}}
	b.wantEvents("a worker is lost", "WorkerLost", "WorkerEvicted")
	b.state.Formed = append(b.state.Formed, dashboard.Ring{Generation: 3, WorldSize: 2})
	b.wantEvents("the others go on", "RingFormed")

	b.view.Plan.Generation++
	b.view.Plan.Members, b.view.Plan.Limit = b.view.Plan.Members[:1], 1
	b.wantEvents("scaled down")

	b.view.Leader.ID = "coordinator-other-1"
	b.state.Checkpoints = append(b.state.Checkpoints, dashboard.Checkpoint{Step: 40})
	b.wantEvents("another observer tells")
	b.view.Leader.ID = "coordinator-demo-coordinator-5d-x7-1"
	b.wantEvents("leads again")

	b.view.Plan.Phase, b.state.Phase = cluster.Ended, telemetry.PhaseEnded
	b.state.Notices = []dashboard.Notice{{Kind: telemetry.KindDone}}
	b.wantEvents("the end", "Done")
	b.wantEvents("after the end")
}
