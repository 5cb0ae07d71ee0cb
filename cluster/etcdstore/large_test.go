package etcdstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// largePlan returns a plan with n members, as workers register.
func largePlan(n int) cluster.Plan {
	p := cluster.Plan{Generation: 1, Phase: cluster.Running, Rings: 1, Members: manyMembers(n)}
	for i := range n {
		p.LaneEnds = append(p.LaneEnds, cluster.Lane(i+1))
	}
	return p
}

func manyMembers(n int) []cluster.Member {
	members := make([]cluster.Member, n)
	for i := range members {
		digest := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		members[i] = cluster.Member{
			ID: fmt.Sprintf("host-%05d-1234-%x", i, digest[:3]), Host: fmt.Sprintf("host-%05d", i),
			Address: fmt.Sprintf("10.0.%d.%d:%d", i/256, i%256, 32768+i), PID: 1234 + i,
			Process: fmt.Sprintf("%x", digest[3:16]), Device: "cuda:0", Version: "7",
			Identity: "5d41402abc4b2a76b9719d911017c592",
		}
	}
	return members
}

// rostersOf returns the names of the stored lists, and the size of the largest part.
func rostersOf(t *testing.T, s *Store) (names map[string]bool, largest int) {
	t.Helper()
	answer, err := s.client.Get(t.Context(), s.rostersPrefix(), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	names = make(map[string]bool)
	for _, kv := range answer.Kvs {
		names[s.rosterOf(kv.Key)] = true
		largest = max(largest, len(kv.Value))
	}
	return names, largest
}

func lead(ctx context.Context, t *testing.T, s *Store) cluster.Leadership {
	t.Helper()
	l, err := s.Campaign(ctx, cluster.Leader{ID: "c", Address: "c:1"}, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLargePlans: plans of as many workers as a ring can have are stored, watched, viewed and
// loaded. Lists that no plan names are deleted, also those that a dead leader left.
func TestLargePlans(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := open(t)
	if _, _, err := s.PutSpec(ctx, []byte("spec")); err != nil {
		t.Fatal(err)
	}
	leading := lead(ctx, t, s)
	small, large, largest := largePlan(100), largePlan(2000), largePlan(16384)
	grown := large
	grown.Reason, grown.Last = "another reason", large.Members[1:]
	var last cluster.Plan
	for i, c := range []struct {
		plan  cluster.Plan
		lists int
	}{{small, 0}, {large, 1}, {grown, 2}, {large, 1}, {small, 0}, {largest, 1}, {grown, 2}} {
		last = c.plan
		last.Generation = cluster.Generation(i + 1)
		if err := leading.PutPlan(ctx, last); err != nil {
			t.Fatal(err)
		}
		enough := errors.New("enough")
		err := open(t).WatchPlan(ctx, func(got cluster.Plan) error {
			if !got.Equal(last) {
				t.Errorf("plan %d was watched as another", i)
			}
			return enough
		})
		view, viewErr := s.View(ctx)
		if !errors.Is(err, enough) || viewErr != nil || !view.Plan.Equal(last) {
			t.Errorf("plan %d: %v; viewed as another, or %v", i, err, viewErr)
		}
		if lists, largest := rostersOf(t, s); len(lists) != c.lists || largest > partBytes {
			t.Errorf("plan %d: %d lists are stored, want %d; the largest part has %d bytes",
				i, len(lists), c.lists, largest)
		}
	}
	for _, orphan := range []string{s.rosterKey([]byte("of a leader that died"), 0),
		s.rosterPrefix("not hex") + "0"} {
		if _, err := s.client.Put(ctx, orphan, "part"); err != nil {
			t.Fatal(err)
		}
	}
	if err := leading.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	leading = lead(ctx, t, open(t))
	if p, err := leading.LoadPlan(ctx); err != nil || !p.Equal(last) {
		t.Errorf("loaded another plan, or %v", err)
	}
	last.Phase = cluster.Ended
	if err := leading.PutPlan(ctx, last); err != nil {
		t.Fatal(err)
	}
	if lists, _ := rostersOf(t, s); len(lists) != 2 {
		t.Errorf("%d lists are stored after a new leader's plan, want 2", len(lists))
	}
	if _, created, err := s.PutSpec(ctx, []byte("next")); err != nil || !created {
		t.Errorf("PutSpec after the end: %t, %v", created, err)
	}
	if lists, _ := rostersOf(t, s); len(lists) != 0 {
		t.Errorf("%d lists of the last run are stored", len(lists))
	}
	if err := leading.Resign(ctx); err != nil {
		t.Error(err)
	}
}

// TestListIsGone: a worker whose plan's lists are deleted while it reads them gets the next plan.
func TestListIsGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := open(t)
	leading := lead(ctx, t, s)
	plan := largePlan(1000)
	if err := leading.PutPlan(ctx, plan); err != nil {
		t.Fatal(err)
	}
	_, err := s.client.Delete(ctx, s.rostersPrefix(), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	seen, got := make(chan cluster.Plan, 1), errors.New("got one")
	watched, reader := make(chan error, 1), open(t)
	go func() {
		watched <- reader.WatchPlan(ctx, func(p cluster.Plan) error {
			seen <- p
			return got
		})
	}()
	next := largePlan(1001)
	next.Generation = 2
	if err := leading.PutPlan(ctx, next); err != nil {
		t.Fatal(err)
	}
	if err := <-watched; !errors.Is(err, got) {
		t.Fatal(err)
	}
	if p := <-seen; !p.Equal(next) {
		t.Errorf("got the plan of generation %d with %d members", p.Generation, len(p.Members))
	}
	if err := leading.Resign(ctx); err != nil {
		t.Error(err)
	}
}

// TestLoadPlanAtOneRevision: a leader whose plan's lists are deleted once it has read the plan
// loads the plan as it was.
func TestLoadPlanAtOneRevision(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	admin := open(t)
	leading, plan := lead(ctx, t, admin), largePlan(1000)
	if err := leading.PutPlan(ctx, plan); err != nil {
		t.Fatal(err)
	}
	if err := leading.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	var deletes atomic.Bool
	leading = lead(ctx, t, open(t, grpc.WithUnaryInterceptor(func(ctx context.Context,
		method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, conn, opts...)
		if err == nil && strings.HasSuffix(method, "/Txn") && deletes.CompareAndSwap(true, false) {
			_, err = admin.client.Delete(ctx, admin.rostersPrefix(), clientv3.WithPrefix())
		}
		return err
	})))
	deletes.Store(true)
	if p, err := leading.LoadPlan(ctx); err != nil || !p.Equal(plan) || deletes.Load() {
		t.Errorf("loaded another plan, or %v; the lists were deleted: %t", err, !deletes.Load())
	}
	if err := leading.Resign(ctx); err != nil {
		t.Error(err)
	}
}

// TestListsAreChecked: parts that were altered, and places that promise too much, are refused
// before they cost memory.
func TestListsAreChecked(t *testing.T) {
	t.Parallel()
	message := planMessage(largePlan(16384))
	good := takeOut(message)[0]
	empty := pack(&rondov1.Roster{Members: []*rondov1.Member{{Device: strings.Repeat("0", 1<<20)}}})
	for _, c := range []struct {
		name, want string
		from       packed
		change     func(at *rondov1.RosterPlace, parts [][]byte) [][]byte
	}{
		{"none", "", good, nil},
		{"one bit", "digest", good, func(_ *rondov1.RosterPlace, parts [][]byte) [][]byte {
			parts[1][7] ^= 1
			return parts
		}},
		{"one short", "part 0 has", good, func(_ *rondov1.RosterPlace, parts [][]byte) [][]byte {
			return append([][]byte{parts[0][1:]}, parts[1:]...)
		}},
		{"one gone", "gone", good, func(_ *rondov1.RosterPlace, parts [][]byte) [][]byte {
			return parts[:1]
		}},
		{"stored", "it may have", good, func(at *rondov1.RosterPlace, p [][]byte) [][]byte {
			at.Stored = mostRoster + 1
			return p
		}},
		{"negative", "it may have", good, func(at *rondov1.RosterPlace, p [][]byte) [][]byte {
			at.Length = -1
			return p
		}},
		{"too long", "it may have", good, func(at *rondov1.RosterPlace, p [][]byte) [][]byte {
			at.Length = 1 << 40
			return p
		}},
		{"longer than said", "do not have", empty,
			func(at *rondov1.RosterPlace, p [][]byte) [][]byte {
				at.Length = 100
				return p
			}},
	} {
		at := &rondov1.RosterPlace{Digest: c.from.place.Digest, Stored: c.from.place.Stored,
			Length: c.from.place.Length}
		var parts [][]byte
		for i := 0; i < len(c.from.bytes); i += partBytes {
			end := min(i+partBytes, len(c.from.bytes))
			parts = append(parts, bytes.Clone(c.from.bytes[i:end]))
		}
		if c.change != nil {
			parts = c.change(at, parts)
		}
		_, err := unpack(at, func(i int) ([]byte, error) {
			if i >= len(parts) {
				return nil, errRosterGone
			}
			return parts[i], nil
		})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestPlanTooLarge: a plan that can never be stored ends the leader's work with the reason.
func TestPlanTooLarge(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	leading := lead(ctx, t, open(t))
	long := largePlan(10)
	long.Reason = strings.Repeat("x", 1800<<10)
	wide := largePlan(20000)
	for i := range wide.Members {
		wide.Members[i].Host = strings.Repeat("x", 1000)
	}
	for want, plan := range map[string]cluster.Plan{"too large": long, "use fewer workers": wide} {
		err := leading.PutPlan(ctx, plan)
		if err == nil || !strings.Contains(err.Error(), want) || ctx.Err() != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := leading.Resign(ctx); err != nil {
		t.Error(err)
	}
}
