package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rondo/cluster"
)

// errCandidacyEnded: the candidate's own key disappeared while it waited.
var errCandidacyEnded = errors.New("the candidate's own key is gone")

// Campaign implements cluster.Election. A candidate puts a key under its lease. It leads when one
// read finds its own key and no older one. If its key disappears while it waits, it starts over.
func (s *Store) Campaign(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	cluster.Leadership, error) {
	for pause := newBackoff(); ; {
		leading, err := s.candidacy(ctx, self, ttl)
		if err == nil {
			return leading, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if permanent(err) && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil, fmt.Errorf("campaigning for the leadership: %w", err)
		}
		s.log.Warn("etcd: campaigning again", "error", err)
		if !pause.wait(ctx) {
			return nil, ctx.Err()
		}
	}
}

// candidacy puts one key and waits until it leads.
func (s *Store) candidacy(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	*leadership, error) {
	l, err := s.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	leading := &leadership{store: s, lease: l, key: s.candidateKey(l),
		rewound: s.history.next(), rosters: make(map[string]bool)}
	if err := leading.await(ctx, self); err != nil {
		l.abandon(ctx)
		return nil, err
	}
	return leading, nil
}

// leadership is the oldest candidate's key.
type leadership struct {
	store    *Store
	lease    *lease
	key      string
	revision int64           // create revision of the key: the fencing token
	rewound  <-chan struct{} // closed when etcd has lost writes, the token's perhaps

	mu           sync.Mutex
	planRevision int64 // of the plan that was loaded or stored last
	// rosters has the names of the rosters under the job's keys; true: all its parts are there.
	rosters map[string]bool
}

// await puts the key, and returns when it is the oldest.
func (l *leadership) await(ctx context.Context, self cluster.Leader) error {
	err := l.store.once(ctx, "standing for the leadership", func(ctx context.Context) error {
		answer, err := l.store.client.Put(ctx, l.key, string(encodeLeader(self)),
			clientv3.WithLease(l.lease.id))
		if err == nil {
			l.revision = answer.Header.Revision
		}
		return err
	})
	if err != nil {
		return err
	}
	waiting, cancel := l.whileValid(ctx)
	defer cancel()
	elected := errors.New("elected")
	err = l.store.follow(waiting, l.store.leaderPrefix(), func(kvs []*mvccpb.KeyValue) error {
		mine, oldest := false, true
		for _, kv := range kvs {
			mine = mine || string(kv.Key) == l.key && kv.CreateRevision == l.revision
			oldest = oldest && kv.CreateRevision >= l.revision
		}
		switch {
		case !mine || !l.lease.valid():
			return errCandidacyEnded
		case oldest:
			return elected
		}
		return nil
	})
	if errors.Is(err, elected) {
		return nil
	}
	return err
}

// whileValid returns a context that also ends with the lease.
func (l *leadership) whileValid(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-l.lease.lost:
			cancel(cluster.ErrDeposed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Lost implements cluster.Leadership.
func (l *leadership) Lost() <-chan struct{} { return l.lease.lost }

// LoadPlan implements cluster.Leadership. It reads the plan and its lists at one revision, because
// a successor may delete lists as soon as this leader is deposed.
func (l *leadership) LoadPlan(ctx context.Context) (cluster.Plan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var stored, parts []*mvccpb.KeyValue
	err := l.fenced(ctx, "loading the plan", func(ctx context.Context) error {
		answer, err := l.store.client.Txn(ctx).If(l.stillLeads()).
			Then(clientv3.OpGet(l.store.planKey()), clientv3.OpGet(l.store.rostersPrefix(),
				clientv3.WithPrefix())).Commit()
		if err != nil {
			return err
		}
		if !answer.Succeeded {
			return cluster.ErrDeposed
		}
		stored = answer.Responses[0].GetResponseRange().Kvs
		parts = answer.Responses[1].GetResponseRange().Kvs
		return nil
	})
	if err != nil {
		return cluster.Plan{}, err
	}
	l.rosters = make(map[string]bool)
	for _, kv := range parts {
		l.rosters[l.store.rosterOf(kv.Key)] = false
	}
	plan, revision, err := l.store.planIn(stored, l.store.restoreFrom(parts))
	l.planRevision = revision
	return plan, err
}

// PutPlan implements cluster.Leadership. A request without an answer may have succeeded. It is
// repeated, and a plan that it then finds may be its own.
func (l *leadership) PutPlan(ctx context.Context, p cluster.Plan) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	message := planMessage(p)
	rosters := takeOut(message)
	key, value, drops := l.store.planKey(), encode(message), l.drops(rosters)
	if err := l.putRosters(ctx, rosters); err != nil {
		return err
	}
	put := append([]clientv3.Op{clientv3.OpPut(key, string(value))}, drops...)
	err := l.fenced(ctx, "storing the plan", func(ctx context.Context) error {
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", l.planRevision)
		answer, err := l.store.client.Txn(ctx).If(l.stillLeads(), unchanged).
			Then(put...).
			Else(clientv3.OpGet(l.key), clientv3.OpGet(key)).Commit()
		if err != nil {
			return err
		}
		if answer.Succeeded {
			l.planRevision = answer.Header.Revision
			return nil
		}
		mine := answer.Responses[0].GetResponseRange().Kvs
		if len(mine) == 0 || mine[0].CreateRevision != l.revision {
			return cluster.ErrDeposed
		}
		stored := answer.Responses[1].GetResponseRange().Kvs
		if len(stored) == 0 || !bytes.Equal(stored[0].Value, value) {
			return fmt.Errorf("%w: the plan is not the one of revision %d any more",
				cluster.ErrDeposed, l.planRevision)
		}
		l.planRevision = stored[0].ModRevision
		return nil
	})
	if err == nil {
		for _, dropped := range drops {
			delete(l.rosters, l.store.rosterOf(dropped.KeyBytes()))
		}
	}
	return err
}

// fenced repeats a request until it succeeds or the leadership ends.
func (l *leadership) fenced(ctx context.Context, what string,
	request func(context.Context) error) error {
	if !l.lease.valid() || l.hasLostWrites() {
		return fmt.Errorf("%s: %w", what, cluster.ErrDeposed)
	}
	limited, cancel := l.whileValid(ctx)
	defer cancel()
	err := l.store.untilDone(limited, what, request)
	if err != nil && limited.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(limited))
	}
	return err
}

func (l *leadership) stillLeads() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.revision)
}

// hasLostWrites reports whether etcd has lost writes since the candidacy. The plan that was stored
// last may be among them, so this process campaigns again and compares the plans.
func (l *leadership) hasLostWrites() bool {
	select {
	case <-l.rewound:
		return true
	default:
		return false
	}
}

// WatchMembers implements cluster.Leadership.
func (l *leadership) WatchMembers(ctx context.Context, fn func([]cluster.Member) error) error {
	return l.store.follow(ctx, l.store.membersPrefix(), func(kvs []*mvccpb.KeyValue) error {
		if l.hasLostWrites() {
			return fmt.Errorf("watching the members: etcd has lost writes: %w", cluster.ErrDeposed)
		}
		members, err := membersIn(kvs)
		if err != nil {
			return err
		}
		return fn(members)
	})
}

// Resign implements cluster.Leadership.
func (l *leadership) Resign(ctx context.Context) error { return l.lease.release(ctx) }
