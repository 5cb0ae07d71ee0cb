package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"rondo/cluster/meet"
	rondov1 "rondo/proto/rondo/v1"
)

// residentBytes returns the memory of a process; peak: the most that it has had.
func residentBytes(t *testing.T, pid int, peak bool) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	key := "VmRSS:"
	if peak {
		key = "VmHWM:"
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == key {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s in the status of process %d", key, pid)
	return 0
}

// attack runs strangers until the test ends or stop is called. Each calls once with its own number,
// again and again.
func attack(t *testing.T, strangers int, once func(ctx context.Context, n int)) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	var calls atomic.Int64
	for n := range strangers {
		wait.Go(func() {
			for ctx.Err() == nil {
				once(ctx, n)
				calls.Add(1)
			}
		})
	}
	stop = sync.OnceValue(func() int {
		cancel()
		wait.Wait()
		return int(calls.Load())
	})
	t.Cleanup(func() { stop() })
	return stop
}

// headerBytes is how much of a call's headers a stranger sends.
const headerBytes = 16 << 20

// sendHeaders opens a call with headers that do not end, until the server closes the connection.
func sendHeaders(ctx context.Context, address, method string) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method},
		{":authority", "a"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	frames := http2.NewFramer(conn, conn)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return
	}
	_ = frames.WriteSettings()
	err = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
		BlockFragment: []byte(block.String())})
	for sent := 0; sent < headerBytes && err == nil; sent += block.Len() {
		block.Reset()
		_ = encoder.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 16000),
			Sensitive: true})
		err = frames.WriteContinuation(1, false, []byte(block.String()))
	}
}

// dialPlain returns a gRPC connection that is closed when ctx ends or close is called.
func dialPlain(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
	}
	return conn
}

// TestLeaderUnderReports: strangers who send the leader reports of 4 MiB, and watches with headers
// without end, cost it no memory, and an honest worker's events arrive at once.
func TestLeaderUnderReports(t *testing.T) {
	t.Parallel()
	reports, watches, most := 2_000, 20, int64(128<<20)
	if os.Getenv(longVariable) != "" {
		reports, watches = 100_000, 1_000
	}
	r := &rig{job: "flooded", folder: binaries, etcd: startEtcds(t, nil), trial: &trial{t: t}}
	r.flags = r.place(r.etcd.endpoints()...)
	spec := write(t, "job.yaml", "max_tokens: 20000\nhidden: 8\nworkers: 2\njoin_timeout: 1h\n")
	leader := r.daemon(nil, "coordinator", append([]string{"--run", "1", "--spec", spec},
		r.flags...))
	where := meet.Config{Etcd: r.etcd.endpoints(), Job: r.job}
	store, err := where.Store(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	address := ""
	await(t, "a leader", func() bool {
		l, err := store.Leader(t.Context())
		address = l.Address
		return err == nil
	})
	arrived := make(chan int64, 1<<16)
	honest, err := where.Client(store, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		_ = honest.Watch(ctx, func(e *rondov1.Event) error {
			if s := e.GetStep(); s != nil {
				arrived <- s.Step
			}
			return nil
		})
	})
	reporter, err := honest.NewReporter("honest")
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 4<<20-16)
	var reported, watched atomic.Int64
	var conns [8]*grpc.ClientConn
	for n := range conns {
		conns[n] = dialPlain(t, address)
		defer conns[n].Close()
	}
	stopReports := attack(t, len(conns), func(ctx context.Context, n int) {
		if int(reported.Add(1)) > reports {
			<-ctx.Done()
			return
		}
		stream, err := rondov1.NewCoordinatorClient(conns[n]).Report(ctx)
		if err != nil {
			return
		}
		_ = stream.Send(&rondov1.Record{Source: large})
		if _, err := stream.Recv(); err == nil {
			t.Error("a report with a name of 4 MiB is accepted")
		}
	})
	stopWatches := attack(t, 4, func(ctx context.Context, _ int) {
		if int(watched.Add(1)) > watches {
			<-ctx.Done()
			return
		}
		sendHeaders(ctx, address, "/rondo.v1.Coordinator/Watch")
	})
	var delays []time.Duration
	for step := int64(1); reported.Load() <= int64(reports) || watched.Load() <= int64(watches) ||
		step < 20; step++ {
		began := time.Now()
		if err := reporter.Report(ctx, &rondov1.Event{Kind: &rondov1.Event_Step{
			Step: &rondov1.StepEvent{Step: step}}}); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-arrived:
			if got != step {
				t.Fatalf("step %d arrived after step %d was reported", got, step)
			}
		case <-time.After(eventTimeout):
			t.Fatalf("step %d did not arrive", step)
		}
		delays = append(delays, time.Since(began))
	}
	stopReports()
	stopWatches()
	_ = reporter.Close(ctx)
	slices.Sort(delays)
	used := residentBytes(t, leader.pid(), true)
	middle, last := delays[len(delays)/2], delays[len(delays)*99/100]
	t.Logf("%d reports, %d watches: %d MiB, a step event takes %v, 99 of 100 at most %v", reports,
		watches, used>>20, middle, last)
	if used > most || middle > time.Second {
		t.Errorf("the leader took %d MiB (at most %d), and %v for a step event (at most 1 s)",
			used>>20, most>>20, middle)
	}
}

// TestRingUnderStrangers: connections without a word, streams and aborts of strangers who know
// everything but the plan's nonce break no link, and cost a worker no memory.
func TestRingUnderStrangers(t *testing.T) {
	t.Parallel()
	idle, lasts, flags := 500, 3*time.Second, []string{"--link", "tcp"}
	if !testing.Short() {
		idle, lasts = 10_000, time.Minute
		if os.Getenv(longVariable) != "" {
			lasts = 10 * time.Minute
			flags = append(flags, "--steps", "20000")
		}
		flags = append(flags, "--inject", "delay rank=* for=150ms phase=forward times=0")
	}
	r := newRig(t, rigConfig{workers: 2, flags: flags,
		allow: allowance{limit: lasts + runTimeout}})
	r.untilMore(20)
	calm, first := time.Now(), r.untilMore(1).number("step")
	calmSteps := r.untilMore(20).number("step") - first + 1
	undisturbed := time.Since(calm) / time.Duration(calmSteps)
	store, err := meet.Config{Etcd: r.etcd.endpoints(), Job: r.job}.Store(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	view, err := store.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := map[*daemon]int64{}
	for _, d := range r.workers {
		before[d] = residentBytes(t, d.pid(), false)
	}
	address := func(n int) string { return view.Plan.Members[n%2].Address }
	call := func(ctx context.Context, n int, generation uint64, abort bool) {
		conn := dialPlain(t, address(n))
		defer conn.Close()
		md := metadata.Pairs("rondo-format", "2", "rondo-job-bin", r.job, "rondo-generation",
			fmt.Sprint(generation), "rondo-from-rank", fmt.Sprint((n+1)%2), "rondo-to-rank",
			fmt.Sprint(n%2), "rondo-world", "2", "rondo-proof-bin", strings.Repeat("p", 32))
		if abort {
			md.Set("rondo-abort-bin", "stranger")
		}
		ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, md), time.Second)
		defer cancel()
		if stream, err := rondov1.NewRingClient(conn).Link(ctx); err == nil {
			if header, _ := stream.Header(); len(header.Get("rondo-format")) > 0 {
				t.Error("a stranger is accepted")
			}
		}
	}
	generation := uint64(view.Plan.Generation)
	var held sync.Map
	var opened atomic.Int64
	stops := map[string]func() int{
		"streams": attack(t, 8, func(ctx context.Context, n int) {
			call(ctx, n, generation, false)
		}),
		"far ones": attack(t, 20, func(ctx context.Context, n int) {
			call(ctx, n, generation+1<<40, false)
		}),
		"aborts": attack(t, 2, func(ctx context.Context, n int) { call(ctx, n, generation, true) }),
		"idle connections": attack(t, 2, func(ctx context.Context, n int) {
			number := opened.Add(1)
			if int(number) > idle {
				<-ctx.Done()
				return
			}
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address(n))
			if err == nil {
				held.Store(number%1000, conn) // the older ones go with the collector
			}
		}),
	}
	began := time.Now()
	first = r.untilMore(1).number("step")
	for time.Since(began) < lasts {
		r.untilMore(10)
	}
	steps, took := r.untilMore(1).number("step")-first, time.Since(began)
	for what, stop := range stops {
		calls := stop()
		t.Logf("%d %s, %.0f a second", calls, what, float64(calls)/took.Seconds())
	}
	t.Logf("a step takes %v, and %v before", took/time.Duration(steps), undisturbed)
	held.Range(func(_, conn any) bool { return conn.(net.Conn).Close() == nil })
	for _, d := range r.workers {
		grown := residentBytes(t, d.pid(), true) - before[d]
		t.Logf("process %d grew by %d MiB", d.pid(), grown>>20)
		if grown > 64<<20 {
			t.Errorf("process %d grew by %d MiB, at most 64", d.pid(), grown>>20)
		}
	}
	if now, err := store.View(t.Context()); err != nil ||
		now.Plan.Generation != view.Plan.Generation {
		t.Errorf("the ring was formed anew: %+v, %v", now.Plan, err)
	}
	r.stop()
}
