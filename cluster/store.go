package cluster

import (
	"context"
	"errors"
	"time"
)

// Leader is a coordinator as others find it.
type Leader struct {
	ID      string
	Address string // host:port of its Coordinator service
}

// Errors that callers of a store branch on.
var (
	// ErrDeposed: this process does not lead (any more); nothing was written.
	ErrDeposed = errors.New("another coordinator leads the job")
	// ErrNoLeader: nobody leads the job at the moment.
	ErrNoLeader = errors.New("no coordinator leads the job at the moment")
	// ErrNoSpec: nobody has submitted the job.
	ErrNoSpec = errors.New("no job of this name has been submitted")
)

// Submissions is what the submitter of a job needs of the store.
type Submissions interface {
	// PutSpec stores a job's spec, unless there is a run of that name that has not ended:
	// then it changes nothing and returns that run's spec, for the caller to compare. created
	// says which. A spec that is put over an ended run also puts Plan.Next, in one transaction.
	PutSpec(ctx context.Context, spec []byte) (stored []byte, created bool, err error)
	// PutRun is PutSpec for a run that several processes submit, at any time: over is asked, in
	// the same transaction, whether the spec goes over this one of an ended run. It returns the
	// same each time for the same spec.
	PutRun(ctx context.Context, spec []byte, over func(stored []byte) bool) (
		stored []byte, created bool, err error)
}

// Registry is what a worker needs of the store.
type Registry interface {
	// Spec returns the job's spec, or ErrNoSpec.
	Spec(ctx context.Context) ([]byte, error)
	// Register enters a member for as long as this process keeps its lease, which ends when
	// it is not heard from for ttl. A store that is away is waited for, until ctx ends.
	Register(ctx context.Context, m Member, ttl time.Duration) (Registration, error)
	// WatchPlan calls fn with the plan as it is (the zero Plan if there is none) and whenever it
	// has changed, the newest only. It returns when ctx ends, with its error, or with fn's
	// error; a store that is away for a while is waited for.
	WatchPlan(ctx context.Context, fn func(Plan) error) error
	// Leader returns who leads the job, or ErrNoLeader.
	Leader(ctx context.Context) (Leader, error)
}

// Registration is a member's entry, kept alive in the background.
type Registration interface {
	// Lost is closed when the entry may be gone: its lease has passed by this process's own
	// monotonic clock, or the store says so. Others may take over the worker's lanes.
	Lost() <-chan struct{}
	// Leave removes the entry and stops keeping it alive; the second call does nothing.
	Leave(ctx context.Context) error
}

// View is a job as the store holds it at one moment.
type View struct {
	Spec    []byte
	Plan    Plan
	Members []Member // registered, by host and id
	Leader  Leader   // the zero Leader: nobody leads
}

// Viewer is what a person who looks at a job needs of the store.
type Viewer interface {
	// View returns the job, or ErrNoSpec.
	View(ctx context.Context) (View, error)
}

// Election is what a coordinator needs of the store.
type Election interface {
	// Campaign waits until self leads the job, or ctx ends. The leadership ends when this
	// process is not heard from for ttl.
	Campaign(ctx context.Context, self Leader, ttl time.Duration) (Leadership, error)
}

// Leadership is what only the leader may do. LoadPlan and PutPlan fail with ErrDeposed from the
// moment at which somebody else may lead, however long the process slept before the call.
type Leadership interface {
	// Lost is closed when somebody else may lead, by the rule of Registration.Lost.
	Lost() <-chan struct{}
	// LoadPlan returns the stored plan, the zero Plan if there is none. It comes before PutPlan.
	LoadPlan(ctx context.Context) (Plan, error)
	// PutPlan stores a plan in place of the one that was loaded or put last. It waits for a
	// store that is away, until the leadership is lost.
	PutPlan(ctx context.Context, p Plan) error
	// WatchMembers calls fn with all members, in no order, and again whenever they have changed;
	// it ends like Registry.WatchPlan.
	WatchMembers(ctx context.Context, fn func([]Member) error) error
	// Resign gives the leadership up; the second call does nothing.
	Resign(ctx context.Context) error
}
