package jobspec

import (
	"cmp"
	"fmt"
	"math"
	"time"

	rondov1 "rondo/proto/rondo/v1"
)

// HeartbeatsPerChunkTimeout is the number of signs of life that an idle sender gives within
// --chunk-timeout. So many must be lost or late in a row before its neighbour counts it as dead.
const HeartbeatsPerChunkTimeout = 4

// MinChunkTimeout is the shortest --chunk-timeout. With less, a heartbeat that the system schedules
// slightly late would look like a death.
const MinChunkTimeout = 100 * time.Millisecond

// Rung is one deadline of a job.
type Rung struct {
	Name   string // the flag's, if Flag
	Flag   bool
	Of     string // the flag that it is derived from, unless Flag
	Value  time.Duration
	Bounds string // the wait that it bounds, for people
	Needs  []Need
}

// Need says that a rung must be at least Times as long as another, and why.
type Need struct {
	Times int
	Rung  string
	Why   string
}

// Deadlines returns the ladder of a job's deadlines, the shortest first. A rung that must follow
// another's end is at least twice as long, which leaves as much time again to act.
func Deadlines(spec *rondov1.JobSpec) []Rung {
	return []Rung{
		{Name: "heartbeat", Of: "chunk-timeout",
			Value: spec.ChunkTimeout.AsDuration() / HeartbeatsPerChunkTimeout,
			Bounds: "the silence of a worker that is itself waiting; a quarter of " +
				"--chunk-timeout"},
		{Name: "chunk-timeout", Flag: true, Value: spec.ChunkTimeout.AsDuration(),
			Bounds: "the silence of a neighbour in the ring; it must leave time for one chunk of " +
				"1 MiB on the slowest link",
			Needs: []Need{{HeartbeatsPerChunkTimeout, "heartbeat",
				"a late sign of life is not a death"}}},
		{Name: "lease-ttl", Flag: true, Value: spec.LeaseTtl.AsDuration(),
			Bounds: "the silence of a worker or leader towards etcd",
			Needs: []Need{{2, "chunk-timeout",
				"the ring must report a dead worker first; the lease is the backstop"}}},
		{Name: "step-timeout", Flag: true, Value: spec.StepTimeout.AsDuration(),
			Bounds: "the wait for a neighbour that lives but sends nothing new; up to a quarter " +
				"more in later ring steps",
			Needs: []Need{{2, "chunk-timeout", "the neighbour may itself be waiting for a dead " +
				"worker, and must notice first"}}},
		{Name: "step across hosts", Of: "step-timeout",
			Value: AcrossHosts(spec.StepTimeout.AsDuration()),
			Bounds: "the same wait, in the rings across hosts (--topology): one and a half " +
				"times --step-timeout",
			Needs: []Need{{1, "step-timeout", "the neighbour may itself be waiting for one on " +
				"its host, and must notice first"}}},
		{Name: "gather within a host", Of: "step-timeout",
			Value:  WithinHost(spec.StepTimeout.AsDuration()),
			Bounds: "the same wait, within a host for its sums across hosts; twice --step-timeout",
			Needs: []Need{{1, "step across hosts", "the neighbour may itself be waiting for " +
				"another host, and must notice first"}}},
		{Name: "regroup-timeout", Flag: true, Value: spec.RegroupTimeout.AsDuration(),
			Bounds: "the wait for the next ring",
			Needs: []Need{
				{2, "lease-ttl", "if the leader is gone too, its lease must run out before " +
					"another is elected and plans"},
				{1, "gather within a host", "the first to leave the ring waits for the last to " +
					"notice"},
			}},
		{Name: "join-timeout", Flag: true, Value: spec.JoinTimeout.AsDuration(),
			Bounds: "the wait for --workers when a job starts",
			Needs: []Need{{1, "regroup-timeout",
				"a ring that breaks in this time must be able to form again"}}},
		{Name: "pause-timeout", Flag: true, Value: spec.PauseTimeout.AsDuration(),
			Bounds: "the wait of a job with fewer than --min-workers, or of a worker without etcd",
			Needs: []Need{{1, "join-timeout",
				"workers come back no faster than they come"}}},
	}
}

// AcrossHosts is the wait in a hierarchy's rings across hosts, from the --step-timeout. See
// allreduce.Config for the reason.
func AcrossHosts(step time.Duration) time.Duration { return min(step/2, math.MaxInt64-step) + step }

// WithinHost is the wait in a hierarchy's gather within a host; see AcrossHosts.
func WithinHost(step time.Duration) time.Duration { return min(step, math.MaxInt64-step) + step }

// label is a rung's name as a user types it.
func (r Rung) label() string {
	if r.Flag {
		return "--" + r.Name
	}
	return r.Name
}

// validateDeadlines compares each rung with those that must be shorter.
func validateDeadlines(spec *rondov1.JobSpec) error {
	if d := spec.ChunkTimeout.AsDuration(); d < MinChunkTimeout {
		return usagef("--chunk-timeout %v is too short for any machine: give at least %v", d,
			MinChunkTimeout)
	}
	ladder := Deadlines(spec)
	byName := map[string]Rung{}
	for _, r := range ladder {
		byName[r.Name] = r
	}
	for _, r := range ladder {
		for _, need := range r.Needs {
			other := byName[need.Rung]
			// Divided, not multiplied, so that no duration overflows.
			if r.Value/time.Duration(need.Times) >= other.Value {
				continue
			}
			return usagef("%s %v must be at least %s %v (%s): raise %s or lower --%s",
				r.label(), r.Value, atLeast(need, other), other.Value, need.Why, r.label(),
				cmp.Or(other.Of, other.Name))
		}
	}
	return nil
}

// atLeast writes a need, such as "twice --chunk-timeout".
func atLeast(need Need, other Rung) string {
	switch need.Times {
	case 1:
		return "as long as " + other.label()
	case 2:
		return "twice " + other.label()
	}
	return fmt.Sprintf("%d times %s", need.Times, other.label())
}
