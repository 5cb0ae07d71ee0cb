package local

import (
	"context"
	"errors"
	"fmt"
	"os"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/internal/app"
)

// errSeen ends a watch after its first result.
var errSeen = errors.New("seen")

// endAbandoned ends a run that has no leader and no registered worker. It waits for the leases of
// recently died processes. If the run is alive it returns a usage error.
func (r Run) endAbandoned(ctx context.Context, store *etcdstore.Store) error {
	ttl := r.Spec.LeaseTtl.AsDuration()
	alive := app.Usagef("it is running already: see it with rondo workers, end it with rondo " +
		"stop, or choose another name with --job")
	if leader, err := store.Leader(ctx); err == nil {
		r.Log(fmt.Sprintf("job %s is led by %s at %s; waiting %v to see whether it is alive",
			r.Spec.Job, leader.ID, leader.Address, 2*ttl))
	}
	wait, cancel := context.WithTimeout(ctx, 2*ttl)
	defer cancel()
	self := cluster.Leader{ID: fmt.Sprintf("submitter-%s-%d", meet.HostName(), os.Getpid()),
		Address: "none"}
	leadership, err := store.Campaign(wait, self, ttl)
	if err != nil {
		if ctx.Err() == nil && wait.Err() != nil {
			return alive // another process leads it
		}
		return err
	}
	defer func() {
		resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDelay)
		defer cancel()
		_ = leadership.Resign(resign) // if this fails, its lease ends
	}()
	plan, err := leadership.LoadPlan(wait)
	if err != nil || plan.Phase == cluster.Ended {
		return err
	}
	err = leadership.WatchMembers(wait, func(members []cluster.Member) error {
		if len(members) == 0 {
			return errSeen
		}
		return nil
	})
	switch {
	case ctx.Err() == nil && wait.Err() != nil:
		return alive // its workers are alive
	case !errors.Is(err, errSeen):
		return err
	}
	plan.Phase, plan.Failed = cluster.Ended, true
	plan.Reason = "its coordinator and its workers were gone when it was submitted again"
	return leadership.PutPlan(ctx, plan)
}
