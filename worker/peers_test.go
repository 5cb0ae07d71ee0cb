package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/sum"

	"google.golang.org/protobuf/types/known/durationpb"

	"rondo/allreduce"
	"rondo/allreduce/memnet"
	"rondo/cluster"
	"rondo/compute"
	rondov1 "rondo/proto/rondo/v1"
)

// TestFirstUnfit: the first rank that does not fit the earlier ones is named, with the reason.
func TestFirstUnfit(t *testing.T) {
	with := func(unit, host, library string) candidate {
		return candidate{Peer: compute.Peer{Unit: unit, Host: host, Library: library}}
	}
	first := with("GPU-1", "a", "NCCL 2.23.4")
	for _, c := range []struct {
		others []candidate
		rank   int
		why    string
	}{
		{[]candidate{with("GPU-2", "a", "NCCL 2.23.4"), with("GPU-3", "a", "NCCL 2.23.4")}, -1, ""},
		{[]candidate{{Cannot: "no library"}, {Cannot: "none either"}}, 1, "no library"},
		{[]candidate{with("GPU-2", "a", "NCCL 2.23.4"), with("GPU-1", "b", "NCCL 2.23.4")}, 2,
			"it is on another host than rank 0, or in a container"},
		{[]candidate{with("GPU-2", "a", "NCCL 2.18.3")}, 1,
			"it has NCCL 2.18.3, and rank 0 NCCL 2.23.4: install the same version"},
		{[]candidate{with("GPU-2", "a", "NCCL 2.23.4"), with("GPU-2", "a", "NCCL 2.23.4")}, 2,
			"it computes on the same GPU as rank 1, GPU-2: give each worker a GPU of its own"},
	} {
		got := firstUnfit(append([]candidate{first}, c.others...))
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

// inRing runs do on all ranks of an in-memory ring.
func inRing(t *testing.T, world int, do func(rank int, ring *allreduce.Ring)) {
	t.Helper()
	net, addresses := memnet.New(), make([]string, world)
	for rank := range addresses {
		addresses[rank] = fmt.Sprint(rank)
	}
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
			do(rank, ring)
			if err := ring.Close(); err != nil {
				t.Log(err) // a broken ring returns its error again
			}
		})
	}
	running.Wait()
}

// TestAllGatherJSON: every rank gets the exact bytes of all others, whatever their lengths.
func TestAllGatherJSON(t *testing.T) {
	own := []joinResult{{ID: []byte{0, 1, 0x7f, 0x80, 0xff}}, {},
		{Failed: strings.Repeat("<ä>", 400)}}
	inRing(t, len(own), func(rank int, ring *allreduce.Ring) {
		s := &seat{plan: cluster.Plan{Members: make([]cluster.Member, len(own))},
			rank: cluster.Rank(rank), ring: ring}
		for range 2 {
			all, err := allGatherJSON(t.Context(), s, own[rank])
			if err != nil || fmt.Sprint(all) != fmt.Sprint(own) {
				t.Errorf("rank %d hears %v, %v; want %v", rank, all, err, own)
			}
		}
	})
}

// TestAllGatherJSONRefuses: an invalid length is an error that names its rank.
func TestAllGatherJSONRefuses(t *testing.T) {
	for _, length := range []float32{float32(math.NaN()), -1, maxGatherBytes + 1} {
		inRing(t, 2, func(rank int, ring *allreduce.Ring) {
			if rank == 1 {
				lengths := []float32{0, length}
				if err := ring.AllGather(t.Context(), lengths, []int{1, 2}); err != nil {
					t.Error(err)
				}
				return
			}
			s := &seat{plan: cluster.Plan{Members: make([]cluster.Member, 2)}, ring: ring}
			_, err := allGatherJSON(t.Context(), s, joinResult{})
			if want := fmt.Sprintf("rank 1 sends %v bytes", length); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// fakeGroup is a group whose sum is a function.
type fakeGroup func(ctx context.Context) error

func (g fakeGroup) AllReduce(ctx context.Context, _ []float32) error { return g(ctx) }
func (fakeGroup) Close()                                             {}

// TestGroupFault: a worker remembers that its own part in a group failed, but not that it waited in
// vain. Its wait in a group is shorter than the wait of a failed rank for it in the ring.
func TestGroupFault(t *testing.T) {
	errNCCL, errRing := errors.New("NCCL failed"), errors.New("the ring broke")
	waits := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for _, c := range []struct {
		sum     fakeGroup
		limit   time.Duration
		breaks  bool
		cause   error // nil: not checked
		own     bool
		succeed bool
	}{
		{sum: func(context.Context) error { return nil }, limit: time.Hour, succeed: true},
		{sum: func(context.Context) error { return errNCCL }, limit: time.Hour, cause: errNCCL,
			own: true},
		{sum: waits, limit: 10 * time.Millisecond},
		{sum: waits, limit: time.Hour, breaks: true, cause: errRing},
	} {
		inRing(t, 2, func(rank int, ring *allreduce.Ring) {
			if rank == 1 {
				return
			}
			s := &seat{worker: &worker{spec: &rondov1.JobSpec{
				StepTimeout: durationpb.New(c.limit)}}, ring: ring}
			began := time.Now()
			add := func(ctx context.Context) error {
				if end, ok := ctx.Deadline(); !ok || end.Sub(began) > c.limit/2+time.Minute {
					t.Errorf("of %v, a sum may take %v", c.limit, end.Sub(began))
				}
				if c.breaks {
					ring.Break(errRing)
				}
				return c.sum(ctx)
			}
			err := ringGroup{fakeGroup(add), s}.AllReduce(t.Context(), nil)
			_, unmet := errors.AsType[*sum.UnmetError](err)
			if (err == nil) != c.succeed || unmet != (!c.succeed && !c.own) ||
				(s.groupFault != "") != c.own || c.cause != nil && !errors.Is(err, c.cause) {
				t.Errorf("%v; remembered: %q", err, s.groupFault)
			}
		})
	}
}

// TestFirstFailed: a rank that failed itself is named before one that waited in vain.
func TestFirstFailed(t *testing.T) {
	unmet := joinResult{}.failed(fmt.Errorf("joining: %w",
		&sum.UnmetError{Err: errors.New("late")}))
	failed := joinResult{}.failed(errors.New("NCCL failed"))
	for _, c := range []struct {
		all  []joinResult
		want *refusal
	}{
		{[]joinResult{{}, {}}, nil},
		{[]joinResult{{}, unmet, unmet}, &refusal{1, "joining: late"}},
		{[]joinResult{unmet, unmet, failed}, &refusal{2, "NCCL failed"}},
	} {
		if got := firstFailed(c.all); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c.all, got, c.want)
		}
	}
}

// TestGroupVerdicts: an error that all ranks get from one collective is reported only by the rank
// that it concerns, and breaks no ring.
func TestGroupVerdicts(t *testing.T) {
	for _, err := range []error{&groupError{rank: 1, text: "no"},
		&sum.GroupError{Ranks: 1}, &sum.GroupError{Ranks: 1, Own: errors.New("no")}} {
		if !isVerdict(fmt.Errorf("step 3: %w", err)) {
			t.Errorf("%v is no verdict", err)
		}
	}
}
