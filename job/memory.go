package job

import (
	"fmt"
	"math/bits"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/train"
)

// Estimate is how much memory a worker on a CPU takes, in bytes.
type Estimate struct {
	Model   int64 // parameters, their gradients, and what the optimizers keep of each
	Work    int64 // activations, and the workspaces of the device's kernels
	Copies  int64 // initial weights, lanes' states, snapshots that wait to be stored
	Runtime int64 // the program, its threads and its connections
	// Recovery is what only a worker takes that goes on after others have gone: a snapshot that is
	// read, or the segments that are computed again for lanes that nobody knows.
	Recovery int64
}

// Steady is what a worker takes as long as nobody is lost.
func (e Estimate) Steady() int64 { return e.Model + e.Work + e.Copies + e.Runtime }

// Total is what a worker may come to.
func (e Estimate) Total() int64 { return e.Steady() + e.Recovery }

const (
	// runtimeBytes is what a worker takes whose model is next to nothing.
	runtimeBytes = 80 << 20
	// spareShare of the whole is for what the allocators keep beside it.
	spareShare = 16
	// tokenBytes is what the vocabulary takes for a token: its text and its place in a table.
	tokenBytes = 256
	// sampledBytes is what choosing a token takes for each of the vocabulary.
	sampledBytes = 16
	// labelsAssumed is how many labels a task is taken to have.
	labelsAssumed = 256
	// manyThreads stands for --threads 0: how many there are is not known before a worker runs.
	manyThreads = 16
)

// Memory estimates what each worker takes of a job whose vocabulary has so many tokens, where so
// many workers share the lanes. The corpus itself is read from disk. Workers that go on without
// others have more lanes each: what they then take is Memory for as few.
func Memory(spec *rondov1.JobSpec, vocabulary, workers int) (Estimate, error) {
	if workers < 1 || int64(workers) > spec.Batch {
		return Estimate{}, fmt.Errorf("%d workers cannot share %d lanes (--batch)", workers,
			spec.Batch)
	}
	s, err := sizesOf(spec, vocabulary)
	if err != nil {
		return Estimate{}, err
	}
	on := cpu.Config{Threads: manyThreads, Precision: s.precision}
	if spec.Threads > 0 {
		on.Threads = int(spec.Threads)
	}
	kept, work, evaluation := s.onDevice(on, (int(spec.Batch)+workers-1)/workers, workers)
	e := Estimate{
		Model:    kept,
		Work:     work.Total(),
		Copies:   s.parameters + 3*s.states, // the book has two of each lane's state, a save one
		Runtime:  runtimeBytes + tokenBytes*int64(vocabulary),
		Recovery: max(s.snapshot, evaluation.Total()),
	}
	if spec.Compress != "none" || spec.ErrorFeedback {
		e.Copies += 2 * s.parameters // what is withheld after the last step and this one
	}
	if way, err := jobspec.ParseCompress(spec.Compress); err == nil && way.TopK > 0 &&
		momentum(spec).On() {
		e.Copies += 2 * s.parameters // the worker's momentum, likewise: see momentumAfter
	}
	if spec.ShardOptimizer && workers > 1 {
		e.Copies += s.slots * s.parameters // gathered for a checkpoint, or for another ring
	}
	if jobspec.KeepsModel(spec) {
		e.Copies += 2 * s.snapshot // one that is written, and one that waits
	}
	if spec.SampleTokens > 0 {
		e.Copies += sampledBytes * int64(vocabulary)
	}
	e.Runtime += e.Steady() / spareShare
	return e, nil
}

// sizes is what a job's tensors take, in bytes of the host's memory.
type sizes struct {
	spec       *rondov1.JobSpec
	config     model.Config
	labeller   *model.LabellerConfig // of a task with labels; nil: config is the model
	precision  compute.Precision
	parameters int64
	states     int64 // of all lanes
	snapshot   int64 // parameters, slots and states
	// How many values a worker keeps of each parameter beside its gradient: what the optimizers do,
	// which is saved, and copies for as long as a round takes (--sync-every).
	slots, copies int64
}

func sizesOf(spec *rondov1.JobSpec, vocabulary int) (s sizes, err error) {
	s.spec = spec
	if s.config, err = ModelConfig(spec, vocabulary); err != nil {
		return s, err
	}
	if s.precision, err = compute.ParsePrecision(spec.Precision); err != nil {
		return s, err
	}
	rule, err := train.ParseOptimizer(spec.Optimizer)
	if err != nil {
		return s, err
	}
	outer, rounds := local(spec).Kept(rule)
	s.slots, s.copies = int64(rule.Slots()+outer), int64(rounds)
	layout := model.Layout(s.config)
	s.states = 4 * spec.Batch * int64(s.config.StateSize())
	if spec.Task != task.LM {
		labeller, err := LabellerConfig(spec, vocabulary, labelsAssumed)
		if err != nil {
			return s, err
		}
		s.labeller, s.states, layout = &labeller, 0, labeller.Layout()
	}
	s.parameters = 4 * int64(model.Span(layout))
	s.snapshot = s.parameters*(1+s.slots) + s.states
	return s, nil
}

// onDevice is what a worker with so many lanes, one of so many workers, has in a device's memory:
// the model with its gradients and slots, and what passes over the lanes take. An evaluation, which
// is part of that where the job has any, takes so much more.
func (s sizes) onDevice(on compute.Sizer, lanes, workers int) (kept int64,
	work, evaluation compute.Size) {
	tensor := func(bytes int64) int64 { return on.TensorSize(int(bytes / 4)).Own }
	spec, T := s.spec, int(s.spec.Bptt)
	together, beside := passes(spec, int64(lanes))
	all := tensor(s.parameters)
	kept = all*(1+s.copies+beside) + tensor(s.parameters+4*train.Tail)
	if n := jobspec.ShardCopies(spec); n == 0 || s.slots == 0 || workers == 1 {
		kept += all * s.slots
	} else { // a part, and with two copies another's and the gradients from one step to the next
		kept += n * tensor(s.parameters/int64(workers)) * (s.slots + n - 1)
	}
	if s.labeller != nil { // evaluations use the same passes
		return kept, s.labeller.PassSize(on, int(spec.MaxLength), int(together)), compute.Size{}
	}
	work = s.config.SegmentSize(on, T, int(together))
	evaluation = s.config.EvaluatorSize(on, T, int(together))
	if spec.SampleTokens > 0 {
		work = work.And(s.config.GeneratorSize(on))
	}
	if spec.EvalCorpus != "" || spec.ValidationFraction > 0 {
		work = work.And(evaluation)
	}
	return kept, work, evaluation
}

// passes returns how many lanes a worker that has so many computes together, and how many gradients
// wait beside the one that it computes.
func passes(spec *rondov1.JobSpec, lanes int64) (together, gradients int64) {
	if spec.Accumulate > 1 {
		gradients++
	}
	groups := jobspec.LaneGroups(spec)
	if groups == 0 {
		return lanes, gradients
	}
	together = spec.Batch / groups
	own := (lanes + together - 1) / together
	return together, gradients + min(own-1, int64(bits.Len64(uint64(groups))))
}
