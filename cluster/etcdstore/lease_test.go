package etcdstore

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/cluster"
)

// cut returns an option that makes the stream of lease renewals fail while away is set. asked is
// the time of the last renewal before that.
func cut(away *atomic.Bool, asked *atomic.Pointer[time.Time]) grpc.DialOption {
	return grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc,
		conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (
		grpc.ClientStream, error) {
		if strings.HasSuffix(method, "/LeaseKeepAlive") {
			if away.Load() {
				return nil, status.Error(codes.Unavailable, "away, as the test has it")
			}
			now := time.Now()
			asked.Store(&now)
		}
		return next(ctx, desc, conn, method, opts...)
	})
}

// TestLeaseIsKept: a lease lasts while it is renewed, even if some renewals fail. When all fail, it
// is lost by this process's clock, ahead of the server's.
func TestLeaseIsKept(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	var away atomic.Bool
	var asked atomic.Pointer[time.Time]
	s := open(t, cut(&away, &asked))
	r, err := s.Register(t.Context(), cluster.Member{ID: "w1"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	time.AfterFunc(ttl/2, func() { away.Store(false) })
	select {
	case <-r.Lost():
		t.Fatal("lost although renewals went on in time")
	case <-time.After(ttl + ttl/3): // the time itself is the test
	}
	away.Store(true)
	select {
	case <-r.Lost():
	case <-time.After(10 * time.Second):
		t.Fatal("not lost although nothing was renewed for 10s")
	}
	// The server counts from the arrival of a renewal, which is later.
	own := *r.(registration).lease.deadline.Load()
	if server := asked.Load().Add(ttl); own.After(server) {
		t.Errorf("lost at %v by our own clock, maybe at %v by the server's", own, server)
	}
	if err := r.Leave(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLeaseOutlivesSilence: two of three requests to renew the lease are never answered, as if two
// members of etcd were cut off, and the lease lasts.
func TestLeaseOutlivesSilence(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	var asked atomic.Int32
	s := open(t, grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc,
		conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (
		grpc.ClientStream, error) {
		if strings.HasSuffix(method, "/LeaseKeepAlive") && asked.Add(1)%3 != 0 {
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return next(ctx, desc, conn, method, opts...)
	}))
	r, err := s.Register(t.Context(), cluster.Member{ID: "w1"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.Lost():
		t.Fatal("lost although a member answers")
	case <-time.After(2 * ttl): // the time itself is the test
	}
	if err := r.Leave(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLeaseIsGrantedTooLate: a lease whose time had passed when the answer came is lost.
func TestLeaseIsGrantedTooLate(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	s := open(t, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, conn, opts...)
		if strings.HasSuffix(method, "/LeaseGrant") {
			reply.(*pb.LeaseGrantResponse).TTL = 1 // etcd may grant more
			time.Sleep(ttl + ttl/10)               // the time itself is the test
		}
		return err
	}))
	l, err := s.grant(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.lost:
	case <-time.After(10 * time.Second):
		t.Error("not lost")
	}
	if err := l.release(t.Context()); err != nil {
		t.Error(err)
	}
}
