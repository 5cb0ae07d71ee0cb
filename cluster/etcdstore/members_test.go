package etcdstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"rondo/cluster"
	"rondo/cluster/coordinator"
)

// traffic counts the bytes of a connection's messages, as a grpc stats.Handler.
type traffic struct{ In, Out, Largest atomic.Int64 }

func (*traffic) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*traffic) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*traffic) HandleConn(context.Context, stats.ConnStats)                       {}

func (c *traffic) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		c.In.Add(int64(s.WireLength))
	case *stats.OutPayload:
		n := int64(s.WireLength)
		c.Out.Add(n)
		for {
			largest := c.Largest.Load()
			if n <= largest || c.Largest.CompareAndSwap(largest, n) {
				return
			}
		}
	}
}

// leaderJob is the job of a leader in a process of its own, whose processor time the system counts.
type leaderJob struct {
	Endpoint, Name string
	Workers        int
}

// leaderFigures is what that process says at its end.
type leaderFigures struct{ In, Out, Largest int64 }

const leaderVariable = "RONDO_TEST_LEADER"

// TestLeaderProcess is that process, started by TestManyMembers.
func TestLeaderProcess(t *testing.T) {
	value := os.Getenv(leaderVariable)
	if value == "" {
		t.Skip("a process of TestManyMembers")
	}
	var job leaderJob
	if err := json.Unmarshal([]byte(value), &job); err != nil {
		t.Fatal(err)
	}
	var count traffic
	s, err := Open(t.Context(), Config{Endpoints: []string{job.Endpoint}, Job: job.Name,
		DialOptions: []grpc.DialOption{grpc.WithStatsHandler(&count)}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = coordinator.Run(t.Context(), coordinator.Config{
		Job: cluster.Job{Workers: job.Workers, MinWorkers: 1, Lanes: job.Workers, Spread: true,
			JoinTimeout: time.Hour, PauseTimeout: time.Second, Version: "7"},
		Self:     cluster.Leader{ID: "c", Address: "c:1"},
		LeaseTTL: time.Minute, Election: s, Events: make(chan cluster.Event), Audience: deaf{},
	})
	if err != nil {
		t.Fatal(err)
	}
	figures, err := json.Marshal(leaderFigures{count.In.Load(), count.Out.Load(),
		count.Largest.Load()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv(leaderVariable+"_OUT"), figures, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestManyMembers registers workers in a real etcd until a ring of all of them is planned, and ends
// the leases of every 41st at once, until a ring without them is planned. RONDO_TEST_LONG=1 and -v
// show the figures of 4,096; the last pause ends the job.
func TestManyMembers(t *testing.T) {
	n := 533 // whose plans, of some 70 KiB, have their lists in rosters
	if os.Getenv("RONDO_TEST_LONG") != "" {
		n = 4096
	}
	const each = 41
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	admin := open(t)
	leader, figures := startLeader(ctx, t, leaderJob{endpoint, t.Name(), n})

	var worker traffic
	watcher := open(t, grpc.WithStatsHandler(&worker))
	plans, watched := make(chan cluster.Plan, 1), make(chan error, 1)
	go func() {
		watched <- watcher.WatchPlan(ctx, func(p cluster.Plan) error {
			if p.Phase == cluster.Ended {
				return errEnough
			}
			select {
			case <-plans: // only the newest counts
			default:
			}
			plans <- p
			return nil
		})
	}()
	await := func(workers int) {
		for {
			select {
			case p := <-plans:
				if len(p.Members) == workers {
					return
				}
			case err := <-watched:
				t.Fatalf("the watch ended before a ring of %d: %v", workers, err)
			}
		}
	}
	began := time.Now()
	registrations := registerAll(ctx, t, manyMembers(n))
	registered := time.Since(began)
	await(n)
	t.Logf("%d workers registered in %v; a ring of all was seen after %v and %d bytes from etcd",
		n, registered, time.Since(began), worker.In.Load())

	if lists, _ := rostersOf(t, admin); len(lists) == 0 {
		t.Error("the plan of all is not large enough to be stored with lists")
	}

	before := worker.In.Load()
	began = time.Now()
	var lost []cluster.Registration
	for i := 0; i < n; i += each {
		lost = append(lost, registrations[i])
	}
	leave(ctx, t, lost)
	await(n - len(lost))
	t.Logf("%d of them left at once: a ring of the others was seen after %v and %d bytes",
		len(lost), time.Since(began), worker.In.Load()-before)

	leave(ctx, t, registrations)
	if err := <-watched; !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if err := leader.Wait(); err != nil {
		t.Fatal(err)
	}
	got := figures()
	used := leader.ProcessState.UserTime() + leader.ProcessState.SystemTime()
	t.Logf("the leader: %v of processor time, %d bytes from etcd, %d to it, %d in its largest "+
		"write", used, got.In, got.Out, got.Largest)
	if most := int64(partBytes + 4<<10); got.Largest > most {
		t.Errorf("the leader's largest write has %d bytes, more than %d", got.Largest, most)
	}
	if lists, _ := rostersOf(t, admin); len(lists) > 2 {
		t.Errorf("%d lists are stored at the end", len(lists))
	}
}

var errEnough = errors.New("enough")

// startLeader starts TestLeaderProcess. The function returns what it has said.
func startLeader(ctx context.Context, t *testing.T, job leaderJob) (*exec.Cmd,
	func() leaderFigures) {
	t.Helper()
	value, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	file := t.TempDir() + "/figures"
	command := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestLeaderProcess$", "-test.v")
	command.Env = append(os.Environ(), leaderVariable+"="+string(value),
		leaderVariable+"_OUT="+file)
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if command.ProcessState == nil {
			_ = command.Process.Kill() // the test has failed
			_ = command.Wait()
			t.Logf("the leader: %s", output.Bytes())
		}
	})
	return command, func() (f leaderFigures) {
		t.Helper()
		said, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(said, &f)
		}
		if err != nil {
			t.Fatalf("%v; the leader: %s", err, output.Bytes())
		}
		return f
	}
}

// atATime is how many requests the test makes at once.
const atATime = 64

// registerAll registers the members, over a few connections.
func registerAll(ctx context.Context, t *testing.T,
	members []cluster.Member) []cluster.Registration {
	t.Helper()
	var stores []*Store
	for range 4 {
		stores = append(stores, open(t))
	}
	registrations := make([]cluster.Registration, len(members))
	errs := make([]error, len(members))
	slots := make(chan struct{}, atATime)
	var all sync.WaitGroup
	for i, m := range members {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			registrations[i], errs[i] = stores[i%len(stores)].Register(ctx, m, 10*time.Minute)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return registrations
}

// leave ends registrations. Those that have ended stay so.
func leave(ctx context.Context, t *testing.T, registrations []cluster.Registration) {
	t.Helper()
	errs := make([]error, len(registrations))
	slots := make(chan struct{}, atATime)
	var all sync.WaitGroup
	for i, r := range registrations {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = r.Leave(ctx)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
