package rpc

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rondov1 "rondo/proto/rondo/v1"
)

func sample(text string) *rondov1.Event {
	return &rondov1.Event{Kind: &rondov1.Event_Sample{Sample: &rondov1.SampleEvent{Text: text}}}
}

// TestLongEvents: a reporter shortens a text that is too long, between two characters.
func TestLongEvents(t *testing.T) {
	if e := sample("short"); shortened(e) != e {
		t.Error("a short event is copied")
	}
	for letters := EventLimit/3 - 9; letters < EventLimit/3+9; letters++ {
		long := sample(strings.Repeat("水", letters))
		got := shortened(long)
		text := got.GetSample().Text
		if size := proto.Size(got); size > EventLimit || size < EventLimit-16 && got != long ||
			!utf8.ValidString(text) || got != long && !strings.HasSuffix(text, "水…") {
			t.Errorf("%d letters: %d bytes, and it ends with %q", letters, size,
				text[len(text)-8:])
		}
	}
	if metrics := shortened(&rondov1.Event{Kind: &rondov1.Event_Eval{Eval: &rondov1.EvalEvent{
		Metrics: make([]*rondov1.Metric, EventLimit)}}}); metrics.GetEval() == nil {
		t.Error("an event without a text is lost")
	}
}

// TestHistoryHasABound: large records push out large ones, and the run's curve stays.
func TestHistoryHasABound(t *testing.T) {
	const room = 1 << 20
	h := newHub(HistoryLimit, room)
	number := uint64(0)
	add := func(e *rondov1.Event) {
		number++
		h.add(&rondov1.Record{Source: "w", Sequence: number, Event: e})
	}
	for i := range int64(500) {
		add(step(i))
		add(sample(strings.Repeat("x", 30<<10)))
	}
	for range 1000 {
		add(&rondov1.Event{Kind: &rondov1.Event_Eval{Eval: &rondov1.EvalEvent{
			Metrics: make([]*rondov1.Metric, 4000)}}})
	}
	bytes, steps := 0, 0
	for _, n := range h.records {
		bytes += sizeOf(n.record)
		if isStep(n.record.Event) {
			steps++
		}
	}
	if bytes > room || bytes != h.bytes || bytes < room/2 || steps != 500 {
		t.Errorf("%d bytes (counted as %d) of %d, %d steps", bytes, h.bytes, room, steps)
	}
	for i := range int64(4 * room / recordBytes) { // now steps alone
		add(step(i))
	}
	if h.bytes > room || len(h.records) == 0 {
		t.Errorf("%d bytes of %d in %d records", h.bytes, room, len(h.records))
	}
}

// TestStrangersReports: what is too long is refused, and so are watchers without number.
func TestStrangersReports(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		s := n.server("c1")
		n.lead(s)
		connect := func() rondov1.CoordinatorClient {
			conn, err := n.client().connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return rondov1.NewCoordinatorClient(conn)
		}
		said := func(records ...*rondov1.Record) codes.Code {
			stream, err := connect().Report(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				_ = stream.Send(r) // Recv has the reason
			}
			for {
				if _, err := stream.Recv(); err != nil {
					return status.Code(err)
				}
			}
		}
		if code := said(&rondov1.Record{Source: strings.Repeat("w", SourceBytes+1)}); code !=
			codes.InvalidArgument {
			t.Errorf("a long name: %v", code)
		}
		if code := said(&rondov1.Record{Source: "w"}, &rondov1.Record{Source: "w", Sequence: 1,
			Event: sample(strings.Repeat("x", MessageLimit))}); code != codes.ResourceExhausted {
			t.Errorf("a long event: %v", code)
		}
		var watch func() (grpc.ServerStreamingClient[rondov1.Record], error)
		for i := range WatchLimit + 1 {
			if i%StreamLimit == 0 {
				client := connect()
				watch = func() (grpc.ServerStreamingClient[rondov1.Record], error) {
					return client.Watch(t.Context(), &rondov1.WatchRequest{})
				}
			}
			stream, err := watch()
			if err != nil {
				t.Fatal(err)
			}
			header, _ := stream.Header()
			if accepted := header != nil; accepted != (i < WatchLimit) {
				t.Errorf("watcher %d: accepted %t", i, accepted)
			}
			if i == WatchLimit {
				if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
					t.Errorf("one watcher too many: %v", err)
				}
			}
		}
	})
}
