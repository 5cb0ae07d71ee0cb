package job

import (
	"fmt"
	"math/bits"

	"rondo/compute"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// Estimate is how much memory a worker on a CPU takes, in bytes.
type Estimate struct {
	Model       int64 // parameters, their gradients, and what the optimizers keep of each
	Activations int64 // what a segment's steps leave for its backward pass
	Kernels     int64 // weights as products read them, logits, and other workspace
	Copies      int64 // initial weights, lanes' states, snapshots that wait to be stored
	Runtime     int64 // the program, its threads and its connections
	// Recovery is what only a worker takes that goes on after others have gone: a snapshot that is
	// read, or the segments that are computed again for lanes that nobody knows.
	Recovery int64
}

// Steady is what a worker takes as long as nobody is lost.
func (e Estimate) Steady() int64 {
	return e.Model + e.Activations + e.Kernels + e.Copies + e.Runtime
}

// Total is what a worker may come to.
func (e Estimate) Total() int64 { return e.Steady() + e.Recovery }

const (
	// runtimeBytes is what a worker takes whose model is next to nothing.
	runtimeBytes = 80 << 20
	// spareShare of the whole is for what the allocators keep beside it.
	spareShare = 16
	// tokenBytes is what the vocabulary takes for a token: its text and its place in a table.
	tokenBytes = 256
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
	config, err := ModelConfig(spec, vocabulary)
	if err != nil {
		return Estimate{}, err
	}
	rule, err := train.ParseOptimizer(spec.Optimizer)
	if err != nil {
		return Estimate{}, err
	}
	lanes, beside := passes(spec, int64((int(spec.Batch)+workers-1)/workers))
	s := sizes{config: config, bf16: spec.Precision == compute.BF16.String(),
		lanes: lanes, steps: spec.Bptt,
		chunk: spec.Bptt, threads: manyThreads}
	if spec.Recompute > 0 {
		s.chunk = min(s.chunk, spec.Recompute)
	}
	if spec.Threads > 0 {
		s.threads = spec.Threads
	}
	parameters := floats(int64(model.Span(model.Layout(config))))
	slots, copies := kept(spec, rule)
	all := floats(spec.Batch * int64(config.StateSize()))
	snapshot := parameters*(1+slots) + all
	e := Estimate{
		Model: block(parameters)*(1+copies+beside) + shards(spec, parameters, slots, workers) +
			block(parameters+floats(train.Tail)),
		Activations: s.activations(),
		Kernels:     s.kernels(parameters),
		Copies:      parameters + 3*all, // the book has two of each lane's state, a save one
		Runtime:     runtimeBytes + tokenBytes*int64(vocabulary),
	}
	if spec.Compress != "none" || spec.ErrorFeedback {
		e.Copies += 2 * parameters // what is withheld: as of the last step, and of the one in hand
	}
	if way, err := jobspec.ParseCompress(spec.Compress); err == nil && way.TopK > 0 &&
		momentum(spec).On() {
		e.Copies += 2 * parameters // the worker's momentum, likewise: see momentumAfter
	}
	if spec.ShardOptimizer && workers > 1 {
		e.Copies += slots * parameters // gathered for a checkpoint, or for another ring
	}
	if jobspec.KeepsModel(spec) {
		e.Copies += 2 * snapshot // one that is written, and one that waits
	}
	if spec.SampleTokens > 0 {
		one := s
		one.lanes, one.chunk = 1, 1
		e.Kernels += one.evaluation() + floats(8*int64(vocabulary))
	}
	evaluation := s.evaluation()
	if spec.EvalCorpus != "" || spec.ValidationFraction > 0 {
		e.Kernels += evaluation
	}
	e.Recovery = max(snapshot, evaluation)
	e.Runtime += e.Steady() / spareShare
	return e, nil
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

// shards is what a worker keeps of the optimizer's slots: all, or its part (--shard-optimizer) and,
// with two copies, that of another and the gradients that lead from one step to the next.
func shards(spec *rondov1.JobSpec, parameters, slots int64, workers int) int64 {
	copies := jobspec.ShardCopies(spec)
	if copies == 0 || slots == 0 || workers == 1 {
		return block(parameters) * slots
	}
	part := block(parameters / int64(workers))
	return copies * part * (slots + copies - 1)
}

// kept is how many values a worker keeps of each parameter beside its gradient: what the optimizers
// do, which is saved, and copies for as long as a round takes (--sync-every).
func kept(spec *rondov1.JobSpec, rule compute.Optimizer) (slots, copies int64) {
	outer, rounds := local(spec).Kept(rule)
	return int64(rule.Slots() + outer), int64(rounds)
}

// sizes is the shape of a worker's segments.
type sizes struct {
	config              model.Config
	bf16                bool
	lanes, steps, chunk int64 // a segment's, and how many steps have activations at a time
	threads             int64
}

const (
	blockColumns = 32 // of which the kernels' tensors are made
	stripBlocks  = 8  // of the vocabulary, that the output layer has packed at a time
	tileRows     = 512
	largePage    = 2 << 20
	gemmBytes    = 4 << 20   // of packed operands in a general product
	threadBytes  = 512 << 10 // of a thread's own part of a layer's workspaces
	maxLogits    = 1 << 24   // that the output layer keeps
	leastLogits  = 256       // rows: with fewer it keeps none
)

func floats(n int64) int64 { return 4 * n }

// block is what an allocation takes: large ones take whole large pages.
func block(bytes int64) int64 {
	if bytes < largePage/2 {
		return bytes
	}
	return upTo(bytes, largePage)
}

func upTo(n, multiple int64) int64 { return (n + multiple - 1) / multiple * multiple }

// operand is the size of what products read.
func (s sizes) operand() int64 {
	if s.bf16 {
		return 2
	}
	return 4
}

// activations are what the layers put out, the gradient on its way down, and the states that are
// kept within a segment.
func (s sizes) activations() int64 {
	c := s.config
	embed, hidden, layers := int64(c.Embed), int64(c.Hidden), int64(c.Layers)
	rows := s.chunk * s.lanes
	bytes := block(floats(rows*embed)) + layers*block(floats(rows*hidden))
	if c.TieWeights && embed != hidden {
		bytes += block(floats(rows * embed)) // the projection's
	}
	gradients := 1 + count(embed > 0 || layers > 1)
	bytes += gradients * block(floats(rows*max(embed, hidden)))
	kept := (s.steps+s.chunk-1)/s.chunk + 3
	return bytes + (kept+2)*block(floats(s.lanes*int64(c.StateSize())))
}

// kernels are the workspaces of a segment's graph, and of a second one for the steps that are left
// over where they are computed in chunks.
func (s sizes) kernels(parameters int64) int64 {
	bytes := s.graph(s.chunk, false) + gemmBytes + s.threads*threadBytes
	if s.chunk < s.steps {
		bytes += block(parameters) // a chunk's gradients, to be added up
		if rest := s.steps % s.chunk; rest > 0 {
			bytes += s.graph(rest, false)
		}
	}
	return bytes
}

// evaluation is the memory of a forward pass beside a segment's.
func (s sizes) evaluation() int64 {
	c := s.config
	rows := floats(s.chunk * s.lanes * int64(max(c.Embed, c.Hidden)))
	return s.graph(s.chunk, true) + 2*block(rows) + block(floats(s.lanes*int64(c.StateSize())))
}

func (s sizes) graph(steps int64, inference bool) (bytes int64) {
	width := int64(s.config.Embed)
	for k := range s.config.Layers {
		if k > 0 {
			width = int64(s.config.Hidden)
		}
		bytes += block(s.layer(steps, width, inference))
	}
	return bytes + block(s.output(steps*s.lanes))
}

// layer is the workspace of a recurrent layer, whose input has so many columns; 0: token ids.
func (s sizes) layer(steps, width int64, inference bool) int64 {
	hidden := upTo(int64(s.config.Hidden), blockColumns)
	gates := int64(s.config.Cell.Gates())
	// Of a step of a lane, so many rows of hidden floats: gates, states and what else is kept.
	tensors := gates + int64(s.config.Cell.States()+s.config.Cell.Kept())
	rows := (max(steps, 2) + 1) * upTo(s.lanes, 2) // and one for the state before
	spread := rows + blockColumns
	bytes := floats(hidden * spread * tensors)
	if s.bf16 { // operands beside the floats, as rows and as pairs
		bytes += 2 * hidden * (spread + blockColumns) * 2 * tensors
	}
	weights := gates * hidden * hidden * s.operand()
	input := floats(gates * hidden * min(int64(s.config.Vocab), steps*s.lanes))
	if width > 0 {
		columns := upTo(width, blockColumns)
		input = gates*hidden*columns*s.operand() + s.operand()*columns*spread
		if s.bf16 {
			input += 2 * columns * (spread + blockColumns)
		}
		if !inference {
			input += gates * hidden * columns * s.operand()
		}
	}
	if inference {
		return bytes + weights + input
	}
	own := floats(hidden * (2*s.lanes + (s.lanes+15)/16*(gates+1)))
	own += floats(s.threads * max(s.lanes, tileRows) * blockColumns)
	return bytes + 2*weights + input + own
}

// output is the workspace of the output layer for so many rows.
func (s sizes) output(rows int64) int64 {
	width, vocabulary := int64(s.config.Hidden), int64(s.config.Vocab)
	if s.config.TieWeights {
		width = int64(s.config.Embed)
	}
	width = upTo(width, blockColumns)
	columns := upTo(vocabulary, blockColumns)
	strip := min(columns, stripBlocks*blockColumns)
	most, kept := maxLogits/vocabulary, columns
	switch {
	case rows <= most:
	case most < leastLogits: // none are kept
		kept = 0
	default:
		chunks := (rows + most - 1) / most
		rows = (rows + chunks - 1) / chunks
	}
	rows = upTo(rows, blockColumns) + blockColumns
	bytes := 3*strip*width*s.operand() + (width+strip)*rows*s.operand()
	if s.bf16 {
		bytes += 2 * (width + strip) * rows
	}
	bytes += floats(rows * (kept + strip/16 + kept/strip + 8))
	if columns > strip {
		bytes += floats(rows * width) // a gradient that strips add to
	}
	return bytes + s.threads*floats(strip*128)
}

func count(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
