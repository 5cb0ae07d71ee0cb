package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// A lease is renewed when 1/renewals of the rest of its time has passed.
	renewals = 3
	// A renewal without an answer asks again after 1/attempts of the rest, at least leastWait.
	attempts  = 6
	leastWait = 10 * time.Millisecond
)

// lease is an etcd lease that is renewed in the background. It counts as lost when its time has
// passed, by this process's monotonic clock, since its last successful renewal was sent. The server
// counts from a later moment, so lost is closed before another process may take over.
type lease struct {
	store    *Store
	id       clientv3.LeaseID
	deadline atomic.Pointer[time.Time]
	lost     chan struct{}
	cancel   context.CancelFunc
	stopped  chan struct{}
	once     sync.Once
}

// grant creates a lease of at least ttl and renews it until release.
func (s *Store) grant(ctx context.Context, ttl time.Duration) (*lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("--lease-ttl %v: must be above zero", ttl)
	}
	l := &lease{store: s, lost: make(chan struct{}), stopped: make(chan struct{})}
	asked := time.Now()
	err := s.once(ctx, "taking out a lease", func(ctx context.Context) error {
		seconds := int64((ttl + time.Second - 1) / time.Second)
		answer, err := s.client.Grant(ctx, seconds)
		if err == nil {
			l.id = answer.ID
			l.extend(asked, answer.TTL)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	keeping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cancel = cancel
	go l.keep(keeping)
	return l, nil
}

func (l *lease) extend(asked time.Time, seconds int64) {
	deadline := asked.Add(time.Duration(seconds) * time.Second)
	l.deadline.Store(&deadline)
}

// valid reports whether the lease is certainly alive. It reads the clock, so it is right even if
// the process was stopped and keep has not run since.
func (l *lease) valid() bool {
	select {
	case <-l.lost:
		return false
	default:
		return time.Now().Before(*l.deadline.Load())
	}
}

// keep renews the lease until ctx ends or the lease is lost.
func (l *lease) keep(ctx context.Context) {
	defer close(l.stopped)
	for {
		timer := time.NewTimer(time.Until(*l.deadline.Load()) / renewals)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		err := l.renewInTime(ctx)
		switch {
		case err == nil, ctx.Err() != nil:
			continue
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			l.store.log.Warn("etcd: lease lost: the server has ended it")
		default:
			l.store.log.Warn("etcd: lease lost: not renewed in time")
		}
		close(l.lost)
		return
	}
}

// renewInTime renews the lease before its deadline. As long as no answer has come it asks again,
// mostly another etcd member, and goes on waiting for the earlier answers. So a dead, silent host
// does not cost the lease.
func (l *lease) renewInTime(ctx context.Context) error {
	deadline := *l.deadline.Load()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	renewed := make(chan error)
	var failing sync.Once
	failed := func(err error) {
		failing.Do(func() { l.store.log.Warn("etcd: renewing the lease again", "error", err) })
	}
	ask := func() {
		asked := time.Now()
		seconds, err := l.renew(ctx)
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			if ctx.Err() == nil {
				failed(err)
			}
			return
		}
		select {
		case renewed <- err:
			if err == nil {
				l.extend(asked, seconds)
			}
		case <-ctx.Done():
		}
	}
	again := time.NewTicker(max(time.Until(deadline)/attempts, leastWait))
	defer again.Stop()
	for {
		asking.Go(ask)
		select {
		case err := <-renewed:
			return err
		case <-again.C:
			failed(errors.New("no answer yet"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// renew asks for the lease's full time from now on, and returns it in seconds. It calls the server
// directly, because the client's KeepAliveOnce spins while no server is reachable.
func (l *lease) renew(ctx context.Context) (seconds int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(l.store.client.ActiveConnection()).
		LeaseKeepAlive(clientv3.WithRequireLeader(ctx), grpc.WaitForReady(true))
	if err != nil {
		return 0, rpctypes.Error(err)
	}
	// An error of Send only says that the stream has ended; Recv returns the reason.
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)})
	answer, err := stream.Recv()
	if err != nil {
		return 0, rpctypes.Error(err)
	}
	if answer.TTL <= 0 {
		return 0, rpctypes.ErrLeaseNotFound
	}
	return answer.TTL, nil
}

// release stops the renewals and ends the lease, with every key under it. It waits up to
// releaseTimeout for etcd. A second call does nothing.
func (l *lease) release(ctx context.Context) (err error) {
	l.once.Do(func() {
		l.cancel()
		<-l.stopped
		ctx, cancel := context.WithTimeoutCause(ctx, releaseTimeout,
			fmt.Errorf("etcd has not answered for %v", releaseTimeout))
		defer cancel()
		err = l.store.once(ctx, "giving a lease back", func(ctx context.Context) error {
			_, err := l.store.client.Revoke(ctx, l.id)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return nil
			}
			return err
		})
	})
	return err
}

// abandon is release for a caller that has failed already. If release fails, the lease ends by
// itself.
func (l *lease) abandon(ctx context.Context) {
	if err := l.release(context.WithoutCancel(ctx)); err != nil {
		l.store.log.Warn("etcd: a lease ends by itself", "error", err)
	}
}
