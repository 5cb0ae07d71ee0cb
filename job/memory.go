package job

import (
	"fmt"
	"math/bits"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// Estimate is the memory of a worker on a CPU, in bytes.
type Estimate struct {
	Model   int64 // parameters, their gradients and the optimizers' slots
	Work    int64 // activations, and the workspaces of the device's kernels
	Copies  int64 // initial weights, lanes' states, snapshots that wait to be written
	Data    int64 // data that a worker does not read from disk when it needs them
	Runtime int64 // the program, its threads and its connections
	// Recovery is the additional memory of a worker that goes on after others were lost: a snapshot
	// that it reads, or the segments that it computes again for lanes whose states are lost.
	Recovery int64
}

// Steady returns the memory of a worker while no other is lost.
func (e Estimate) Steady() int64 { return e.Model + e.Work + e.Copies + e.Data + e.Runtime }

// Total returns the largest memory that a worker may need.
func (e Estimate) Total() int64 { return e.Steady() + e.Recovery }

const (
	// runtimeBytes is the memory of a worker with a tiny model.
	runtimeBytes = 88 << 20
	// spareShare is the inverse of the share that the allocators add.
	spareShare = 16
	// tokenBytes is the memory of a token of the vocabulary: its text and its place in a table.
	tokenBytes = 256
	// sampledBytes is the memory, for each token of the vocabulary, to choose one.
	sampledBytes = 16
	// manyThreads is the assumed number for --threads 0, which only the worker's machine knows.
	manyThreads = 16
)

// Memory estimates the memory of each of a job's workers, which share the lanes. Tokens are read
// from disk and do not count. If workers are lost, the others have more lanes: then Memory of the
// remaining number holds.
func Memory(spec *rondov1.JobSpec, data Extent, workers int) (Estimate, error) {
	if workers < 1 || int64(workers) > spec.Batch {
		return Estimate{}, fmt.Errorf("%d workers cannot share %d lanes (--batch)", workers,
			spec.Batch)
	}
	s, err := sizesOf(spec, data)
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
		Copies:   s.parameters + 3*s.states, // two states of each lane, and one for a save
		Data:     s.network.data,
		Runtime:  runtimeBytes + tokenBytes*int64(data.Tokens),
		Recovery: max(s.snapshot, evaluation.Total()),
	}
	if spec.Compress != "none" || spec.ErrorFeedback {
		e.Copies += 2 * s.parameters // withheld numbers after the last step and after this one
	}
	if way, err := jobspec.ParseCompress(spec.Compress); err == nil && way.TopK > 0 &&
		summedJob(spec, 0).RankMomentum().On() {
		e.Copies += 2 * s.parameters // the same for the worker's momentum: see sum.Job
	}
	if spec.ShardOptimizer && workers > 1 {
		e.Copies += s.slots * s.parameters // gathered for a checkpoint or another ring
	}
	if jobspec.KeepsModel(spec) {
		e.Copies += 2 * s.snapshot // one is written, one waits
	}
	if spec.SampleTokens > 0 {
		e.Copies += sampledBytes * int64(data.Tokens)
	}
	e.Runtime += e.Steady() / spareShare
	return e, nil
}

// sizes holds the sizes of a job's tensors in host memory, in bytes.
type sizes struct {
	spec       *rondov1.JobSpec
	network    Network
	precision  compute.Precision
	parameters int64
	states     int64 // of all lanes
	snapshot   int64 // parameters, slots and states
	// Values that a worker keeps for each parameter beside its gradient: the optimizers' slots,
	// which are saved, and copies for the length of a round (--sync-every).
	slots, copies int64
}

func sizesOf(spec *rondov1.JobSpec, data Extent) (s sizes, err error) {
	s.spec = spec
	if s.network, err = NetworkOf(spec, data); err != nil {
		return s, err
	}
	if s.precision, err = compute.ParsePrecision(spec.Precision); err != nil {
		return s, err
	}
	rule, err := rule(spec)
	if err != nil {
		return s, err
	}
	outer, rounds := local(spec).Kept(rule)
	s.slots, s.copies = int64(rule.Slots()+outer), int64(rounds)
	if spec.Average != "none" {
		s.slots++
	}
	s.parameters = 4 * int64(model.Span(s.network.Tensors))
	s.states = 4 * spec.Batch * int64(s.network.StateSize)
	s.snapshot = s.parameters*(1+s.slots) + s.states
	return s, nil
}

// onDevice returns a worker's memory on a device: kept for the model with its gradients and slots,
// and work for its passes. Of work, evaluation is the evaluation's part if the job has one.
func (s sizes) onDevice(on compute.Sizer, lanes, workers int) (kept int64,
	work, evaluation compute.Size) {
	tensor := func(bytes int64) int64 { return on.TensorSize(int(bytes / 4)).Own }
	spec := s.spec
	together, beside := passes(spec, int64(lanes))
	all := tensor(s.parameters)
	kept = all*(1+s.copies+beside) + tensor(s.parameters+4*train.Tail)
	if n := jobspec.ShardCopies(spec); n == 0 || s.slots == 0 || workers == 1 {
		kept += all * s.slots
	} else { // the own part; with two copies also another's, and its gradients of the last step
		kept += n * tensor(s.parameters/int64(workers)) * (s.slots + n - 1)
	}
	work, evaluation = s.network.size(on, int(together))
	return kept, work, evaluation
}

// passes returns the number of lanes that a worker computes together, out of its lanes, and the
// number of gradients that wait beside the current one.
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
