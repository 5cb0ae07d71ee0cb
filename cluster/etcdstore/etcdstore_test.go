package etcdstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/cluster"
	"rondo/cluster/storetest"
	rondov1 "rondo/proto/rondo/v1"
)

// endpoint is the etcd that all tests of this package share. Each test has a job of its own.
var endpoint string

func TestMain(m *testing.M) { os.Exit(runWithEtcd(m)) }

func runWithEtcd(m *testing.M) int {
	if os.Getenv(leaderVariable) != "" {
		return m.Run() // with the etcd of the process that started this one
	}
	dir, err := os.MkdirTemp("", "etcdstore")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	server, err := startEtcd(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting etcd:", err)
		return 1
	}
	endpoint = server.Clients[0].Addr().String()
	code := m.Run()
	server.Close()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func startEtcd(dir string) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel = "fatal"
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = loopback, loopback
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 10, 100 // so that leases may be as short as a second
	cfg.UnsafeNoFsync = true
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err := <-server.Err():
		return nil, err
	case <-time.After(30 * time.Second):
		server.Close()
		return nil, errors.New("not ready after 30s")
	}
}

func open(t *testing.T, options ...grpc.DialOption) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{
		Endpoints: []string{endpoint}, Job: strings.ReplaceAll(t.Name(), "/", "."),
		RequestTimeout: 2 * time.Second, DialOptions: options,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test may run again in the same etcd.
		_, err := s.client.Delete(context.Background(), s.root, clientv3.WithPrefix())
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// leaseOf waits until a member or coordinator has an entry, and returns its lease.
func leaseOf(t *testing.T, s *Store, id string) (found clientv3.LeaseID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	enough := errors.New("found")
	err := s.follow(ctx, s.root, func(kvs []*mvccpb.KeyValue) error {
		for _, kv := range kvs {
			leader, err := decodeLeader(kv.Value)
			isLeader := err == nil && leader.ID == id &&
				strings.HasPrefix(string(kv.Key), s.leaderPrefix())
			if isLeader || string(kv.Key) == s.memberKey(id) {
				found = clientv3.LeaseID(kv.Lease)
				return enough
			}
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("no entry of %s: %v", id, err)
	}
	return found
}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Job {
		admin := open(t)
		return storetest.Job{
			Open:  func(t *testing.T) storetest.Store { return open(t) },
			Await: func(t *testing.T, id string) { leaseOf(t, admin, id) },
			Expire: func(t *testing.T, id string) {
				_, err := admin.client.Revoke(t.Context(), leaseOf(t, admin, id))
				if err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func TestUnreachableSaysWhereAndHowLong(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // accepts and never answers
	closed := "127.0.0.1:1"
	for name, address := range map[string]string{
		"refused": closed, "silent": listener.Addr().String(),
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := Open(t.Context(), Config{
				Endpoints: []string{address}, Job: "j", StartTimeout: 500 * time.Millisecond,
			})
			if err == nil {
				t.Fatal("opened")
			}
			for _, part := range []string{address, "500ms", "--etcd"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Job: "j"}, "--etcd"},
		{Config{Endpoints: []string{"h:1"}}, "--job"},
		{Config{Endpoints: []string{"h:1"}, Job: "a/b"}, "slash"},
		{Config{Endpoints: []string{"h:1"}, Job: "j", StartTimeout: -1}, "negative"},
	} {
		_, err := Open(t.Context(), c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

// lossy performs the next n transactions and loses their answers.
func lossy(n *atomic.Int32) grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, conn, opts...)
		if err == nil && strings.HasSuffix(method, "/Txn") && n.Add(-1) >= 0 {
			return status.Error(codes.DeadlineExceeded, "the answer is lost, as the test has it")
		}
		return err
	})
}

func TestPutPlanWhoseAnswerIsLost(t *testing.T) {
	var losses atomic.Int32
	s := open(t, lossy(&losses))
	leader, err := s.Campaign(t.Context(), cluster.Leader{ID: "c1"}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Resign(t.Context())
	if _, err := leader.LoadPlan(t.Context()); err != nil {
		t.Fatal(err)
	}
	member := []cluster.Member{{ID: "w1"}}
	one := cluster.Plan{Generation: 1, Members: member, LaneEnds: []cluster.Lane{1},
		Phase: cluster.Running, Reason: "not UTF-8: \xff"}
	losses.Store(2)
	if err := leader.PutPlan(t.Context(), one); err != nil {
		t.Fatalf("PutPlan: %v", err)
	}
	if left := losses.Load(); left >= 0 {
		t.Fatalf("%d answers were not lost", left+1)
	}
	ended := one
	ended.Phase = cluster.Ended
	if err := leader.PutPlan(t.Context(), ended); err != nil {
		t.Fatalf("the next PutPlan: %v", err)
	}
	// A submitter changes the plan after the job's end. The leader's late retry must not undo that.
	other := open(t)
	if _, _, err := other.PutSpec(t.Context(), []byte("old")); err != nil {
		t.Fatal(err)
	}
	if _, created, err := other.PutSpec(t.Context(), []byte("new")); err != nil || !created {
		t.Fatalf("created %t, %v", created, err)
	}
	if err := leader.PutPlan(t.Context(), ended); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("a late PutPlan: %v, want %v", err, cluster.ErrDeposed)
	}
}

func TestPutSpecWhoseAnswerIsLost(t *testing.T) {
	var losses atomic.Int32
	s := open(t, lossy(&losses))
	losses.Store(1)
	stored, created, err := s.PutSpec(t.Context(), []byte("mine"))
	if err != nil || !created || string(stored) != "mine" {
		t.Errorf("%q, created %t, %v", stored, created, err)
	}
}

func TestCompactionCancelsAWatchAndNothingIsMissed(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	put := func(value string) int64 {
		answer, err := s.client.Put(ctx, s.specKey(), value)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	put("one")
	var got []string
	enough := errors.New("enough")
	err := s.follow(ctx, s.specKey(), func(kvs []*mvccpb.KeyValue) error {
		got = append(got, string(kvs[0].Value))
		if len(got) == 2 {
			return enough
		}
		// Compaction removes the history between the list and the watch.
		put("two")
		_, err := s.client.Compact(ctx, put("three"))
		return err
	})
	if !errors.Is(err, enough) || !slices.Equal(got, []string{"one", "three"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if err := s.change(ctx, s.specKey(), 1, nil); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a watch from a compacted revision: %v", err)
	}
}

func TestBadValuesNameTheirKey(t *testing.T) {
	s := open(t)
	for _, key := range []string{s.planKey(), s.memberKey("w1")} {
		if _, err := s.client.Put(t.Context(), key, "\xff\xff"); err != nil {
			t.Fatal(err)
		}
	}
	leader, err := s.Campaign(t.Context(), cluster.Leader{ID: "c1"}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Resign(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, loadErr := leader.LoadPlan(ctx)
	planErr := s.WatchPlan(ctx, func(cluster.Plan) error { return nil })
	membersErr := leader.WatchMembers(ctx, func([]cluster.Member) error { return nil })
	_, _, specErr := s.PutSpec(ctx, []byte("first"))
	if specErr == nil {
		_, _, specErr = s.PutSpec(ctx, []byte("second"))
	}
	for _, c := range []struct {
		err error
		key string
	}{
		{loadErr, s.planKey()}, {planErr, s.planKey()}, {specErr, s.planKey()},
		{membersErr, s.memberKey("w1")},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.key+" cannot be read") {
			t.Errorf("%v does not name %s", c.err, c.key)
		}
	}
}

func FuzzDecodePlan(f *testing.F) {
	f.Add(encode(planMessage(cluster.Plan{
		Generation: 3, Members: []cluster.Member{{ID: "w1", PID: 4}, {ID: "w2", Host: "h"}},
		LaneEnds: []cluster.Lane{2, 4}, Phase: cluster.Ended, Failed: true, Reason: "why",
	})))
	f.Add(encode(planMessage(cluster.Plan{})))
	f.Add(encode(planMessage(cluster.Plan{
		Generation: 9, Phase: cluster.Paused, Limit: 4, Rings: 2,
		Identity: "text", Result: "\x08\xff",
		Last:    []cluster.Member{{ID: "w1", PID: 4}, {ID: "w2", Host: "h"}},
		Evicted: []cluster.Eviction{{ID: "w3", Reason: "slow", Remedy: cluster.Wait}},
	})))
	f.Add([]byte{0x20, 0x09})
	inline := func(*rondov1.Plan) error { return nil }
	f.Fuzz(func(t *testing.T, value []byte) {
		plan, err := planOf(value, inline)
		if err != nil {
			return
		}
		again, err := planOf(encode(planMessage(plan)), inline)
		if err != nil || !again.Equal(plan) {
			t.Errorf("%+v becomes %+v, %v", plan, again, err)
		}
	})
}

func FuzzDecodeMember(f *testing.F) {
	f.Add(encodeMember(cluster.Member{ID: "w1", Address: "a:1", Host: "h", PID: 1, Device: "cpu"}))
	f.Add(encodeLeader(cluster.Leader{ID: "c1", Address: "a:1"}))
	f.Fuzz(func(t *testing.T, value []byte) {
		if member, err := decodeMember(value); err == nil {
			again, err := decodeMember(encodeMember(member))
			if err != nil || again != member {
				t.Errorf("%+v becomes %+v, %v", member, again, err)
			}
		}
		if leader, err := decodeLeader(value); err == nil {
			again, err := decodeLeader(encodeLeader(leader))
			if err != nil || again != leader {
				t.Errorf("%+v becomes %+v, %v", leader, again, err)
			}
		}
	})
}

// FuzzRoster: whatever place and parts a plan names, they make a list or an error.
func FuzzRoster(f *testing.F) {
	for _, r := range []*rondov1.Roster{{}, {Members: planMessage(largePlan(1)).Members},
		{Members: planMessage(largePlan(300)).Members}} {
		p := pack(r)
		f.Add([]byte{}, p.place.Stored, p.place.Length, p.bytes)
		f.Add(p.place.Digest, p.place.Stored, p.place.Length, p.bytes)
	}
	f.Add([]byte{}, int64(-1), int64(1)<<40, []byte("x"))
	f.Fuzz(func(t *testing.T, digest []byte, stored, length int64, value []byte) {
		if len(digest) == 0 { // a search would not find the right one
			right := sha256.Sum256(value)
			digest = right[:]
		}
		read := func(at *rondov1.RosterPlace) (*rondov1.Roster, error) {
			return unpack(at, func(i int) ([]byte, error) {
				if i*partBytes >= len(value) {
					return nil, errRosterGone
				}
				return value[i*partBytes : min((i+1)*partBytes, len(value))], nil
			})
		}
		at := &rondov1.RosterPlace{Digest: digest, Stored: stored, Length: length}
		p := &rondov1.Plan{MembersIn: at, EvictedIn: at, LastIn: at}
		if err := putBack(p, read); err != nil {
			if !errors.Is(err, errUnreadable) && !errors.Is(err, errRosterGone) {
				t.Error(err)
			}
			return
		}
		if len(places(p)) != 0 || len(p.Members) != len(p.Last) {
			t.Errorf("%d members become %d, and %d places stay", len(p.Last), len(p.Members),
				len(places(p)))
		}
	})
}
