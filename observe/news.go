package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"rondo/cluster"
	"rondo/k8s/kube"
)

// Limits on the Job's events: a burst, and then one in eventEvery seconds. More are left out; the
// page and the coordinator's log have all of them.
const (
	eventBurst     = 25
	eventPerSecond = 0.1
)

// known is the state that the Job's events have reported, or the state when this observer started.
type known struct {
	run        int64
	generation uint64 // of the newest ring that formed
	checkpoint int64  // step of the newest
	plan       cluster.Generation
	members    []string        // of that plan, by ID
	evicted    map[string]bool // by ID
	over       bool
}

// tell records events of the Job for what has changed since the last look. In its first look it
// knows no change, and tells the newest ring and the newest checkpoint, in case no observer was
// there. Without ours it only takes notice, because the observer beside the leader tells.
func (k *keeper) tell(ctx context.Context, run int64, view cluster.View, ours bool) {
	progress := k.progress(view)
	news, now := k.news(run, view, progress)
	if k.known.run != now.run {
		news = newest(news)
	}
	k.known = now
	if !ours {
		return
	}
	for _, e := range news {
		if !k.events.TryAccept() {
			return
		}
		if err := k.beside.Job.Tell(ctx, e, k.now()); err != nil && ctx.Err() == nil {
			k.trouble(err.Error())
		}
	}
}

// newest returns the last event of each reason, of those that are recorded once.
func newest(news []kube.Event) (of []kube.Event) {
	for i, e := range news {
		later := func(o kube.Event) bool { return o.Reason == e.Reason }
		if e.Once != "" && !slices.ContainsFunc(news[i+1:], later) {
			of = append(of, e)
		}
	}
	return of
}

// news returns the events since the last look, and what is known now.
func (k *keeper) news(
	run int64, view cluster.View, progress kube.Progress,
) (news []kube.Event, now known) {
	state, last := k.state(), k.known
	now = known{run: run, generation: last.generation, checkpoint: last.checkpoint,
		plan: view.Plan.Generation, evicted: map[string]bool{}, over: progress.Over()}
	add := func(warning bool, reason, format string, a ...any) {
		news = append(news, kube.Event{Warning: warning, Reason: reason,
			Text: fmt.Sprintf(format, a...)})
	}
	once := func(name ...any) { news[len(news)-1].Once = fmt.Sprint(name...) }
	for _, m := range view.Plan.Members {
		now.members = append(now.members, m.ID)
	}
	if lost := lostOf(last, now, view.Plan); len(lost) > 0 {
		add(true, "WorkerLost", "%s left the ring: %s", strings.Join(lost, ", "),
			view.Plan.Reason)
	}
	for _, e := range view.Plan.Evicted {
		now.evicted[e.ID] = true
		if !last.evicted[e.ID] {
			add(true, "WorkerEvicted", "%s is kept out of the ring: %s", e.ID, e.Reason)
		}
	}
	for _, ring := range state.Formed {
		if ring.Generation > now.generation {
			now.generation = ring.Generation
			add(false, "RingFormed", "%d workers, generation %d, after step %d: %s",
				ring.WorldSize, ring.Generation, ring.Step, ring.Reason)
			once("ring-", run, "-", ring.Generation)
		}
	}
	for _, saved := range state.Checkpoints {
		if saved.Step > now.checkpoint {
			now.checkpoint = saved.Step
			add(false, "CheckpointSaved", "step %d: %s", saved.Step, kube.Outside(saved.Path))
			once("checkpoint-", run, "-", saved.Step)
		}
	}
	switch {
	case !now.over || last.over:
	case view.Plan.Failed:
		add(true, "Failed", "%s", progress.Reason)
	default:
		add(false, "Done", "step %d: %s", progress.Step, progress.Reason)
	}
	if now.over && !last.over {
		once("end-", run)
	}
	return news, now
}

// lostOf returns the members of the last plan that the present one lacks, unless the job ends or
// was scaled down.
func lostOf(last, now known, plan cluster.Plan) []string {
	if now.plan == last.plan || plan.Phase == cluster.Stopping || plan.Phase == cluster.Ended ||
		plan.Limit > 0 && plan.Limit < len(last.members) {
		return nil
	}
	left := map[string]bool{}
	for _, id := range last.members {
		left[id] = !slices.Contains(now.members, id)
	}
	maps.DeleteFunc(left, func(_ string, lost bool) bool { return !lost })
	return slices.Sorted(maps.Keys(left))
}
