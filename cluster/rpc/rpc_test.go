package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

func TestFromReportToWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		said := take(t, s)
		early := n.watch()
		s.Planned(ring(cluster.Running))
		one, two := n.reporter("w1"), n.reporter("w2")
		report(t, one, step(1), checkpoint(1), step(2))
		flush(t, one)
		late := n.watch()
		report(t, two, done(20))
		flush(t, two)
		report(t, one, done(10))
		flush(t, one)
		want := []cluster.Event{cluster.Done{ID: "w2", Result: result(t, done(20))},
			cluster.Done{ID: "w1", Result: result(t, done(10))}}
		if got := said.all(); !reflect.DeepEqual(got, want) {
			t.Errorf("the coordinator was told %v, want %v", got, want)
		}
		ended := ring(cluster.Ended)
		ended.Result = result(t, done(10))
		s.Planned(ended)
		for _, w := range []*watcher{early, late, n.watch()} {
			if err := <-w.ended; err != nil {
				t.Errorf("Watch: %v", err)
			}
			w.want(t, "step 1", "checkpoint 1", "step 2", "done 10 stopped false")
		}
	})
}

// result is what a worker's end leaves in the plan.
func result(t *testing.T, e *rondov1.Event) string {
	t.Helper()
	b, err := proto.Marshal(e.GetDone())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWhatTheCoordinatorIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		said := take(t, s)
		r := n.reporter("w1")
		ended := done(3)
		ended.GetDone().Generation = 7
		report(t, r, failure(&rondov1.FailureEvent{Text: "no such file", Usage: true}),
			failure(&rondov1.FailureEvent{Id: "w3", Text: "exit status 1", Fatal: true,
				Resync: true, Generation: 6}),
			&rondov1.Event{Kind: &rondov1.Event_Suspect{Suspect: &rondov1.SuspectEvent{
				Generation: math.MaxUint64, Rank: 1, Text: "stream broken", Slow: true}}},
			&rondov1.Event{Kind: &rondov1.Event_Leaving{Leaving: &rondov1.LeavingEvent{}}},
			ended)
		flush(t, r)
		want := []cluster.Event{
			cluster.Failed{ID: "w1", Text: "no such file", Usage: true},
			cluster.Failed{ID: "w1", Text: "exit status 1", Fatal: true, Resync: true,
				Generation: 6}, // in its own name alone
			cluster.Suspected{ID: "w1", Generation: math.MaxInt64, Rank: 1,
				Text: "stream broken", Slow: true},
			cluster.Leaving{ID: "w1"},
			cluster.Done{ID: "w1", Generation: 7, Result: result(t, ended)},
		}
		if got := said.all(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %#v, want %#v", got, want)
		}
	})
}

func TestLastEvent(t *testing.T) {
	failed := ring(cluster.Ended)
	failed.Failed, failed.Usage = true, true
	led := ring(cluster.Ended)
	led.Result = result(t, done(6))
	cases := []struct {
		name string
		plan cluster.Plan
		want string
	}{
		{"failed", failed, "failure as the test has it usage true"},
		{"before the start", cluster.Plan{Phase: cluster.Ended}, "done 0 stopped true"},
		{"under another leader", led, "done 6 stopped false"},
		{"without a result", ring(cluster.Ended),
			"notice : the job has ended: as the test has it"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				s := n.server("c1")
				n.lead(s)
				w := n.watch()
				s.Notify("w9", "hello")
				s.Planned(c.plan)
				s.Planned(c.plan) // a second time changes nothing
				s.Notify("w9", "too late")
				if err := <-w.ended; err != nil {
					t.Error(err)
				}
				w.want(t, "notice w9: hello", c.want)
			})
		})
	}
}

// TestHeardOnce: a leader hears each event once, and learns which ones an earlier leader had.
func TestHeardOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		var mu sync.Mutex
		heard := map[string][]string{}
		lead := func(id string) *Server {
			s := n.server(id)
			s.Heard = func(e *rondov1.Event, retold bool) {
				mu.Lock()
				defer mu.Unlock()
				text := show(e)
				if retold {
					text += ", retold"
				}
				heard[id] = append(heard[id], text)
			}
			n.lead(s)
			return s
		}
		r := n.reporter("w1")
		first := lead("c1")
		report(t, r, step(1), checkpoint(1))
		flush(t, r)
		first.Follow()
		report(t, r, checkpoint(2))
		lead("c2").Notify("", "welcome")
		flush(t, r)
		synctest.Wait()
		want := map[string][]string{"c1": {"step 1", "checkpoint 1"},
			"c2": {show(&rondov1.Event{Kind: &rondov1.Event_Notice{
				Notice: &rondov1.NoticeEvent{Text: "welcome"}}}),
				"checkpoint 1, retold", "checkpoint 2"}}
		if !maps.EqualFunc(heard, want, slices.Equal) {
			t.Errorf("heard %q, want %q", heard, want)
		}
		w := n.watch()
		synctest.Wait()
		if got := w.all(); !slices.Contains(got, "checkpoint 1") {
			t.Errorf("a watcher of the second leader misses the first's: %q", got)
		}
	})
}

// TestNoNoticeIsLost: events that several goroutines publish at once are all heard and watched.
func TestNoNoticeIsLost(t *testing.T) {
	for range 5 { // an error in the order shows in about every second round
		inBubble(t, noNoticeIsLost)
	}
}

func noNoticeIsLost(t *testing.T, n *network) {
	const publishers, each = 16, HistoryLimit / 32
	const notices = publishers * each
	s := n.server("c1")
	var heard atomic.Int64
	s.Heard = func(*rondov1.Event, bool) { heard.Add(1) }
	n.lead(s)
	var all sync.WaitGroup
	start := make(chan struct{})
	for range publishers {
		all.Go(func() {
			<-start
			for range each {
				s.Notify("w1", "it is slow")
			}
		})
	}
	close(start)
	all.Wait()
	w := n.watch()
	synctest.Wait()
	if got := len(w.all()); got != notices || heard.Load() != notices {
		t.Errorf("of %d notices %d were watched and %d heard", notices, got, heard.Load())
	}
}

// TestLeadershipMoves: only steps are lost, and a watcher sees no event twice.
func TestLeadershipMoves(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		a, b := n.server("c1"), n.server("c2")
		n.lead(a)
		through := n.watch()
		r := n.reporter("w1")
		report(t, r, step(1), checkpoint(1))
		flush(t, r)
		synctest.Wait()
		a.Follow()
		synctest.Wait() // steps that the old leader still accepts are lost with it
		report(t, r, step(2), checkpoint(2))
		time.Sleep(10 * time.Second)
		n.lead(b)
		report(t, r, step(3), checkpoint(3))
		flush(t, r)
		b.Planned(cluster.Plan{Phase: cluster.Ended})
		if err := <-through.ended; err != nil {
			t.Error(err)
		}
		through.want(t, "step 1", "checkpoint 1", "step 2", "checkpoint 2", "step 3",
			"checkpoint 3", "done 3 stopped true")
		// A watcher that knows only the new leader gets the old one's events, except for steps.
		fresh := n.watch()
		<-fresh.ended
		fresh.want(t, "checkpoint 1", "step 2", "checkpoint 2", "step 3", "checkpoint 3",
			"done 3 stopped true")
	})
}

// TestBrokenConnections: connections break while a worker reports, and the leader has each event
// once.
func TestBrokenConnections(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		w := n.watch()
		r := n.reporter("w1")
		var want []string
		for i := range int64(200) {
			report(t, r, checkpoint(i))
			want = append(want, fmt.Sprintf("checkpoint %d", i))
			if i%20 == 10 {
				time.Sleep(time.Millisecond)
				n.breakConnections()
			}
		}
		flush(t, r)
		s.Planned(cluster.Plan{Phase: cluster.Ended})
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
		var got []string
		broken := 0
		for _, e := range w.all() {
			if strings.HasPrefix(e, "notice w1: its report stream broke") {
				broken++
			} else {
				got = append(got, e)
			}
		}
		if want = append(want, "done 199 stopped true"); !reflect.DeepEqual(got, want) {
			t.Errorf("watched %q, want %q", got, want)
		}
		if broken == 0 {
			t.Error("no stream was seen to break")
		}
	})
}

// TestCloseSaysGoodbye: a worker that leaves in good order is not reported as broken.
func TestCloseSaysGoodbye(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		w := n.watch()
		r := n.reporter("w1")
		report(t, r, checkpoint(1))
		began := time.Now()
		for range 2 {
			if err := r.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close took %v", took)
		}
		if err := r.Report(t.Context(), checkpoint(2)); !errors.Is(err, errClosed) {
			t.Errorf("Report after Close: %v", err)
		}
		synctest.Wait()
		w.want(t, "checkpoint 1")
	})
}

func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		s.Planned(ring(cluster.Running))
		said := take(t, s)
		stopped := make(chan error, 1)
		go func() { stopped <- n.client().Stop(t.Context(), "interrupted") }()
		synctest.Wait()
		want := []cluster.Event{cluster.StopRequested{Reason: "interrupted"}}
		if got := said.all(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		select {
		case err := <-stopped:
			t.Fatalf("answered before it was stored: %v", err)
		default:
		}
		s.Planned(ring(cluster.Stopping))
		if err := <-stopped; err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
}

func TestScale(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		plan := ring(cluster.Running)
		s.Planned(plan)
		said := take(t, s)
		w := n.watch()
		scaled := make(chan error, 2)
		scale := func(workers int) { scaled <- n.client().Scale(t.Context(), workers) }
		go scale(3)
		synctest.Wait()
		go scale(4) // waits for its turn: the first answer must be about the first call
		synctest.Wait()
		want := []cluster.Event{cluster.ScaleRequested{Workers: 3}}
		if got := said.all(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		select {
		case err := <-scaled:
			t.Fatalf("answered before it was stored: %v", err)
		default:
		}
		for _, limit := range []int{3, 4} {
			plan.Limit = limit
			s.Planned(plan)
			if err := <-scaled; err != nil {
				t.Errorf("Scale to %d: %v", limit, err)
			}
			synctest.Wait()
		}
		if err := n.client().Scale(t.Context(), 4); err != nil { // the limit is already set
			t.Errorf("Scale to 4: %v", err)
		}
		synctest.Wait()
		w.want(t, "scale 3", "scale 4")
	})
}

// TestScaleIsRefused: an impossible request is refused at once, with the reason.
func TestScaleIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		s.Planned(ring(cluster.Running))
		take(t, s)
		began := time.Now()
		for _, workers := range []int{-1, 0, testJob.Lanes + 1, math.MaxInt} {
			err := n.client().Scale(t.Context(), workers)
			var refused *RefusedError
			if !errors.As(err, &refused) || !refused.Wrong() ||
				status.Code(err) != codes.InvalidArgument ||
				!strings.HasPrefix(err.Error(), "scaling the job: ") ||
				!strings.Contains(err.Error(), "can have 1 (--min-workers) to 4 (--batch") {
				t.Errorf("Scale to %d: %v", workers, err)
			}
		}
		s.Planned(ring(cluster.Stopping))
		err := n.client().Scale(t.Context(), 2)
		if status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "stopping") {
			t.Errorf("Scale of a job that stops: %v", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

func TestOnlyTheLeaderAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		n.lead(n.server("c1"))
		n.server("c2")
		conn, err := grpc.NewClient("passthrough:///c2", grpc.WithContextDialer(n.dial),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := rondov1.NewCoordinatorClient(conn)
		_, stopErr := client.Stop(t.Context(), &rondov1.StopRequest{})
		_, scaleErr := client.Scale(t.Context(), &rondov1.ScaleRequest{Workers: 2})
		watch, err := client.Watch(t.Context(), &rondov1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, watchErr := watch.Recv()
		reports, err := client.Report(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, reportErr := reports.Recv()
		for call, err := range map[string]error{
			"Stop": stopErr, "Scale": scaleErr, "Watch": watchErr, "Report": reportErr,
		} {
			if status.Code(err) != codes.Unavailable ||
				!strings.Contains(err.Error(), "c1 at c1 does") {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
}

// TestRefusedRecords: an invalid record ends its worker's stream and reaches no one else.
func TestRefusedRecords(t *testing.T) {
	cases := []struct {
		name    string
		records []*rondov1.Record
		want    string
	}{
		{"no source", []*rondov1.Record{{}}, "must have a source"},
		{"an event at once", []*rondov1.Record{{Source: "w", Sequence: 1, Event: step(1)}},
			"and no event"},
		{"no event", []*rondov1.Record{{Source: "w"}, {Source: "w", Sequence: 1}}, "no event"},
		{"an empty event", []*rondov1.Record{{Source: "w"},
			{Source: "w", Sequence: 1, Event: &rondov1.Event{}}}, "no event"},
		{"another's", []*rondov1.Record{{Source: "w"},
			{Source: "v", Sequence: 1, Event: step(1)}}, "not its own"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				s := n.server("c1")
				n.lead(s)
				w := n.watch()
				conn, err := n.client().connect(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				stream, err := rondov1.NewCoordinatorClient(conn).Report(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range c.records {
					_ = stream.Send(r)
				}
				for err == nil {
					_, err = stream.Recv()
				}
				if status.Code(err) != codes.InvalidArgument ||
					!strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				synctest.Wait()
				w.want(t)
			})
		})
	}
}

func TestWatchEndsWithItsCallback(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		s.Notify("", "hello")
		enough := errors.New("enough")
		err := n.client().Watch(t.Context(), func(*rondov1.Event) error { return enough })
		if !errors.Is(err, enough) {
			t.Errorf("Watch: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = n.client().Watch(ctx, func(*rondov1.Event) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Watch of a job in which nothing happens: %v", err)
		}
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		s.Planned(cluster.Plan{Phase: cluster.Ended})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before anybody was told: %v", err)
		}
		r := n.reporter("w1")
		report(t, r, checkpoint(1))
		flush(t, r)
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(t.Context()) }()
		<-n.watch().ended
		synctest.Wait()
		select {
		case err := <-drained:
			t.Errorf("while a worker still reports: %v", err)
		default:
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
	})
}

func TestConstructorsCheck(t *testing.T) {
	nobody := func(context.Context) (string, error) { return "", cluster.ErrNoLeader }
	client, err := NewClient(nobody, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, noLeader := NewClient(nil, ClientConfig{})
	_, negative := NewClient(nobody, ClientConfig{Patience: -1})
	_, noID := client.NewReporter("")
	_, noServerID := NewServer("", testJob, nil)
	for i, err := range []error{noLeader, negative, noID, noServerID} {
		if err == nil {
			t.Errorf("case %d is accepted", i)
		}
	}
}
