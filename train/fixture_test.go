package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/model"
	"rondo/sum"
	"rondo/train/agree"
	"rondo/train/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Shape of the tests' jobs: G lanes, T tokens per segment, V tokens in the vocabulary.
const (
	testG = 12
	testT = 7
	testV = 11
)

// text returns n tokens that a model can learn to predict: most follow from the previous one.
func text(n int) []int32 {
	rng := rand.New(rand.NewPCG(11, 7))
	ids := make([]int32, n)
	for i := range ids {
		if ids[i] = int32(rng.IntN(testV)); i > 0 && rng.IntN(8) > 0 {
			ids[i] = (3*ids[i-1] + 1) % testV
		}
	}
	return ids
}

// lanesOfText deals a text to G lanes, in sequence or in windows at random places.
type lanesOfText struct {
	ids    []int32
	steps  int64 // per epoch
	random bool
}

func (l lanesOfText) SegmentsPerEpoch() int64 { return l.steps }

func (l lanesOfText) Reset(step int64) bool { return l.random || step%l.steps == 0 }

func (l lanesOfText) Fill(ctx context.Context, step int64, first, count int,
	inputs, targets []int32) error {
	for b := range count {
		lane := first + b
		at := lane*(len(l.ids)/testG) + int(step%l.steps)*testT
		if l.random {
			rng := rand.New(rand.NewPCG(uint64(step), uint64(lane)))
			at = rng.IntN(len(l.ids) - testT)
		}
		for t := range testT {
			inputs[t*count+b], targets[t*count+b] = l.ids[at+t], l.ids[at+t+1]
		}
	}
	return ctx.Err()
}

// newLanes returns lanes with 9 steps per epoch.
func newLanes(random bool) lanesOfText {
	const steps = 9
	return lanesOfText{text(testG * (steps*testT + 1)), steps, random}
}

// dealt returns the ends of the lanes of n ranks.
func dealt(n int) []int {
	ends := make([]int, n)
	for r := range ends {
		ends[r] = testG * (r + 1) / n
	}
	return ends
}

// localRing is a ring in one process. The last rank to arrive does the collective for all, in rank
// order.
type localRing struct {
	mu      sync.Mutex
	bufs    [][]float32
	outs    [][][]float32 // the ranks' carries
	ins     [][][]float32
	parts   [][][]float32 // the ranks' nodes of a tree
	arrived int
	met     chan struct{} // closed when all ranks have arrived
}

func newLocalRing(n int) *localRing {
	return &localRing{bufs: make([][]float32, n), outs: make([][][]float32, n),
		ins: make([][][]float32, n), parts: make([][][]float32, n), met: make(chan struct{})}
}

// meet waits for all ranks. The last one calls do on their buffers.
func (m *localRing) meet(ctx context.Context, rank int, buf []float32, do func()) error {
	m.mu.Lock()
	met := m.met
	m.bufs[rank] = buf
	if m.arrived++; m.arrived == len(m.bufs) {
		do()
		m.arrived, m.met = 0, make(chan struct{})
		close(met)
	}
	m.mu.Unlock()
	select {
	case <-met:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-met: // all arrived before ctx ended, or at the same time
		return nil
	default:
		return context.Cause(ctx)
	}
}

// localRank is one rank's part in a localRing.
type localRank struct {
	*localRing
	rank   int
	summed func([]float32) // receives the result of each all-reduce; nil: none
	timing func() (sending, waiting time.Duration)
}

func (s localRank) AllReduce(ctx context.Context, buf []float32) error {
	return s.meet(ctx, s.rank, buf, s.add)
}

func (s localRank) add() {
	for i := range s.bufs[0] {
		sum := float32(0)
		for _, b := range s.bufs {
			sum += b[i]
		}
		for _, b := range s.bufs {
			b[i] = sum
		}
	}
	if s.summed != nil {
		s.summed(s.bufs[0])
	}
}

// Start sums at once, since all ranks start the same sums in the same order.
func (s localRank) Start(
	ctx context.Context, buf []float32, _ *time.Time,
) (Pending, error) {
	return summed{}, s.AllReduce(ctx, buf)
}

// summed is a completed sum.
type summed struct{}

func (summed) Wait(context.Context) error { return nil }

// AllReduceCarry delivers all ranks' carries, and then sums.
func (s localRank) AllReduceCarry(
	ctx context.Context, buf []float32, out, in [][]float32,
) error {
	s.mu.Lock()
	s.outs[s.rank], s.ins[s.rank] = out, in
	s.mu.Unlock()
	err := s.meet(ctx, s.rank, nil, func() {
		for hop := range s.outs[0] {
			for rank, out := range s.outs {
				in := s.ins[(rank+1)%len(s.ins)]
				if copy(in[hop], out[hop]) != len(in[hop]) || len(out[hop]) != len(in[hop]) {
					panic("a carry of another length than its receiver's")
				}
			}
		}
	})
	if err != nil {
		return err
	}
	return s.AllReduce(ctx, buf)
}

func (s localRank) AllGather(ctx context.Context, buf []float32, ends []int) error {
	return s.meet(ctx, s.rank, buf, func() {
		begin := 0
		for owner, end := range ends {
			for _, b := range s.bufs {
				copy(b[begin:end], s.bufs[owner][begin:end])
			}
			begin = end
		}
	})
}

// ReduceScatter sums like AllReduce, and overwrites the other ranks' ranges with garbage.
func (s localRank) ReduceScatter(ctx context.Context, buf []float32, ends []int) error {
	return s.meet(ctx, s.rank, buf, func() {
		begin := 0
		for owner, end := range ends {
			for i := begin; i < end; i++ {
				sum := float32(0)
				for _, b := range s.bufs {
					sum += b[i]
					b[i] = float32(math.NaN())
				}
				s.bufs[owner][i] = sum
			}
			begin = end
		}
	})
}

func (s localRank) Timing() (sending, waiting time.Duration) {
	if s.timing == nil {
		return 0, 0
	}
	return s.timing()
}

// recorder is an Observer that records its reports.
type recorder struct {
	steps       []StepReport
	times       []StepTimes // of the steps
	evals       []EvalReport
	samples     []string
	checkpoints []int64
	tuned       []sum.Tuning
	notices     []string
	own         []string // notices of this rank
}

func (r *recorder) Step(s StepReport) {
	r.times = append(r.times, s.Times)
	s.Times = StepTimes{} // times differ from run to run
	r.steps = append(r.steps, s)
}

func (r *recorder) Evaluated(e EvalReport) { r.evals = append(r.evals, e) }
func (r *recorder) Checkpoint(step int64)  { r.checkpoints = append(r.checkpoints, step) }
func (r *recorder) Notice(text string)     { r.notices = append(r.notices, text) }
func (r *recorder) OwnNotice(text string)  { r.own = append(r.own, text) }
func (r *recorder) Sampled(step int64, text string) {
	r.samples = append(r.samples, fmt.Sprint(step, " ", text))
}

// memorySaver is a Saver that keeps copies in memory.
type memorySaver struct {
	saved    []*Snapshot
	err      error // of Save
	flushErr error
	flushed  int
}

func (s *memorySaver) Save(_ context.Context, snap *Snapshot) error {
	if s.err != nil {
		return s.err
	}
	c := *snap
	c.Params, c.Lanes = slices.Clone(snap.Params), slices.Clone(snap.Lanes)
	c.Slots = slices.Clone(snap.Slots)
	for i := range c.Slots {
		c.Slots[i].Data = slices.Clone(c.Slots[i].Data)
	}
	s.saved = append(s.saved, &c)
	return nil
}

func (s *memorySaver) Flush(context.Context) error {
	s.flushed++
	return s.flushErr
}

// job is a job on n ranks in this process.
type job struct {
	ranks   int
	ends    []int // of the ranks' lanes; nil: dealt evenly
	model   model.Config
	batches Batches
	config  Config

	bptt       int                               // 0: testT
	counts     func(segment int64, lane int) int // targets of a lane; nil: bptt
	evaluation Evaluation                        // nil: no evaluation data
	evalData   int64                             // identifies the evaluation data
	from       *Snapshot                         // nil: from scratch
	reload     func(trainer *Trainer) *Snapshot  // replaces from

	precision compute.Precision
	threads   int // 0: 1

	device  func(rank int, dev compute.Device) compute.Device // wraps the device; nil: no wrapper
	prepare func(rank int, t *Trainer)                        // called before Run; nil: nothing
	summed  func([]float32)                                   // receives the sums; nil: none
	group   func(rank int, dev compute.Device) compute.Group  // nil: there is none
	// summer makes the Summer that a worker compresses with; nil: none.
	summer func(worker int, r Ring, ring sumRing) *compress.Summer
	update sum.Update // changes of the update rule by the compressed sum

	bucketBytes int64
	shardCopies int    // number of ranks that keep each slot; 0: all
	tracer      Tracer // of rank 0's sums; nil: none
}

// onePiece as bucketBytes sums the gradient in one piece. newJob's bucketBytes makes as many
// buckets as possible.
const onePiece = 1 << 40

func newJob(ranks int) job {
	return job{
		ranks: ranks,
		model: model.Config{Cell: compute.LSTM, Vocab: testV, Hidden: 16, Layers: 1, Seed: 5,
			Init: model.Init{Kind: model.Uniform}, GradientTail: Tail},
		batches: newLanes(false),
		config: Config{
			Lanes: testG, Steps: 50, NonfiniteLimit: 3,
			Optimizer: optim.Optimizer{Rule: compute.SGD, Momentum: 0.9, Beta1: 0.9, Beta2: 0.999,
				Rho: 0.99, Epsilon: 1e-8},
			Schedule:   optim.Schedule{Kind: optim.Constant, Rate: 4, Decay: 0.5},
			Clip:       optim.Clip{Limit: 1, By: optim.ByNorm, Scope: optim.ScopeGlobal},
			HostMemory: true,
		},
		bucketBytes: 1,
	}
}

// outcome is one rank's result.
type outcome struct {
	recorder
	memorySaver
	result Result
	err    error
	params []float32
}

// run runs the job and returns each rank's outcome. The first failing rank ends the others.
func (j job) run(t *testing.T) []*outcome {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	met := newLocalRing(j.ranks)
	outcomes := make([]*outcome, j.ranks)
	for rank := range outcomes {
		outcomes[rank] = &outcome{}
		group.Go(func() error {
			o := outcomes[rank]
			o.err = j.runRank(ctx, rank, localRank{localRing: met, rank: rank, summed: j.summed}, o)
			return o.err
		})
	}
	_ = group.Wait() // each rank's error is in its outcome
	return outcomes
}

func (j job) runRank(ctx context.Context, rank int, ring sumRing, o *outcome) error {
	var dev compute.Device
	dev, err := cpu.New(cpu.Config{Threads: max(1, j.threads), Precision: j.precision})
	if err != nil {
		return err
	}
	defer dev.Close()
	if j.device != nil {
		dev = j.device(rank, dev)
	}
	m, err := model.New(j.model, dev)
	if err != nil {
		return err
	}
	defer m.Close()
	cfg := j.shared()
	cfg.Observer = &o.recorder
	if cfg.Save && cfg.Saver == nil {
		cfg.Saver = &o.memorySaver
	}
	trainer, err := New(j.task(m, cfg.Ledger), cfg)
	if err != nil {
		return err
	}
	defer trainer.Close()
	at := Ring{Rank: rank, LaneEnds: j.ends, Generation: 1}
	if j.ends == nil {
		at.LaneEnds = j.dealt(j.ranks)
	}
	by := parts{ring: ring, slots: trainer.slots, heard: &o.recorder}
	if j.group != nil {
		by.group = j.group(rank, dev)
	}
	if j.summer != nil {
		by.summer = j.summer(rank, at, ring)
	}
	restore := func(context.Context, agree.Reason, int64) (*Snapshot, error) {
		if j.reload != nil {
			return j.reload(trainer), nil
		}
		return j.from, nil
	}
	_, err = trainer.Join(ctx, j.over(at, by), restore)
	if err != nil {
		return err
	}
	if j.prepare != nil {
		j.prepare(rank, trainer)
	}
	o.result, err = trainer.Run(ctx)
	o.params = make([]float32, len(m.Params()))
	dev.Download(o.params, m.Params())
	return err
}

// mustRun is run without failures. It checks that all ranks have the same parameters, and returns
// rank 0's outcome.
func (j job) mustRun(t *testing.T) *outcome {
	t.Helper()
	outcomes := j.run(t)
	for rank, o := range outcomes {
		if o.err != nil {
			t.Fatalf("rank %d of %d: %v", rank, j.ranks, o.err)
		}
		if !slices.Equal(o.params, outcomes[0].params) {
			t.Fatalf("rank %d of %d has other parameters than rank 0", rank, j.ranks)
		}
	}
	return outcomes[0]
}

func (o *outcome) losses() []float64 {
	losses := make([]float64, len(o.steps))
	for i, s := range o.steps {
		losses[i] = s.Loss
	}
	return losses
}

var errTest = errors.New("it broke")

// byNorm clips by norm, and byValue by value.
func byNorm(limit float64, scope optim.ClipScope) optim.Clip {
	return optim.Clip{Limit: limit, By: optim.ByNorm, Scope: scope}
}

func byValue(limit float64, scope optim.ClipScope) optim.Clip {
	return optim.Clip{Limit: limit, By: optim.ByValue, Scope: scope}
}
