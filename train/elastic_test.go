package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/model"
	"rondo/train/agree"
	"rondo/train/optim"
)

var (
	errKilled = errors.New("killed")
	errBroken = errors.New("the ring is broken")
)

// breakage says how a ring breaks, in the call-th collective of each rank. The ranks in completes
// still complete that collective.
type breakage struct {
	call      int
	dead      []int // ranks that are killed
	carried   bool  // the carry arrives at all ranks first; otherwise nothing arrives
	completes []int // everything arrives, and these ranks complete; nil: nothing arrives
}

// breakingRing is one rank's part in a ring that breaks.
type breakingRing struct {
	localRank
	how   breakage
	calls int
	ring  *breakingState
}

type breakingState struct {
	broken context.Context
	smash  context.CancelCauseFunc
	hit    sync.Once
	calls  func() // called when the ring breaks
}

// do runs one collective: whole completes it, and spoil leaves the buffers of a broken one. A rank
// whose own ctx has ended returns that cause, even if another has broken the ring by then.
func (f *breakingRing) do(
	ctx context.Context, whole func(context.Context) error, spoil func(half bool),
) error {
	f.calls++
	if err := context.Cause(ctx); err != nil && f.ring.broken.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.ring.broken, func() { cancel(errBroken) })()
	if f.ring.broken.Err() != nil {
		return errBroken
	}
	if f.calls != f.how.call {
		err := whole(ctx)
		if err != nil {
			spoil(false)
		}
		return err
	}
	f.ring.hit.Do(f.ring.calls)
	dead := slices.Contains(f.how.dead, f.rank)
	if f.how.completes == nil {
		if dead {
			f.ring.smash(errBroken)
			return errKilled
		}
		err := whole(ctx)
		spoil(false)
		return err
	}
	if err := whole(ctx); err != nil {
		return err
	}
	if slices.Contains(f.how.completes, f.rank) && !dead {
		return nil
	}
	spoil(true)
	defer f.ring.smash(errBroken)
	if dead {
		return errKilled
	}
	return errBroken
}

func fillNaN(x []float32) {
	for i := range x {
		x[i] = float32(math.NaN())
	}
}

func (f *breakingRing) AllReduce(ctx context.Context, buf []float32) error {
	return f.do(ctx, func(ctx context.Context) error { return f.localRank.AllReduce(ctx, buf) },
		func(bool) { fillNaN(buf) })
}

func (f *breakingRing) Start(
	ctx context.Context, buf []float32, _ *time.Time,
) (Pending, error) {
	return summed{}, f.AllReduce(ctx, buf)
}

func (f *breakingRing) AllReduceCarry(
	ctx context.Context, buf []float32, out, in [][]float32,
) error {
	return f.do(ctx, func(ctx context.Context) error {
		return f.localRank.AllReduceCarry(ctx, buf, out, in)
	}, func(all bool) {
		fillNaN(buf)
		if !all && !f.how.carried {
			for _, in := range in {
				fillNaN(in)
			}
		}
	})
}

func (f *breakingRing) ReduceScatter(ctx context.Context, buf []float32, ends []int) error {
	return f.do(ctx, func(ctx context.Context) error {
		return f.localRank.ReduceScatter(ctx, buf, ends)
	}, func(bool) { fillNaN(buf) })
}

// A broken AllGather leaves the first half of the incoming data.
func (f *breakingRing) AllGather(ctx context.Context, buf []float32, ends []int) error {
	was := slices.Clone(buf)
	whole := func(ctx context.Context) error { return f.localRank.AllGather(ctx, buf, ends) }
	return f.do(ctx, whole,
		func(half bool) {
			if half {
				copy(buf[len(buf)/2:], was[len(buf)/2:])
			}
		})
}

// readRecord is what a worker read for a step, and whether it completed the step.
type readRecord struct {
	generation, step int64
	first, count     int
	committed        bool
}

// elasticWorker is a worker of an elastic job.
type elasticWorker struct {
	recorder
	memorySaver
	dev        compute.Device
	model      *model.Model
	trainer    *Trainer
	reads      []readRecord
	commits    []commitRecord
	generation int64
	batches    Batches
	timing     func() (sending, waiting time.Duration) // of its rings; nil: none

	result Result
	joined agree.Joined
	ring   int64 // that committed the state with which it joined
	inRing bool  // the last Join was completed
	err    error
}

func (h *elasticWorker) Intend(step int64, segment, first, count int, inputs []int32) error {
	want, targets := make([]int32, len(inputs)), make([]int32, len(inputs))
	at := h.trainer.position(step-1) + int64(segment)
	err := h.batches.Fill(context.Background(), at, first, count, want, targets)
	if err == nil && !slices.Equal(want, inputs) {
		err = fmt.Errorf("step %d of lanes [%d, %d): %v was read", step, first, first+count, inputs)
	}
	h.reads = append(h.reads, readRecord{h.generation, step, first, count, false})
	return err
}

// commitRecord is a commit in a ring.
type commitRecord struct {
	generation int64
	Commit
}

func (h *elasticWorker) Commit(c Commit) error {
	h.commits = append(h.commits, commitRecord{h.generation, c})
	n, step := len(h.reads), c.Step
	if last := h.reads[n-1].step; last != step {
		return fmt.Errorf("step %d is committed after step %d was read", step, last)
	}
	began := h.trainer.cfg.Local.Began(step)
	for ; n > 0 && h.reads[n-1].generation == h.generation && h.reads[n-1].step > began; n-- {
		h.reads[n-1].committed = true
	}
	return nil
}

// params returns a copy of its model's parameters.
func (h *elasticWorker) params() []float32 {
	x := make([]float32, len(h.model.Params()))
	h.dev.Download(x, h.model.Params())
	return x
}

// elastic is a job whose workers form one ring after another.
type elastic struct {
	t       *testing.T
	job     job
	workers []*elasticWorker
	from    map[int64]int64 // the step that each generation started from
	rings   int64
	reach   int // of each rank; 0: 1
	restore Restore
	wrap    func(*breakingRing) sumRing // nil: as it is
}

func newElastic(t *testing.T, j job, workers int) *elastic {
	e := &elastic{t: t, job: j, from: map[int64]int64{}}
	for range workers {
		e.addWorker()
	}
	return e
}

// addWorker adds a worker, and returns its number.
func (e *elastic) addWorker() int {
	e.t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1, Precision: e.job.precision})
	if err != nil {
		e.t.Fatal(err)
	}
	h := &elasticWorker{dev: dev, batches: e.job.batches}
	if e.job.device != nil {
		h.dev = e.job.device(len(e.workers), dev)
	}
	if h.model, err = model.New(e.job.model, h.dev); err != nil {
		e.t.Fatal(err)
	}
	cfg := e.job.shared()
	cfg.Observer, cfg.Ledger = &h.recorder, h
	if cfg.Save && cfg.Saver == nil {
		cfg.Saver = &h.memorySaver
	}
	if h.trainer, err = New(e.job.task(h.model, cfg.Ledger), cfg); err != nil {
		e.t.Fatal(err)
	}
	if e.job.prepare != nil {
		e.job.prepare(len(e.workers), h.trainer)
	}
	e.t.Cleanup(func() {
		h.trainer.Close()
		h.model.Close()
		dev.Close()
	})
	e.workers = append(e.workers, h)
	return len(e.workers) - 1
}

// ring lets workers join and run, ordered by rank, and reports whether the breakage happened.
func (e *elastic) ring(how breakage, workers ...int) (broke bool) {
	e.t.Helper()
	return e.ringUntil(e.t.Context(), how, workers...)
}

// ringUntil is ring, but its workers leave when life ends.
func (e *elastic) ringUntil(
	life context.Context, how breakage, workers ...int,
) (broke bool) {
	e.t.Helper()
	e.rings++
	generation := e.rings
	ctx, cancel := context.WithCancelCause(e.t.Context())
	shared := &breakingState{broken: ctx, smash: cancel, calls: func() { broke = true }}
	defer cancel(nil)
	met := newLocalRing(len(workers))
	var running sync.WaitGroup
	for rank, worker := range workers {
		h := e.workers[worker]
		h.generation = generation
		ring := Ring{Rank: rank, LaneEnds: e.job.dealt(len(workers)),
			Generation: generation}
		if e.reach > 0 {
			ring.Reach = slices.Repeat([]int{min(e.reach, max(len(workers)-1, 1))}, len(workers))
		}
		if len(workers) > 1 {
			place := localRank{localRing: met, rank: rank, timing: h.timing}
			f := &breakingRing{localRank: place, how: how, ring: shared}
			by := parts{ring: f, slots: h.trainer.slots}
			if e.wrap != nil {
				by.ring = e.wrap(f)
			}
			if e.job.group != nil {
				by.group = e.job.group(rank, h.dev)
			}
			if e.job.summer != nil {
				by.summer = e.job.summer(worker, ring, by.ring)
			}
			ring = e.job.over(ring, by)
		}
		running.Go(func() {
			h.joined, h.err = h.trainer.Join(life, ring, e.restore)
			h.ring = h.trainer.version().Ring
			if h.inRing = h.err == nil; h.inRing {
				h.result, h.err = h.trainer.Run(life)
			}
			if h.err != nil && len(workers) > 1 {
				cancel(errBroken)
			}
		})
	}
	running.Wait()
	for _, worker := range workers {
		if h := e.workers[worker]; h.inRing {
			e.from[generation] = h.joined.Step
		}
	}
	return broke
}

// allDone fails unless these workers have finished the job.
func (e *elastic) allDone(workers ...int) {
	e.t.Helper()
	for _, worker := range workers {
		h := e.workers[worker]
		if h.err != nil || h.result.Progress.Step != e.job.config.Steps {
			e.t.Fatalf("worker %d: %v, at step %d", worker, h.err, h.result.Progress.Step)
		}
		first := e.workers[workers[0]]
		if !sameBits(h.params(), first.params()) || h.result.Progress !=
			first.result.Progress {
			e.t.Fatalf("worker %d and %d differ", worker, workers[0])
		}
	}
}

// audit fails if auditReads does, or if ranks of one ring differ after a step.
func (e *elastic) audit() {
	e.t.Helper()
	digests := map[[2]int64]uint64{}
	for worker, h := range e.workers {
		for _, c := range h.commits {
			step := [2]int64{c.generation, c.Step}
			if first, known := digests[step]; known && first != c.Digest {
				e.t.Errorf("worker %d has other parameters after step %d of ring %d", worker,
					c.Step, c.generation)
			}
			digests[step] = c.Digest
		}
	}
	e.auditReads()
}

// auditReads fails unless every lane was read exactly once in every step that counts. A step counts
// if a worker completed it and no later ring started from an earlier step.
func (e *elastic) auditReads() {
	e.t.Helper()
	counts := func(generation, step int64) bool {
		for later, from := range e.from {
			if later > generation && from < step {
				return false
			}
		}
		return true
	}
	committed := map[[2]int64]bool{}
	for _, h := range e.workers {
		for _, r := range h.reads {
			if r.committed && counts(r.generation, r.step) {
				committed[[2]int64{r.generation, r.step}] = true
			}
		}
	}
	reads := make([][testG]int, e.job.config.Steps+1)
	for _, h := range e.workers {
		for _, r := range h.reads {
			if committed[[2]int64{r.generation, r.step}] {
				for lane := r.first; lane < r.first+r.count; lane++ {
					reads[r.step][lane]++
				}
			}
		}
	}
	for step := int64(1); step <= e.job.config.Steps; step++ {
		for lane, n := range reads[step] {
			if n != max(1, e.job.config.Accumulate) {
				e.t.Fatalf("step %d, lane %d was read %d times; rings from %v", step, lane, n,
					e.from)
			}
		}
	}
}

// matches fails unless a worker ends where an undisturbed single rank ends.
func (e *elastic) matches(worker int, oracle *outcome) {
	e.t.Helper()
	h := e.workers[worker]
	got, want := h.result.Progress, oracle.result.Progress
	if got.Step != want.Step || got.Updates != want.Updates || got.Nonfinite != want.Nonfinite ||
		math.Abs(got.EpochLossSum/want.EpochLossSum-1) > 1e-4 ||
		got.Plateau.Waiting != want.Plateau.Waiting || got.Plateau.Seen != want.Plateau.Seen ||
		got.Plateau.Reductions != want.Plateau.Reductions {
		e.t.Fatalf("progress %+v; undisturbed %+v", got, want)
	}
	params := h.params()
	for i, want := range oracle.params {
		if d := math.Abs(float64(params[i] - want)); !(d <= 2e-4) {
			e.t.Fatalf("parameter %d is %v, undisturbed %v", i, params[i], want)
		}
	}
}

// elasticJob is a short job with every kind of work that can be due after a step.
func elasticJob(steps int64) job {
	j := newJob(1)
	j.model.Hidden = 8
	j.config.Steps, j.config.Schedule.Rate = steps, 0.5
	j.evaluation, j.config.EvalEvery = newEvaluation(60), 3
	j.config.Schedule.Kind = optim.OnPlateau
	j.config.Save, j.config.SaveEvery, j.config.CheckEvery = true, 4, 2
	return j
}

// kills lists how one of four workers can be lost in a collective.
func kills() map[string]breakage {
	return map[string]breakage{
		"before":                      {dead: []int{1}},
		"first rank, before":          {dead: []int{0}},
		"carried":                     {dead: []int{2}, carried: true},
		"after, its successor knows":  {dead: []int{1}, completes: []int{2}},
		"after, its predecessor does": {dead: []int{1}, completes: []int{0}},
		"after, two know":             {dead: []int{0}, completes: []int{1, 3}},
		"after, nobody knows":         {dead: []int{3}, completes: []int{}},
	}
}

// A worker may be killed in any collective, whichever ranks complete it: the others go on without
// it and reach the undisturbed result.
func TestKilledInAnyCollective(t *testing.T) {
	oracle := elasticJob(7).mustRun(t)
	for name, how := range kills() {
		t.Run(name, func(t *testing.T) {
			for how.call = 1; ; how.call++ {
				e := newElastic(t, elasticJob(7), 4)
				if !e.ring(how, 0, 1, 2, 3) {
					e.allDone(0, 1, 2, 3)
					break
				}
				left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(worker int) bool {
					return slices.Contains(how.dead, worker)
				})
				e.ring(breakage{}, left...)
				if lost := e.workers[left[0]].joined.LostLanes; len(lost) > 0 {
					t.Fatalf("call %d: the lanes %v were lost", how.call, lost)
				}
				e.allDone(left...)
				e.audit()
				e.matches(left[0], oracle)
				e.saves(left[0])
			}
			if how.call < 15 {
				t.Errorf("only %d collectives", how.call)
			}
		})
	}
}

// twoKilled lists how two of so many workers, neighbours or not, can be lost in a collective.
func twoKilled(world int) (ways []breakage) {
	for a := range world {
		for b := a + 1; b < world; b++ {
			dead := []int{a, b}
			left := slices.DeleteFunc(upTo(world), func(w int) bool { return w == a || w == b })
			ways = append(ways, breakage{dead: dead}, breakage{dead: dead, carried: true},
				breakage{dead: dead, completes: left[:1]},
				breakage{dead: dead, completes: left[len(left)-1:]},
				breakage{dead: dead, completes: []int{}})
		}
	}
	return ways
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// Any two workers may be killed in any collective if lane states go to two successors: no step that
// a worker has completed is done again, and no lane's state is lost.
func TestTwoKilledInAnyCollective(t *testing.T) {
	oracle := elasticJob(4).mustRun(t)
	for world := 3; world <= 6; world++ {
		if testing.Short() && world > 4 {
			break
		}
		for i, how := range twoKilled(world) {
			if testing.Short() && i%2 == 1 {
				continue
			}
			for how.call = 1; ; how.call++ {
				e := newElastic(t, elasticJob(4), world)
				e.reach = 2
				if !e.ring(how, upTo(world)...) {
					break
				}
				left := slices.DeleteFunc(upTo(world), func(worker int) bool {
					return slices.Contains(how.dead, worker)
				})
				completed := int64(0)
				for _, worker := range left {
					completed = max(completed, e.workers[worker].trainer.Progress().Step)
				}
				e.ring(breakage{}, left...)
				if got := e.workers[left[0]].joined; len(got.LostLanes) > 0 ||
					got.Step != completed {
					t.Fatalf("%d workers, %+v: after step %d: %+v", world, how, completed, got)
				}
				e.allDone(left...)
				e.audit()
				e.matches(left[0], oracle)
			}
			if how.call < 10 {
				t.Errorf("only %d collectives", how.call)
			}
		}
	}
}

// saves fails unless the new rank 0 saved the job's final snapshot.
func (e *elastic) saves(worker int) {
	e.t.Helper()
	h := e.workers[worker]
	if len(h.saved) == 0 {
		e.t.Fatal("nothing was saved")
	}
	last := h.saved[len(h.saved)-1]
	if last.Progress != h.result.Progress || !sameBits(last.Params, h.params()) {
		e.t.Errorf("saved %+v, not %+v", last.Progress, h.result.Progress)
	}
}
