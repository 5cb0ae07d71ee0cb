package cluster

import (
	"context"
	"errors"
	"time"
)

// Leader is a coordinator's entry in the store.
type Leader struct {
	ID      string
	Address string // host:port of its Coordinator service
}

// Errors on which a store's callers branch.
var (
	// ErrDeposed: this process does not lead (any more), and nothing was written.
	ErrDeposed = errors.New("another coordinator leads the job")
	// ErrNoLeader: no coordinator leads the job now.
	ErrNoLeader = errors.New("no coordinator leads the job at the moment")
	// ErrNoSpec: the job has not been submitted.
	ErrNoSpec = errors.New("no job of this name has been submitted")
)

// Submissions is the submitter's view of the store.
type Submissions interface {
	// PutSpec stores a job's spec. If a run of that name has not ended, it changes nothing and
	// returns that run's spec, for the caller to compare; created says which. A spec that replaces
	// an ended run's also stores Plan.Next, in one transaction.
	PutSpec(ctx context.Context, spec []byte) (stored []byte, created bool, err error)
	// PutRun is PutSpec for a run that several processes may submit. In the same transaction it
	// asks over whether spec may replace the stored one of an ended run. It returns the same
	// results each time for the same spec.
	PutRun(ctx context.Context, spec []byte, over func(stored []byte) bool) (
		stored []byte, created bool, err error)
}

// Registry is a worker's view of the store.
type Registry interface {
	// Spec returns the job's spec, or ErrNoSpec.
	Spec(ctx context.Context) ([]byte, error)
	// Register enters a member. The entry lasts while this process keeps its lease, which ends ttl
	// after its last renewal. It waits for an unavailable store until ctx ends.
	Register(ctx context.Context, m Member, ttl time.Duration) (Registration, error)
	// WatchPlan calls fn with the present plan (the zero Plan if there is none), and with the
	// newest plan after each change. It returns ctx's error when ctx ends, or fn's error. It waits
	// for an unavailable store.
	WatchPlan(ctx context.Context, fn func(Plan) error) error
	// Leader returns the job's leader, or ErrNoLeader.
	Leader(ctx context.Context) (Leader, error)
	// Tip returns the tip on record; the zero Tip if there is none.
	Tip(ctx context.Context) (Tip, error)
	// PutTip stores a tip, unless a later one is stored.
	PutTip(ctx context.Context, t Tip) error
}

// Registration is a member's entry, kept alive in the background.
type Registration interface {
	// Lost is closed when the entry may be gone: its lease has ended by this process's monotonic
	// clock, or the store says so. Other workers may then take over its lanes.
	Lost() <-chan struct{}
	// Leave removes the entry and stops its renewal. A second call does nothing.
	Leave(ctx context.Context) error
}

// View is a job's content in the store at one moment.
type View struct {
	Spec    []byte
	Plan    Plan
	Members []Member // registered, by host and id
	Leader  Leader   // the zero Leader: none
}

// Viewer is an observer's view of the store.
type Viewer interface {
	// View returns the job, or ErrNoSpec.
	View(ctx context.Context) (View, error)
}

// Election is a coordinator's view of the store.
type Election interface {
	// Campaign waits until self leads the job, or ctx ends. The leadership ends ttl after its last
	// renewal by this process.
	Campaign(ctx context.Context, self Leader, ttl time.Duration) (Leadership, error)
}

// Leadership has the operations of the leader. LoadPlan and PutPlan fail with ErrDeposed as soon as
// another process may lead, however long this process was stopped before the call.
type Leadership interface {
	// Lost is closed when another process may lead, as in Registration.Lost.
	Lost() <-chan struct{}
	// LoadPlan returns the stored plan; the zero Plan if there is none. Call it before PutPlan.
	LoadPlan(ctx context.Context) (Plan, error)
	// PutPlan replaces the plan that was loaded or stored last. It waits for an unavailable store
	// until the leadership is lost.
	PutPlan(ctx context.Context, p Plan) error
	// LoadTip returns the tip on record, as Registry.Tip does.
	LoadTip(ctx context.Context) (Tip, error)
	// WatchMembers calls fn with all members, unordered, and again after each change. It ends like
	// Registry.WatchPlan.
	WatchMembers(ctx context.Context, fn func([]Member) error) error
	// Resign ends the leadership. A second call does nothing.
	Resign(ctx context.Context) error
}
