package rpc

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

var hubSeed = flag.Uint64("hub-seed", 0, "replay this one history")

// TestHubAgainstAList adds random records to a small hub, and compares the records that a watcher
// reads, at an uneven pace, with a list of all records.
func TestHubAgainstAList(t *testing.T) {
	first, last := uint64(1), uint64(200)
	if *hubSeed != 0 {
		first, last = *hubSeed, *hubSeed
	}
	for seed := first; seed <= last; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		h := newHub(64, HistoryBytes)
		var list, read []*rondov1.Record
		at := uint64(0)
		look := func() {
			batch, _, _ := h.after(at)
			for _, n := range batch {
				if n.number <= at {
					t.Fatalf("seed %d: number %d after %d", seed, n.number, at)
				}
				at = n.number
				read = append(read, n.record)
			}
		}
		rare := 2 + random.IntN(40) // one of so many records is not a step
		for i := range uint64(500) {
			e := step(int64(i))
			if random.IntN(rare) == 0 {
				e = checkpoint(int64(i))
			}
			r := &rondov1.Record{Source: "w", Sequence: i + 1, Event: e}
			list = append(list, r)
			h.add(r)
			h.add(r) // a second time changes nothing
			if len(h.records) > h.limit {
				t.Fatalf("seed %d: %d records with a limit of %d", seed, len(h.records), h.limit)
			}
			if random.IntN(20) == 0 {
				look()
			}
		}
		for before := -1; before != len(read); {
			before = len(read)
			look()
		}
		checkRead(t, seed, list, read, h.limit)
	}
}

// checkRead: the records read are in order and end with the newest. Only steps are missing, as long
// as the other records of the watcher's pause fit in the history.
func checkRead(t *testing.T, seed uint64, list, read []*rondov1.Record, limit int) {
	t.Helper()
	for i, r := range read {
		if i > 0 && r.Sequence <= read[i-1].Sequence {
			t.Fatalf("seed %d (replay with -hub-seed %d): record %d after %d",
				seed, seed, r.Sequence, read[i-1].Sequence)
		}
	}
	if read[len(read)-1] != list[len(list)-1] {
		t.Fatalf("seed %d (replay with -hub-seed %d): the newest record is lost", seed, seed)
	}
	important := 0
	for _, r := range list {
		if !isStep(r.Event) {
			important++
		}
	}
	if important > limit/2 {
		return // more than the history promises to keep
	}
	for _, r := range list {
		if !isStep(r.Event) && !slices.Contains(read, r) {
			t.Fatalf("seed %d (replay with -hub-seed %d): record %d is lost",
				seed, seed, r.Sequence)
		}
	}
}

func TestHubKeepsTheShapeOfALongRun(t *testing.T) {
	h := newHub(HistoryLimit, HistoryBytes)
	const steps = 10 * HistoryLimit
	for i := range uint64(steps) {
		h.add(&rondov1.Record{Source: "w", Sequence: i + 1, Event: step(int64(i))})
	}
	// A late watcher sees steps spread evenly over the run, and the newest quarter without gaps.
	if newest := h.records[len(h.records)-HistoryLimit/4]; h.last-newest.number >= HistoryLimit/4 {
		t.Errorf("the newest quarter begins at %d of %d", newest.number, h.last)
	}
	before := uint64(0)
	for _, n := range h.records {
		if n.number-before > steps/100 {
			t.Errorf("a gap from %d to %d in %d", before, n.number, steps)
		}
		before = n.number
	}
}

func TestHubRefusesTooManySources(t *testing.T) {
	h := newHub(1, HistoryBytes)
	for i := range SourceLimit {
		if _, ok := h.open(string(rune('a'+i%26)) + string(rune(0x10000+i))); !ok {
			t.Fatalf("source %d is refused", i)
		}
	}
	if _, ok := h.open("one more"); ok {
		t.Errorf("source %d is accepted", SourceLimit+1)
	}
}

// BenchmarkReportStep measures the training loop's cost of a step event.
func BenchmarkReportStep(b *testing.B) {
	nobody := func(context.Context) (string, error) { return "", cluster.ErrNoLeader }
	client, err := NewClient(nobody, ClientConfig{})
	if err != nil {
		b.Fatal(err)
	}
	r, err := client.NewReporter("w1")
	if err != nil {
		b.Fatal(err)
	}
	defer r.cancel()
	e := step(1)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Report(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
}
