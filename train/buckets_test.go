package train

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/devicetest"
	"rondo/train/optim"
)

// queued is a ring that sums in a goroutine, one sum after the other.
type queued struct {
	sumRing
	started *int       // how many sums were begun
	last    *queuedSum // nil: none
}

type queuedSum struct {
	done chan struct{}
	err  error
}

func (s *queuedSum) Wait(context.Context) error { <-s.done; return s.err }

func (q *queued) Start(
	ctx context.Context, buf []float32, ended *time.Time,
) (Pending, error) {
	before, s := q.last, &queuedSum{done: make(chan struct{})}
	q.last = s
	*q.started++
	go func() {
		defer close(s.done)
		if before != nil {
			<-before.done
		}
		s.err = q.sumRing.AllReduce(ctx, buf)
		if ended != nil {
			*ended = time.Now()
		}
	}()
	return s, nil
}

func (q *queued) settle() {
	if q.last != nil {
		<-q.last.done
	}
}

func (q *queued) AllReduce(ctx context.Context, buf []float32) error {
	q.settle()
	return q.sumRing.AllReduce(ctx, buf)
}

func (q *queued) AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error {
	q.settle()
	return q.sumRing.AllReduceCarry(ctx, buf, out, in)
}

func (q *queued) AllGather(ctx context.Context, buf []float32, ends []int) error {
	q.settle()
	return q.sumRing.AllGather(ctx, buf, ends)
}

// deep is a job whose backward pass finishes the gradient in six parts.
func deep(ranks int) job {
	j := newJob(ranks)
	j.model.Layers, j.model.Embed, j.config.Steps = 2, 8, 12
	return j
}

// runQueued runs the job on queued rings. It returns how many sums rank 0 started, and how many of
// them during backward passes.
func (j job) runQueued(t *testing.T) (outcomes []*outcome, started, within int) {
	t.Helper()
	met, errs := newLocalRing(j.ranks), make(chan error, j.ranks)
	prepare := j.prepare
	j.prepare = func(rank int, trainer *Trainer) {
		if prepare != nil {
			prepare(rank, trainer)
		}
		if rank == 0 {
			trainer.seat = counting{trainer.seat, &started, &within}
		}
	}
	for rank := range j.ranks {
		o, begun := &outcome{}, new(int)
		if rank == 0 {
			begun = &started
		}
		outcomes = append(outcomes, o)
		own := localRank{localRing: met, rank: rank, summed: j.summed}
		ring := &queued{sumRing: own, started: begun}
		go func() { errs <- j.runRank(t.Context(), rank, ring, o) }()
	}
	for range j.ranks {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	return outcomes, started, within
}

// counting counts the sums that start during backward passes.
type counting struct {
	Seat
	started, within *int
}

func (c counting) Backward(in Pass) (float64, error) {
	before := *c.started
	defer func() { *c.within += *c.started - before }()
	return c.Seat.Backward(in)
}

// Summing in buckets gives the same parameters as one sum, whatever the buckets' size and the order
// in which the ranks finish. The ring adds in the same order here.
func TestBucketsSumTheGradient(t *testing.T) {
	for name, change := range map[string]func(*job){
		"each part": func(*job) {},
		"two":       func(j *job) { j.bucketBytes = 5000 },
		"recompute": func(j *job) { j.model.Recompute = 3 },
		"a device that copies": func(j *job) {
			j.config.HostMemory, j.model.GradientTail = false, 0
		},
		"a device that stages": func(j *job) {
			j.config.HostMemory, j.model.GradientTail = false, 0
			j.device = func(_ int, dev compute.Device) compute.Device {
				return devicetest.NewStager(dev)
			}
		},
		"a device that records": func(j *job) {
			j.config.HostMemory, j.model.GradientTail = false, 0
			j.device = func(_ int, dev compute.Device) compute.Device {
				return devicetest.NewRecorder(dev)
			}
		},
		"a rehearsal": func(j *job) {
			j.prepare = func(_ int, trainer *Trainer) { rehearse(trainer, &rehearsed{}) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			whole := deep(3)
			change(&whole)
			whole.bucketBytes = onePiece
			want := whole.mustRun(t).params
			j := deep(3)
			change(&j)
			outcomes, _, _ := j.runQueued(t)
			for rank, o := range outcomes {
				if !slices.Equal(o.params, want) {
					t.Errorf("rank %d of 3 has other parameters than with one bucket", rank)
				}
			}
		})
	}
}

// All buckets but the last start before backward ends. If each rank clips its own gradient, none
// does.
func TestBucketsBeginWithinBackward(t *testing.T) {
	for _, c := range []struct {
		clip optim.Clip
		size int64
		each int // in a step
	}{
		// The output layer; for each layer W_ih, then the rest, split by gates for the first layer;
		// then the embedding with the tail.
		{byNorm(1, optim.ScopeGlobal), 1, 8},
		{byNorm(0, optim.ScopeWorker), 1, 8},
		{byNorm(1, optim.ScopeGlobal), onePiece, 0},
		{byNorm(1, optim.ScopeWorker), 1, 0},
	} {
		j := deep(2)
		j.config.Clip, j.bucketBytes = c.clip, c.size
		_, started, within := j.runQueued(t)
		if want := c.each * int(j.config.Steps); started != want || within != want {
			t.Errorf("%+v, %d bytes: %d sums were begun, %d of them within runs; want %d", c.clip,
				c.size, started, within, want)
		}
	}
}

// A bucket that fails, at its start or later, ends the step.
func TestBucketFails(t *testing.T) {
	for _, when := range []int{1, 2} {
		j := deep(1)
		var o outcome
		err := j.runRank(t.Context(), 0, &bucketless{ringOfOne{}, when}, &o)
		if !errors.Is(err, errTest) || !strings.Contains(err.Error(), "step 1:") {
			t.Errorf("%v", err)
		}
	}
}

// bucketless fails when a sum starts, or while it runs.
type bucketless struct {
	ringOfOne
	when int
}

func (f *bucketless) Start(context.Context, []float32, *time.Time) (Pending, error) {
	if f.when == 1 {
		return nil, errTest
	}
	return brokenSum{}, nil
}

type brokenSum struct{}

func (brokenSum) Wait(context.Context) error { return errTest }
