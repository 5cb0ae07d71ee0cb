package worker

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/memnet"
	"rondo/cluster"
	"rondo/compute"
	"rondo/train"
)

// The first rank that does not fit those before it is named, with the reason.
func TestMisfit(t *testing.T) {
	with := func(unit, host, library string) card {
		return card{Peer: compute.Peer{Unit: unit, Host: host, Library: library}}
	}
	first := with("GPU-1", "a", "NCCL 2.23.4")
	for _, c := range []struct {
		others []card
		rank   int
		why    string
	}{
		{[]card{with("GPU-2", "a", "NCCL 2.23.4"), with("GPU-3", "a", "NCCL 2.23.4")}, -1, ""},
		{[]card{{Cannot: "no library"}, {Cannot: "none either"}}, 1, "no library"},
		{[]card{with("GPU-2", "a", "NCCL 2.23.4"), with("GPU-1", "b", "NCCL 2.23.4")}, 2,
			"it is on another host than rank 0, or in a container"},
		{[]card{with("GPU-2", "a", "NCCL 2.18.3")}, 1,
			"it has NCCL 2.18.3, and rank 0 NCCL 2.23.4: install the same version"},
		{[]card{with("GPU-2", "a", "NCCL 2.23.4"), with("GPU-2", "a", "NCCL 2.23.4")}, 2,
			"it computes on the same GPU as rank 1, GPU-2: give each worker a GPU of its own"},
	} {
		got := misfit(append([]card{first}, c.others...))
		if c.rank < 0 {
			if got != nil {
				t.Errorf("%+v: %+v", c.others, got)
			}
			continue
		}
		if got == nil || got.rank != c.rank || !strings.HasPrefix(got.why, c.why) {
			t.Errorf("%+v: %+v, want rank %d, %q", c.others, got, c.rank, c.why)
		}
	}
}

// Every rank hears what each tells, of whatever length, to the byte.
func TestTellAll(t *testing.T) {
	const world = 3
	net, members := memnet.New(), make([]cluster.Member, world)
	addresses := []string{"a", "b", "c"}
	own := []outcome{{ID: []byte{0, 1, 0x7f, 0x80, 0xff}}, {}, {Failed: strings.Repeat("<ä>", 400)}}
	var running sync.WaitGroup
	for rank := range world {
		running.Go(func() {
			links, err := net.Connect(t.Context(), addresses[rank], memnet.Seat{Generation: 1,
				Rank: allreduce.Rank(rank), World: world}, addresses)
			if err != nil {
				t.Error(err)
				return
			}
			ring, err := allreduce.New(allreduce.Config{Rank: allreduce.Rank(rank), World: world,
				Generation: 1, ChunkTimeout: time.Minute, StepTimeout: time.Hour}, links)
			if err != nil {
				t.Error(err)
				return
			}
			s := &session{plan: cluster.Plan{Members: members}, rank: cluster.Rank(rank),
				ring: ring}
			for range 2 {
				all, err := tellAll(t.Context(), s, own[rank])
				if err != nil || fmt.Sprint(all) != fmt.Sprint(own) {
					t.Errorf("rank %d hears %v, %v; want %v", rank, all, err, own)
				}
			}
			if err := ring.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

// What all ranks hear from one collective is told by the one that it is about, and breaks no ring
// of the others.
func TestGroupVerdicts(t *testing.T) {
	for _, err := range []error{&groupError{rank: 1, text: "no"},
		&train.GroupError{Ranks: 1}, &train.GroupError{Ranks: 1, Own: errors.New("no")}} {
		if !isVerdict(fmt.Errorf("step 3: %w", err)) {
			t.Errorf("%v is no verdict", err)
		}
	}
}
