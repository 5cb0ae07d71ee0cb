package telemetry

// Run is one training run of a job, as it was submitted.
type Run struct {
	Number        int64 // grows from run to run of one name
	TokensPerStep int64 // that all ranks together read in one step
}

// The phases of a job, as people and programs are told them.
const (
	PhaseWaiting  = "waiting"  // nobody has submitted the job
	PhaseForming  = "forming"  // no ring yet: workers join
	PhaseRunning  = "running"  // it trains
	PhaseStopping = "stopping" // it stops at a step's end, and saves
	PhasePaused   = "paused"   // too few workers: it holds its state
	PhaseEnded    = "ended"    // done, or stopped
	PhaseFailed   = "failed"   // it has ended, and failed
)

// Phases are all phases, in the order in which a job goes through them.
func Phases() []string {
	return []string{PhaseWaiting, PhaseForming, PhaseRunning, PhaseStopping, PhasePaused,
		PhaseEnded, PhaseFailed}
}

// The states of a worker.
const (
	SeatRing    = "ring"    // it has a rank, and is registered
	SeatLost    = "lost"    // it has a rank, and is not registered any more
	SeatLeft    = "left"    // it had a rank when the job ended, and has gone as it should
	SeatSpare   = "spare"   // it is registered, and the ring is full
	SeatJoining = "joining" // it is registered, and gets a rank in the next ring
	SeatEvicted = "evicted" // it is registered, and gets no rank
)

// SeatStates are all states of a worker.
func SeatStates() []string {
	return []string{SeatRing, SeatLost, SeatLeft, SeatSpare, SeatJoining, SeatEvicted}
}

// A Seat is a worker as the stored plan and members have it.
type Seat struct {
	Rank   int64    `json:"rank"` // -1: none
	State  string   `json:"state"`
	Reason string   `json:"reason,omitempty"` // of an eviction
	ID     string   `json:"id"`
	Host   string   `json:"host"`
	PID    int64    `json:"pid"`
	Device string   `json:"device"`
	Lanes  [2]int64 `json:"lanes"` // from, to (exclusive)
}

// A Standing is how a job stands by what is stored of it, as events say what happens to it.
type Standing struct {
	Phase      string
	Reason     string // why the plan is as it is
	Leader     string // the coordinator that leads; empty: nobody
	Generation int64
	Rings      int64 // formed in this run
	WorldSize  int64 // workers of the ring
	MinWorkers int64 // with fewer the job pauses
	Limit      int64 // workers of the ring at most
	Seats      []Seat
}
