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

// errSeen ends a watch that was for one look.
var errSeen = errors.New("seen")

// endAbandoned ends a run that nobody leads and no worker is registered for. It waits for the
// leases of processes that died a moment ago; a run that lives is a usage error.
func (r Run) endAbandoned(ctx context.Context, store *etcdstore.Store) error {
	ttl := r.Spec.LeaseTtl.AsDuration()
	alive := app.Usagef("it is running already: see it with rondo workers, end it with rondo " +
		"stop, or choose another name with --job")
	if leader, err := store.Leader(ctx); err == nil {
		r.Log(fmt.Sprintf("job %s is led by %s at %s; waiting %v to see whether that lives",
			r.Spec.Job, leader.ID, leader.Address, 2*ttl))
	}
	wait, cancel := context.WithTimeout(ctx, 2*ttl)
	defer cancel()
	self := cluster.Leader{ID: fmt.Sprintf("submitter-%s-%d", meet.HostName(), os.Getpid()),
		Address: "none"}
	leadership, err := store.Campaign(wait, self, ttl)
	if err != nil {
		if ctx.Err() == nil && wait.Err() != nil {
			return alive // somebody leads it
		}
		return err
	}
	defer func() {
		resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDelay)
		defer cancel()
		_ = leadership.Resign(resign) // or its lease ends
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
		return alive // its workers stay
	case !errors.Is(err, errSeen):
		return err
	}
	plan.Phase, plan.Failed = cluster.Ended, true
	plan.Reason = "its coordinator and its workers were gone when it was submitted again"
	return leadership.PutPlan(ctx, plan)
}
