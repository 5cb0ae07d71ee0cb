package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// keys names the keys of a job.
type keys struct{ root string } // "/rondo/<job>/"

func (k keys) specKey() string              { return k.root + "spec" }
func (k keys) planKey() string              { return k.root + "plan" }
func (k keys) membersPrefix() string        { return k.root + "members/" }
func (k keys) memberKey(id string) string   { return k.membersPrefix() + id }
func (k keys) claimsPrefix() string         { return k.root + "claims/" }
func (k keys) tipKey() string               { return k.root + "tip" }
func (k keys) leaderPrefix() string         { return k.root + "leader/" }
func (k keys) candidateKey(l *lease) string { return fmt.Sprintf("%s%x", k.leaderPrefix(), l.id) }

// PutSpec implements cluster.Submissions.
func (s *Store) PutSpec(ctx context.Context, spec []byte) ([]byte, bool, error) {
	return s.PutRun(ctx, spec, func([]byte) bool { return true })
}

// PutRun implements cluster.Submissions.
func (s *Store) PutRun(ctx context.Context, spec []byte, over func([]byte) bool) (
	[]byte, bool, error) {
	uncertain := false // a request without an answer may have stored the spec
	for pause := newBackoff(); ; {
		stored, created, plan, err := s.tryPutRun(ctx, spec, over)
		switch {
		case err == nil && stored != nil:
			ours := uncertain && bytes.Equal(stored, spec) && plan.Phase == cluster.Forming
			return stored, created || ours, nil
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		case err != nil && permanent(err):
			return nil, false, err
		case err != nil:
			if uncertain {
				return nil, false, err
			}
			uncertain = true
		}
		if !pause.wait(ctx) {
			return nil, false, ctx.Err()
		}
	}
}

// tryPutRun returns a nil spec if another process changed the keys meanwhile; the caller then
// retries.
func (s *Store) tryPutRun(ctx context.Context, spec []byte, over func([]byte) bool) (
	stored []byte, created bool, plan cluster.Plan, err error) {
	err = s.once(ctx, "submitting the job", func(ctx context.Context) error {
		absent := clientv3.Compare(clientv3.CreateRevision(s.specKey()), "=", 0)
		answer, err := s.client.Txn(ctx).If(absent).
			Then(clientv3.OpPut(s.specKey(), string(spec))).
			Else(clientv3.OpGet(s.specKey()), clientv3.OpGet(s.planKey()),
				clientv3.OpGet(s.rostersPrefix(), clientv3.WithPrefix())).Commit()
		if err != nil {
			return err
		}
		if answer.Succeeded {
			stored, created = spec, true
			return nil
		}
		specKV := answer.Responses[0].GetResponseRange().Kvs[0]
		var planRevision int64
		plan, planRevision, err = s.planIn(answer.Responses[1].GetResponseRange().Kvs,
			s.restoreFrom(answer.Responses[2].GetResponseRange().Kvs))
		if err != nil {
			return err
		}
		if plan.Phase != cluster.Ended || !over(specKV.Value) {
			stored = specKV.Value
			return nil
		}
		again, err := s.client.Txn(ctx).If(
			clientv3.Compare(clientv3.ModRevision(s.specKey()), "=", specKV.ModRevision),
			clientv3.Compare(clientv3.ModRevision(s.planKey()), "=", planRevision),
		).Then(
			clientv3.OpPut(s.specKey(), string(spec)),
			clientv3.OpPut(s.planKey(), string(encode(planMessage(plan.Next())))),
			clientv3.OpDelete(s.rostersPrefix(), clientv3.WithPrefix()),
			clientv3.OpDelete(s.claimsPrefix(), clientv3.WithPrefix()),
			clientv3.OpDelete(s.tipKey()),
		).Commit()
		if err == nil && again.Succeeded {
			stored, created, plan = spec, true, plan.Next()
		}
		return err
	})
	return stored, created, plan, err
}

// planIn decodes the plan of a read of its key. Without a key it returns the zero Plan and revision
// 0.
func (k keys) planIn(kvs []*mvccpb.KeyValue, restore func(*rondov1.Plan) error) (
	cluster.Plan, int64, error) {
	if len(kvs) == 0 {
		return cluster.Plan{}, 0, nil
	}
	plan, err := planOf(kvs[0].Value, restore)
	if err != nil {
		return cluster.Plan{}, 0, fmt.Errorf("etcd key %s %w: %w", k.planKey(), errUnreadable, err)
	}
	return plan, kvs[0].ModRevision, nil
}

// Spec implements cluster.Registry.
func (s *Store) Spec(ctx context.Context) (spec []byte, err error) {
	err = s.once(ctx, "reading the job", func(ctx context.Context) error {
		answer, err := s.client.Get(ctx, s.specKey())
		if err != nil {
			return err
		}
		if len(answer.Kvs) == 0 {
			return fmt.Errorf("key %s: %w", s.specKey(), cluster.ErrNoSpec)
		}
		spec = answer.Kvs[0].Value
		return nil
	})
	return spec, err
}

// Register implements cluster.Registry.
func (s *Store) Register(ctx context.Context, m cluster.Member, ttl time.Duration) (
	cluster.Registration, error) {
	if m.ID == "" {
		return nil, fmt.Errorf("registering a worker on %s: it has no id", m.Host)
	}
	for pause := newBackoff(); ; {
		l, err := s.register(ctx, m, ttl)
		switch {
		case err == nil:
			return registration{l}, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("registering worker %s: %w (%w)", m.ID, ctx.Err(), err)
		case permanent(err) && !errors.Is(err, rpctypes.ErrLeaseNotFound):
			return nil, err
		}
		s.log.Warn("etcd: registering again", "error", err)
		if !pause.wait(ctx) {
			return nil, fmt.Errorf("registering worker %s: %w (%w)", m.ID, ctx.Err(), err)
		}
	}
}

// register enters a member under a lease of its own. If the answer is lost, the entry ends with
// that lease, or a repeated call overwrites it.
func (s *Store) register(ctx context.Context, m cluster.Member, ttl time.Duration) (*lease, error) {
	l, err := s.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	err = s.once(ctx, "registering worker "+m.ID, func(ctx context.Context) error {
		_, err := s.client.Put(ctx, s.memberKey(m.ID), string(encodeMember(m)),
			clientv3.WithLease(l.id))
		return err
	})
	if err != nil {
		l.abandon(ctx)
		return nil, err
	}
	return l, nil
}

// registration is a member's entry. It lasts as long as its lease.
type registration struct{ lease *lease }

func (r registration) Lost() <-chan struct{}           { return r.lease.lost }
func (r registration) Leave(ctx context.Context) error { return r.lease.release(ctx) }

// WatchPlan implements cluster.Registry.
func (s *Store) WatchPlan(ctx context.Context, fn func(cluster.Plan) error) error {
	told := int64(-1)
	return s.follow(ctx, s.planKey(), func(kvs []*mvccpb.KeyValue) error {
		if len(kvs) > 0 && kvs[0].ModRevision == told {
			return nil
		}
		plan, revision, err := s.planIn(kvs, func(p *rondov1.Plan) error {
			return s.rosters.restore(ctx, p)
		})
		if err != nil {
			return err
		}
		if revision == told {
			return nil
		}
		told = revision
		return fn(plan)
	})
}

// Leader implements cluster.Registry.
func (s *Store) Leader(ctx context.Context) (leader cluster.Leader, err error) {
	err = s.once(ctx, "looking for the leader", func(ctx context.Context) error {
		answer, err := s.client.Get(ctx, s.leaderPrefix(), clientv3.WithFirstCreate()...)
		if err != nil {
			return err
		}
		if len(answer.Kvs) == 0 {
			return cluster.ErrNoLeader
		}
		leader, err = leaderIn(answer.Kvs[0])
		return err
	})
	return leader, err
}

// View implements cluster.Viewer. It reads all keys at one revision.
func (s *Store) View(ctx context.Context) (view cluster.View, err error) {
	err = s.once(ctx, "looking at the job", func(ctx context.Context) error {
		answer, err := s.client.Get(ctx, s.root, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		view, err = s.viewOf(answer.Kvs)
		return err
	})
	return view, err
}

func (k keys) viewOf(kvs []*mvccpb.KeyValue) (view cluster.View, err error) {
	var members []*mvccpb.KeyValue
	oldest := int64(math.MaxInt64)
	for _, kv := range kvs {
		switch key := string(kv.Key); {
		case key == k.specKey():
			view.Spec = kv.Value
		case key == k.planKey():
			view.Plan, _, err = k.planIn([]*mvccpb.KeyValue{kv}, k.restoreFrom(kvs))
		case strings.HasPrefix(key, k.membersPrefix()):
			members = append(members, kv)
		case strings.HasPrefix(key, k.leaderPrefix()) && kv.CreateRevision < oldest:
			oldest = kv.CreateRevision
			view.Leader, err = leaderIn(kv)
		}
		if err != nil {
			return cluster.View{}, err
		}
	}
	if view.Spec == nil {
		return cluster.View{}, fmt.Errorf("key %s: %w", k.specKey(), cluster.ErrNoSpec)
	}
	view.Members, err = membersIn(members)
	view.Members = cluster.RingOrder(view.Members)
	return view, err
}

func leaderIn(kv *mvccpb.KeyValue) (cluster.Leader, error) {
	leader, err := decodeLeader(kv.Value)
	if err != nil {
		return leader, fmt.Errorf("key %s %w: %w", kv.Key, errUnreadable, err)
	}
	return leader, nil
}

func membersIn(kvs []*mvccpb.KeyValue) ([]cluster.Member, error) {
	members := make([]cluster.Member, len(kvs))
	for i, kv := range kvs {
		var err error
		if members[i], err = decodeMember(kv.Value); err != nil {
			return nil, fmt.Errorf("etcd key %s %w: %w", kv.Key, errUnreadable, err)
		}
	}
	return members, nil
}
