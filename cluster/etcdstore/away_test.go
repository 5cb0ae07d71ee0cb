package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/cluster"
	"rondo/internal/port"
	"rondo/internal/transcript"
)

// slowAtFirst returns an option that never answers the first call of method silent, and loses the
// answer to the first call of method lost.
func slowAtFirst(silent, lost string) grpc.DialOption {
	var silences, losses atomic.Int32
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.HasSuffix(method, silent) && silences.Add(1) == 1 {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		err := next(ctx, method, req, reply, conn, opts...)
		if err == nil && strings.HasSuffix(method, lost) && losses.Add(1) == 1 {
			return status.Error(codes.Unavailable, "the answer is lost, as the test has it")
		}
		return err
	})
}

// TestRegisterOutlivesASlowEtcd: a missing or lost answer does not fail Register, and leaves no
// second entry.
func TestRegisterOutlivesASlowEtcd(t *testing.T) {
	t.Parallel()
	s := open(t, slowAtFirst("/LeaseGrant", "/Put"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := s.Register(ctx, cluster.Member{ID: "w1"}, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if own := r.(registration).lease.id; leaseOf(t, s, "w1") != own {
		t.Errorf("the entry is under another lease than the registration's %x", own)
	}
	if err := r.Leave(ctx); err != nil {
		t.Error(err)
	}
	answer, err := s.client.Get(ctx, s.memberKey("w1"))
	if err != nil || len(answer.Kvs) != 0 {
		t.Errorf("after Leave: %v, %v", answer, err)
	}
}

// proxy is a connection between a store and etcd that can be cut.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	cut      bool
	open     map[net.Conn]bool
	running  sync.WaitGroup
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, open: make(map[net.Conn]bool)}
	p.running.Go(p.serve)
	t.Cleanup(func() {
		listener.Close()
		p.set(true)
		p.running.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", endpoint)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.open[near], p.open[far] = true, true
		if p.cut {
			near.Close()
			far.Close()
		}
		p.mu.Unlock()
		p.running.Go(func() { p.copy(near, far) })
		p.running.Go(func() { p.copy(far, near) })
	}
}

func (p *proxy) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, from)
}

// set cuts all connections and refuses new ones, or lets them through again.
func (p *proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for conn := range p.open {
		if cut {
			conn.Close()
		}
	}
}

// TestCompactionWhileAWatcherIsCutOff: the changes that a watcher has missed are compacted. It
// lists again and gets the newest value.
func TestCompactionWhileAWatcherIsCutOff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	admin, between := open(t), newProxy(t)
	log := &transcript.Text{}
	watcher, err := Open(ctx, Config{
		Endpoints: []string{between.listener.Addr().String()}, Job: t.Name(),
		RequestTimeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	leader, err := admin.Campaign(ctx, cluster.Leader{ID: "c1"}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Resign(context.Background())
	if _, err := leader.LoadPlan(ctx); err != nil {
		t.Fatal(err)
	}
	put := func(g cluster.Generation) {
		t.Helper()
		p := cluster.Plan{Generation: g, Phase: cluster.Paused, Reason: "as the test has it"}
		if err := leader.PutPlan(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	plans := watchPlans(ctx, t, watcher)
	put(1)
	plans.await(ctx, t, 1)
	between.set(true)
	for g := range cluster.Generation(8) {
		put(2 + g)
	}
	answer, err := admin.client.Get(ctx, admin.planKey())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.client.Compact(ctx, answer.Header.Revision); err != nil {
		t.Fatal(err)
	}
	between.set(false)
	plans.await(ctx, t, 9)
	put(10)
	plans.await(ctx, t, 10)
	if !strings.Contains(log.String(), "compacted") {
		t.Errorf("no watch was cancelled by the compaction, and the test shows nothing:\n%s", log)
	}
}

// planWatch is a WatchPlan that runs until the test ends.
type planWatch chan cluster.Plan

func watchPlans(ctx context.Context, t *testing.T, s *Store) planWatch {
	ctx, cancel := context.WithCancel(ctx)
	plans, ended := make(planWatch), make(chan error, 1)
	go func() {
		ended <- s.WatchPlan(ctx, func(p cluster.Plan) error {
			select {
			case plans <- p:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("WatchPlan: %v", err)
		}
	})
	return plans
}

func (w planWatch) await(ctx context.Context, t *testing.T, g cluster.Generation) {
	t.Helper()
	last := cluster.Generation(-1)
	for last != g {
		select {
		case p := <-w:
			if p.Generation < last {
				t.Errorf("generation %d after %d", p.Generation, last)
			}
			last = p.Generation
		case <-ctx.Done():
			t.Fatalf("waiting for generation %d: the last was %d", g, last)
		}
	}
}

// awaitOlder waits for a plan that the watch calls with after newer ones.
func (w planWatch) awaitOlder(ctx context.Context, t *testing.T, g cluster.Generation) {
	t.Helper()
	for {
		select {
		case p := <-w:
			if p.Generation == g {
				return
			}
		case <-ctx.Done():
			t.Fatalf("waiting for generation %d", g)
		}
	}
}

// etcdAt starts an etcd at fixed addresses, so that it can be restarted.
func etcdAt(t *testing.T, dir string, client, peer url.URL) *embed.Etcd {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir, "fatal"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 10, 100
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd is not ready after 30s")
	}
	return server
}

// reservedURL returns an address that is reserved for a server of this test.
func reservedURL(t *testing.T) url.URL {
	t.Helper()
	return url.URL{Scheme: "http", Host: port.ForTest(t).Address()}
}

// TestEtcdIsAwayForLongerThanALease: registrations and leaderships count as lost by their holders'
// clocks. Watches and waiting registrations go on when etcd returns with its data.
func TestEtcdIsAwayForLongerThanALease(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	dir, client, peer := t.TempDir(), reservedURL(t), reservedURL(t)
	server := etcdAt(t, dir, client, peer)
	defer func() { server.Close() }()
	s, err := Open(ctx, Config{Endpoints: []string{client.Host}, Job: "j",
		RequestTimeout: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one, err := s.Register(ctx, cluster.Member{ID: "w1"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.Campaign(ctx, cluster.Leader{ID: "c1"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	plans := watchPlans(ctx, t, s)
	plan := cluster.Plan{Generation: 1, Phase: cluster.Paused, Reason: "as the test has it"}
	if err := errors.Join(loadAndPut(ctx, first, plan)); err != nil {
		t.Fatal(err)
	}
	plans.await(ctx, t, 1)

	server.Close()
	for name, lost := range map[string]<-chan struct{}{"w1": one.Lost(), "c1": first.Lost()} {
		select {
		case <-lost:
		case <-ctx.Done():
			t.Fatalf("%s is not lost while etcd is away", name)
		}
	}
	if err := first.PutPlan(ctx, plan); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("PutPlan after the loss: %v", err)
	}
	again := make(chan error, 1)
	go func() {
		r, err := s.Register(ctx, cluster.Member{ID: "w1.2"}, ttl)
		if err == nil {
			err = r.Leave(ctx)
		}
		again <- err
	}()
	server = etcdAt(t, dir, client, peer)
	if err := <-again; err != nil {
		t.Errorf("Register, begun while etcd was away: %v", err)
	}
	next, err := s.Campaign(ctx, cluster.Leader{ID: "c2"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	plan.Generation = 2
	if err := errors.Join(loadAndPut(ctx, next, plan), next.Resign(ctx), one.Leave(ctx),
		first.Resign(ctx)); err != nil {
		t.Error(err)
	}
	plans.await(ctx, t, 2)
}

func loadAndPut(ctx context.Context, l cluster.Leadership, p cluster.Plan) error {
	before, err := l.LoadPlan(ctx)
	if err != nil {
		return err
	}
	if before.Generation != p.Generation-1 {
		return fmt.Errorf("the plan is %+v before that of generation %d", before, p.Generation)
	}
	return l.PutPlan(ctx, p)
}
