// Package cluster is the membership of a job: who is in the ring, which lanes each holds, and what
// happens when a worker joins, fails or is done. Decide is a pure function of state, event and
// time; the interfaces in store.go say what a coordinator and a worker need of etcd.
//
// The package reads no clock, opens no socket and starts no goroutine: cluster/coordinator runs
// it, cluster/etcdstore keeps its plans, cluster/rpc carries its events. It imports nothing of
// ours.
package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rank is a worker's place in the ring of one generation, from 0.
type Rank int

// Generation grows each time the members of the ring change. The first ring's is above 0.
type Generation int

// Lane is one row of the global batch, from 0.
type Lane int

// Job is what membership needs to know of a JobSpec.
type Job struct {
	Workers     int           // the ring's size
	Lanes       int           // of the global batch
	JoinTimeout time.Duration // how long to wait for the workers
}

// Validate returns an error that names the flag at fault.
func (j Job) Validate() error {
	switch {
	case j.Workers < 1:
		return fmt.Errorf("--workers %d: a job needs at least one worker", j.Workers)
	case j.Lanes < j.Workers:
		return fmt.Errorf("--batch %d is less than --workers %d: each worker needs a lane",
			j.Lanes, j.Workers)
	case j.JoinTimeout <= 0:
		return fmt.Errorf("--join-timeout %v: must be above zero", j.JoinTimeout)
	}
	return nil
}

// Member is a worker process as it registers.
type Member struct {
	ID      string // unique to this run of the process
	Address string // host:port of its Ring service
	Host    string
	PID     int
	Device  string // as compute.Device names it
}

// Phase is how far a job has come.
type Phase int

// The phases, in the order in which a job goes through them.
const (
	Forming  Phase = iota // no ring yet: workers join
	Running               // train
	Stopping              // stop together at a step boundary, and save
	Ended                 // done, or failed: leave
)

func (p Phase) String() string {
	switch p {
	case Forming:
		return "forming"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	case Ended:
		return "ended"
	}
	return fmt.Sprintf("phase %d", int(p))
}

// Plan is what the leader decides and the store keeps. The zero value is the plan of a job that
// nobody has decided anything about.
type Plan struct {
	Generation Generation
	Members    []Member // in ring order: the index is the rank
	LaneEnds   []Lane   // rank r holds lanes [LaneEnds[r-1], LaneEnds[r])
	Phase      Phase
	Reason     string // why this plan was made, for people
	Failed     bool   // with Ended: the job failed, and Reason says why
	Usage      bool   // with Failed: the job's input is wrong, not the run
}

// Rank returns the worker's place in the ring; false if it has none.
func (p Plan) Rank(id string) (Rank, bool) {
	i := slices.IndexFunc(p.Members, func(m Member) bool { return m.ID == id })
	return Rank(i), i >= 0
}

// Lanes returns the lanes [from, to) that rank r holds.
func (p Plan) Lanes(r Rank) (from, to Lane) {
	if r > 0 {
		from = p.LaneEnds[r-1]
	}
	return from, p.LaneEnds[r]
}

// Equal reports whether two plans say the same.
func (p Plan) Equal(q Plan) bool {
	return p.Generation == q.Generation && p.Phase == q.Phase && p.Reason == q.Reason &&
		p.Failed == q.Failed && p.Usage == q.Usage &&
		slices.Equal(p.Members, q.Members) && slices.Equal(p.LaneEnds, q.LaneEnds)
}

// Next returns the plan with which a job of the same name starts anew after this one has ended.
// The generation goes on growing, so that a message of the old run is stale in the new.
func (p Plan) Next() Plan {
	return Plan{Generation: p.Generation + 1, Phase: Forming, Reason: "a new run of the job"}
}

// Validate checks a plan that was read from outside: its shape, not whether it is wise.
func (p Plan) Validate() error {
	if p.Generation < 0 {
		return fmt.Errorf("plan: generation %d is negative", p.Generation)
	}
	if p.Phase < Forming || p.Phase > Ended {
		return fmt.Errorf("plan of generation %d: unknown %v", p.Generation, p.Phase)
	}
	if len(p.Members) != len(p.LaneEnds) {
		return fmt.Errorf("plan of generation %d: %d members but %d lane ends",
			p.Generation, len(p.Members), len(p.LaneEnds))
	}
	inRing := p.Phase == Running || p.Phase == Stopping
	if inRing && (len(p.Members) == 0 || p.Generation == 0) {
		return fmt.Errorf("plan of generation %d is %v with %d members",
			p.Generation, p.Phase, len(p.Members))
	}
	if p.Failed && p.Phase != Ended || p.Usage && !p.Failed {
		return fmt.Errorf("plan of generation %d is %v with failed %t, usage %t",
			p.Generation, p.Phase, p.Failed, p.Usage)
	}
	seen := make(map[string]bool, len(p.Members))
	end := Lane(0)
	for r, m := range p.Members {
		if m.ID == "" || seen[m.ID] {
			return fmt.Errorf("plan of generation %d: the id %q of rank %d is empty or taken",
				p.Generation, m.ID, r)
		}
		if p.LaneEnds[r] <= end {
			return fmt.Errorf("plan of generation %d: rank %d's lanes end at %d, not after %d",
				p.Generation, r, p.LaneEnds[r], end)
		}
		seen[m.ID], end = true, p.LaneEnds[r]
	}
	return nil
}

// Fits returns an error if the plan's lanes are not the job's.
func (p Plan) Fits(j Job) error {
	if n := len(p.LaneEnds); n > 0 && p.LaneEnds[n-1] != Lane(j.Lanes) {
		return fmt.Errorf("the stored plan of generation %d deals %d lanes, the job has %d: "+
			"they belong to different runs", p.Generation, p.LaneEnds[n-1], j.Lanes)
	}
	return nil
}

// RingOrder returns the members in the order of the ring: one host's workers side by side, so
// that as few links as possible leave a host, then by id. The order does not depend on who joined
// first.
func RingOrder(members []Member) []Member {
	return slices.SortedFunc(slices.Values(members), func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID))
	})
}

// DealLanes returns the lane ends of a ring: rank r of n holds [lanes*r/n, lanes*(r+1)/n), so that
// shares differ by one lane at most.
func DealLanes(lanes, n int) []Lane {
	ends := make([]Lane, n)
	for r := range ends {
		ends[r] = Lane(lanes * (r + 1) / n)
	}
	return ends
}
