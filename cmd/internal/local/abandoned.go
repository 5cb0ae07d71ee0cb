package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/meet"
)

// errSeen ends a watch that was for one look.
var errSeen = errors.New("seen")

// endAbandoned ends a run that nobody leads and no worker is registered for. It waits for the
// leases of processes that died a moment ago; a run that lives is a usage error.
func endAbandoned(ctx context.Context, store *etcdstore.Store, ttl time.Duration) error {
	alive := app.Usagef("it is running already: wait for its end, or choose another name with " +
		"--job")
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
