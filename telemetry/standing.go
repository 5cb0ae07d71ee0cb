package telemetry

// Run identifies one training run of a job.
type Run struct {
	Number int64 // grows with each run of the same job name
}

// The phases of a job.
const (
	PhaseWaiting  = "waiting"  // the job is not submitted yet
	PhaseForming  = "forming"  // no ring yet; workers join
	PhaseRunning  = "running"  // the job trains
	PhaseStopping = "stopping" // it saves and stops after the current step
	PhasePaused   = "paused"   // too few workers; they keep the state
	PhaseEnded    = "ended"    // done, or stopped
	PhaseFailed   = "failed"   // ended with a failure
)

// Phases returns all phases in the order in which a job passes through them.
func Phases() []string {
	return []string{PhaseWaiting, PhaseForming, PhaseRunning, PhaseStopping, PhasePaused,
		PhaseEnded, PhaseFailed}
}

// The states of a worker.
const (
	SeatRing    = "ring"    // has a rank and is registered
	SeatLost    = "lost"    // has a rank but is no longer registered
	SeatLeft    = "left"    // had a rank when the job ended, and left normally
	SeatSpare   = "spare"   // registered, but the ring is full
	SeatJoining = "joining" // registered; gets a rank in the next ring
	SeatEvicted = "evicted" // registered, but gets no rank
)

// SeatStates returns all states of a worker.
func SeatStates() []string {
	return []string{SeatRing, SeatLost, SeatLeft, SeatSpare, SeatJoining, SeatEvicted}
}

// A Seat describes a worker, from the stored plan and members.
type Seat struct {
	Rank   int64    `json:"rank"` // -1: none
	State  string   `json:"state"`
	Reason string   `json:"reason,omitempty"` // why it was evicted
	ID     string   `json:"id"`
	Host   string   `json:"host"`
	PID    int64    `json:"pid"`
	Device string   `json:"device"`
	Lanes  [2]int64 `json:"lanes"` // first lane and end (exclusive)
}

// A Standing is a job's state as stored. Events, in contrast, describe changes.
type Standing struct {
	Phase      string
	Reason     string // of the plan
	Leader     string // the leading coordinator; empty: none
	Generation int64
	Rings      int64 // formed in this run
	WorldSize  int64 // workers in the ring
	MinWorkers int64 // the job pauses with fewer
	Limit      int64 // maximum workers in the ring
	Seats      []Seat
}
