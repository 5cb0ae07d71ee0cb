// Package cluster decides the membership of a job: the workers in the ring, their lanes, and the
// response when a worker joins, fails or is done. Decide is a pure function of state, event and
// time. The interfaces in store.go are the coordinator's and the workers' view of etcd.
//
// The package reads no clock, opens no socket and starts no goroutine. cluster/coordinator runs it,
// cluster/etcdstore stores its plans, and cluster/rpc carries its events. It imports no other
// package of Rondo.
package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rank is a worker's place in the ring of one generation, from 0.
type Rank int

// Generation grows each time the members of the ring change. The first ring's generation is above
// 0.
type Generation int

// Lane is one row of the global batch, from 0.
type Lane int

// Job is the part of a JobSpec that membership depends on.
type Job struct {
	Workers      int           // a start waits for this many
	MinWorkers   int           // the job pauses with fewer
	MaxWorkers   int           // most in the ring, unless `rondo scale` sets another; 0: Workers
	Lanes        int           // of the global batch
	Groups       int           // of lanes held by one worker; divides Lanes; 0: one per lane
	JoinTimeout  time.Duration // how long a start waits for Workers
	PauseTimeout time.Duration // how long a pause waits for MinWorkers
	Spread       bool          // put neighbours in the ring on different hosts where possible
	Version      string        // of the protocol between workers; others are refused
	Run          int64         // number of this run; tips of others do not count
	Next         int64         // number of a newer run that waits for this one's end; 0: none
}

// Validate returns an error that names the flag at fault.
func (j Job) Validate() error {
	switch {
	case j.Workers < 1:
		return fmt.Errorf("--workers %d: a job needs at least one worker", j.Workers)
	case j.MinWorkers < 1:
		return fmt.Errorf("--min-workers %d: a job needs at least one worker", j.MinWorkers)
	case j.MinWorkers > j.Workers:
		return fmt.Errorf("--min-workers %d is more than --workers %d", j.MinWorkers, j.Workers)
	case j.Groups < 0 || j.Groups > 0 && j.Lanes%j.Groups != 0:
		return fmt.Errorf("--lane-groups %d must divide --batch %d", j.Groups, j.Lanes)
	case j.Groups > 0 && j.Groups < max(j.Workers, j.max()):
		return fmt.Errorf("--lane-groups %d is less than the workers, %d: each needs one",
			j.Groups, max(j.Workers, j.max()))
	case j.Lanes < j.Workers:
		return fmt.Errorf("--batch %d is less than --workers %d: each worker needs a lane",
			j.Lanes, j.Workers)
	case j.max() < j.Workers:
		return fmt.Errorf("--max-workers %d is less than --workers %d", j.MaxWorkers, j.Workers)
	case j.Lanes < j.max():
		return fmt.Errorf("--batch %d is less than --max-workers %d: each worker needs a lane",
			j.Lanes, j.MaxWorkers)
	case j.JoinTimeout <= 0:
		return fmt.Errorf("--join-timeout %v: must be above zero", j.JoinTimeout)
	case j.PauseTimeout <= 0:
		return fmt.Errorf("--pause-timeout %v: must be above zero", j.PauseTimeout)
	}
	return nil
}

// CheckScale returns an error with the bounds if a ring cannot have n workers.
func (j Job) CheckScale(n int) error {
	most := "--batch: each worker needs a lane"
	if j.Groups > 0 {
		most = "--lane-groups: each worker needs one"
	}
	if n < j.MinWorkers || n > j.shares() {
		return fmt.Errorf("%s: this job can have %d (--min-workers) to %d (%s)",
			count(n, "worker", "workers"), j.MinWorkers, j.shares(), most)
	}
	return nil
}

// Limit returns the most workers that a ring may have under a plan.
func (j Job) Limit(p Plan) int {
	if p.Limit > 0 {
		return min(p.Limit, j.shares())
	}
	return min(j.max(), j.shares())
}

// shares returns the most workers among which the lanes can be dealt.
func (j Job) shares() int {
	if j.Groups > 0 {
		return j.Groups
	}
	return j.Lanes
}

// deal returns the lane ends of a ring of n workers. Each worker gets whole groups.
func (j Job) deal(n int) []Lane {
	ends := DealLanes(j.shares(), n)
	for r := range ends {
		ends[r] *= Lane(j.Lanes / j.shares())
	}
	return ends
}

func (j Job) max() int {
	if j.MaxWorkers == 0 {
		return j.Workers
	}
	return j.MaxWorkers
}

// Member is a worker process's registration.
type Member struct {
	ID       string // unique to this registration of the process
	Address  string // host:port of its Ring service
	Host     string
	PID      int    // the process id, or a random negative number in a container
	Process  string // random, and unique to the process, whose registrations all have it
	Device   string // as compute.Device names it
	Version  string // of the protocol between workers
	Identity string // fingerprint of the job, with its text, as this worker reads it
	// At its registration: Seen is the highest generation that this process knows, and Served that
	// of the last ring in which it trained and whose state it has; 0: none.
	Seen, Served Generation
}

// process identifies a member's process. A registration without a name is a process of its own.
func (m Member) process() string { return cmp.Or(m.Process, m.ID) }

// Place returns the process's place for people. In a container the worker's ID names the process.
func (m Member) Place() string {
	if m.PID < 0 {
		return "host " + m.Host
	}
	return fmt.Sprintf("host %s, pid %d", m.Host, m.PID)
}

// Remedy tells an evicted worker what to do.
type Remedy int

// The remedies.
const (
	Rejoin Remedy = 1 + iota // register under a new id, with its state
	Resync                   // register under a new id, without its state, which may be wrong
	Wait                     // stay out: too slow (a spare if too few are left), or wrong state
	Leave                    // exit: it does not fit the job
)

func (r Remedy) String() string {
	switch r {
	case Rejoin:
		return "rejoin"
	case Resync:
		return "resync"
	case Wait:
		return "wait"
	case Leave:
		return "leave"
	}
	return fmt.Sprintf("remedy %d", int(r))
}

// Eviction keeps a worker out of the ring while it is registered under this id.
type Eviction struct {
	ID     string
	Reason string
	Remedy Remedy
}

// Phase is the progress of a job.
type Phase int

// The phases, in the order in which a job goes through them.
const (
	Forming  Phase = iota // no ring yet: wait for workers
	Running               // train
	Stopping              // stop together at a step boundary, and save
	Paused                // too few workers: keep the state and wait
	Ended                 // done or failed: leave
)

func (p Phase) String() string {
	switch p {
	case Forming:
		return "forming"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	case Paused:
		return "paused"
	case Ended:
		return "ended"
	}
	return fmt.Sprintf("phase %d", int(p))
}

// Plan is the leader's decision, kept by the store. The zero value is the plan of a job before any
// decision.
type Plan struct {
	Generation Generation
	Members    []Member // in ring order: the index is the rank
	LaneEnds   []Lane   // rank r holds lanes [LaneEnds[r-1], LaneEnds[r])
	Phase      Phase
	Reason     string // for people: why this plan was made
	Failed     bool   // with Ended: the job failed, and Reason says why
	Usage      bool   // with Failed: the job's input is at fault
	Limit      int    // most workers in the ring, set by `rondo scale`; 0: the job's
	Rings      int    // rings formed in this run of the job
	Evicted    []Eviction
	Identity   string // Member.Identity of this run's workers, set by the first ring
	// Nonce is random for each generation. The leader's loop sets it, and no decision depends on
	// it.
	Nonce string
	// Result is, with Ended, the Done.Result of the lowest rank that reported one. It is stored
	// with the plan, so that it survives the leader.
	Result string
	// Resume is set from the moment at which the store is known to have lost writes until the next
	// ring: rings from this generation on may be forgotten. 0: none.
	Resume Generation
	// Last is the last ring, by rank, without members whose state may be wrong. It is set while
	// there is no ring, and while the present ring has newcomers that may lack the job's state,
	// which members of the last ring may have.
	Last []Member
}

// Rank returns the worker's place in the ring; false if it has none.
func (p Plan) Rank(id string) (Rank, bool) {
	i := slices.IndexFunc(p.Members, func(m Member) bool { return m.ID == id })
	return Rank(i), i >= 0
}

// veterans returns the members that may have the job's state: the last ring's if Last is set,
// otherwise the present ring's.
func (p Plan) veterans() []Member {
	if len(p.Last) > 0 {
		return p.Last
	}
	return p.Members
}

// Eviction returns the worker's eviction; false if it has none.
func (p Plan) Eviction(id string) (Eviction, bool) {
	i := slices.IndexFunc(p.Evicted, func(e Eviction) bool { return e.ID == id })
	if i < 0 {
		return Eviction{}, false
	}
	return p.Evicted[i], true
}

// evictions returns the evictions by worker.
func (p Plan) evictions() map[string]Eviction {
	of := make(map[string]Eviction, len(p.Evicted))
	for _, e := range p.Evicted {
		of[e.ID] = e
	}
	return of
}

// Lanes returns the lanes [from, to) that rank r holds.
func (p Plan) Lanes(r Rank) (from, to Lane) {
	if r > 0 {
		from = p.LaneEnds[r-1]
	}
	return from, p.LaneEnds[r]
}

// Equal reports whether two plans have equal fields.
func (p Plan) Equal(q Plan) bool {
	return p.Generation == q.Generation && p.Phase == q.Phase && p.Reason == q.Reason &&
		p.Failed == q.Failed && p.Usage == q.Usage && p.Limit == q.Limit && p.Rings == q.Rings &&
		p.Identity == q.Identity && p.Nonce == q.Nonce && p.Result == q.Result &&
		p.Resume == q.Resume &&
		slices.Equal(p.Members, q.Members) && slices.Equal(p.LaneEnds, q.LaneEnds) &&
		slices.Equal(p.Evicted, q.Evicted) && slices.Equal(p.Last, q.Last)
}

// Next returns the first plan of a new run of this job, which has ended. The generation goes on
// growing, so that messages of the old run are stale in the new one.
func (p Plan) Next() Plan {
	return Plan{Generation: p.Generation + 1, Phase: Forming, Reason: "a new run of the job"}
}

// Validate checks the shape of a plan that was read from outside. It does not check the decision.
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
	if inRing && (len(p.Members) == 0 || p.Generation == 0) ||
		p.Phase == Paused && len(p.Members) > 0 {
		return fmt.Errorf("plan of generation %d is %v with %d members",
			p.Generation, p.Phase, len(p.Members))
	}
	if last := len(p.Last); last > 0 && p.Rings == 0 {
		return fmt.Errorf("plan of generation %d has a last ring of %d, and none was formed",
			p.Generation, last)
	}
	if p.Limit < 0 || p.Rings < 0 || p.Resume < 0 {
		return fmt.Errorf("plan of generation %d has limit %d, %d rings and resumes from %d",
			p.Generation, p.Limit, p.Rings, p.Resume)
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
	for _, e := range p.Evicted {
		if e.ID == "" || seen[e.ID] || e.Remedy < Rejoin || e.Remedy > Leave {
			return fmt.Errorf("plan of generation %d: the eviction %+v has no id, an id that is "+
				"taken, or no valid remedy", p.Generation, e)
		}
		seen[e.ID] = true
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

// DealLanes returns the lane ends of a ring: rank r of n holds [lanes*r/n, lanes*(r+1)/n). Shares
// differ by at most one lane.
func DealLanes(lanes, n int) []Lane {
	ends := make([]Lane, n)
	for r := range ends {
		ends[r] = Lane(lanes * (r + 1) / n)
	}
	return ends
}
