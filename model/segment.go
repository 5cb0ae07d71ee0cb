package model

import (
	"fmt"
	"unsafe"

	"rondo/compute"
)

// Segment is a model's training graph for T steps of B lanes, with the lanes' state. All segments
// of a model share its parameters and gradients.
//
// With Config.Recompute K the graph has K steps. A run first advances the state over the T steps
// and keeps every K-th state. Then it runs the graph on each chunk of K steps, from the last to the
// first, starting from the kept state, and passes the gradient of the state to the chunk before.
// The gradients are those of the whole segment (Chen et al. 2016, arXiv:1604.06174; Gruslys et al.
// 2016, arXiv:1606.03401). This holds activations of K steps and T/K states. The weights'
// gradients, except an untied embedding's, need a second buffer to be summed over the chunks. The
// recurrent layers' forward pass runs twice. If K does not divide T, a second, smaller graph adds
// its kernels' memory.
type Segment struct {
	model *Model
	T, B  int

	memory     *stackMemory
	chunk      *graph    // graph of K steps
	rest       *graph    // graph of the remaining steps, or nil
	chunkGrads []float32 // gradients of one chunk, to add to the model's; nil: there is one chunk
	added      int       // prefix of chunkGrads that was added
	states     []state   // states before each chunk, and after the last
	// dstates[i%2] is the gradient of states[i] while chunk i runs backward. It is empty if there
	// is one chunk.
	dstates [2]state

	recordings recordings
	swapped    bool // the first and the last of states are swapped, as after every run
	staged     []compute.Staged
	loss       compute.Loss // loss of the run

	stager      compute.Stager // the device, if it is a compute.Stager
	host        []float32      // [L, States, B, H]: host copy of a state; a stager's AllocHost
	hostCurrent bool           // host holds the first of states

	evaluator *Evaluator
}

// SegmentInput is the input of one run.
type SegmentInput struct {
	Inputs  []int32 // [T, B]: token ids
	Targets []int32 // [T, B]: the token after each; -1 does not count
	// Scale multiplies the loss before differentiation: 1/(G*T) for the mean over G lanes, of which
	// this segment may have a part.
	Scale float32
	// OnlySegments: only the model's segments have written to its gradients since it was made, or
	// since they were last zeroed. Scaling, clipping and zeroing do not count. Then a run zeroes
	// only the rows of an embedding's gradient that earlier runs have written. A device that
	// records zeroes all of them, because a recording is the same each time.
	OnlySegments bool
	// Step, Lanes (each lane's number in the global batch, [B]) and the model's seed determine the
	// dropout masks. They may be omitted without dropout.
	Step  int64
	Lanes []int
	Hooks
}

// Hooks are what a run does with its gradients and its loss on the way. The zero value is none.
type Hooks struct {
	// Stage, if set, is host memory of a compute.Stager, as long as Gradients. The gradients are
	// copied to it during the backward pass. Staged returns the copies.
	Stage []float32
	// Finished, if set, is called from the same goroutine during the backward pass, when the
	// gradients up to end are final. Others may then read and write them concurrently. The ends are
	// those of Finishes; the last is the whole gradient. The device must complete its work before
	// its calls return, so it may be no Recorder and no Stager, and Behind must be nil.
	Finished func(end int)
	// BeforeBackward, if set, is called once, when the first loss is known and no backward pass has
	// begun. Its error ends the run and leaves the state unchanged.
	BeforeBackward func() error
	// Behind, if set, is called when the whole backward pass is queued, before anything waits for
	// the loss. The work on the gradients that it queues is done before the run returns, and before
	// they are staged. It is recorded with the run of a Segment, so all runs of one that have
	// a Behind must have the same one, and it must not read anything back.
	Behind func(loss *compute.Loss)
}

// NewSegment builds the graph for T steps of B lanes, with a zero state. It fails if the device
// lacks memory. Close frees the segment.
func (m *Model) NewSegment(T, B int) (*Segment, error) {
	if T < 1 || B < 1 {
		return nil, fmt.Errorf("model: a segment of %d steps and %d lanes; each must be at least 1",
			T, B)
	}
	s := &Segment{model: m, T: T, B: B, recordings: newRecordings(m),
		memory: &stackMemory{activations: activations{dev: m.dev}}}
	if err := s.build(m.config.chunk(T)); err != nil {
		s.Close()
		return nil, fmt.Errorf("model: a segment of %d steps and %d lanes of %s: %w", T, B,
			m.config.shape(), err)
	}
	return s, nil
}

// build allocates the segment's parts, with chunks of k steps. On an error the segment keeps what
// was allocated before it.
func (s *Segment) build(k int) (err error) {
	defer compute.Catch(&err)
	m, T, B := s.model, s.T, s.B
	var ok bool
	if s.stager, ok = m.dev.(compute.Stager); ok {
		s.host = s.stager.AllocHost(B * m.config.StateSize())
	} else {
		s.host = make([]float32, B*m.config.StateSize())
	}
	s.memory.activations.allocate(m.config, m.dev.Alloc, k, B)
	grads := m.grads
	if k < T {
		s.chunkGrads = m.dev.Alloc(m.config.chunkGradients())
		grads = s.chunkGrads
		for i := range s.dstates {
			s.dstates[i] = newState(m, B)
		}
	}
	for range (T+k-1)/k + 1 {
		s.states = append(s.states, newState(m, B))
	}
	if s.chunk, err = newGraph(m, k, B, s.memory, grads); err == nil && T%k > 0 {
		s.rest, err = newGraph(m, T%k, B, s.memory, grads)
	}
	return err
}

// chunk is the number of steps of a segment of T whose activations are held at a time.
func (c Config) chunk(T int) int {
	if c.Recompute == 0 {
		return T
	}
	return min(c.Recompute, T)
}

// chunkGradients returns the number of gradients that each chunk computes anew: all but an
// embedding's, whose rows the chunks add to, unless the output layer writes them too.
func (c Config) chunkGradients() int {
	if c.Embed > 0 && !c.TieWeights {
		return find(Layout(c), embeddingWeight).Offset
	}
	return Span(Layout(c))
}

// Run runs the graph once: it overwrites the model's gradients with those of Scale times the summed
// cross-entropy, advances the state, and returns the unscaled sum in nats. A loss that is not
// finite is no error. Run fails on input that does not fit the segment.
func (s *Segment) Run(in SegmentInput) (lossSum float64, err error) {
	if err := s.check(in); err != nil {
		return 0, err
	}
	defer compute.Catch(&err) // kernels may allocate when they first run
	_, records := s.model.dev.(compute.Recorder)
	s.model.rows.exclusive = in.OnlySegments && !records
	now := setting{scale: in.Scale, stage: unsafe.SliceData(in.Stage), more: in.Behind != nil}
	s.recordings.begin(now, in.BeforeBackward != nil)
	s.hostCurrent = false
	end := len(s.states) - 1
	for i := range end - 1 {
		g := s.load(i, in)
		_, err := s.recordings.do(s.part(i, false), func() (copies, error) {
			g.advance(s.states[i], s.states[i+1])
			return copies{}, nil
		})
		if err != nil {
			return 0, err
		}
	}
	s.loss = compute.Loss{}
	waitState, copied := func() {}, false // wait for the state after the segment in host
	for i := end - 1; i >= 0; i-- {
		if s.loss.Last != nil {
			s.loss.Known = s.loss.Sum()
		}
		g := s.load(i, in)
		s.loss.Last = g.output.kernel
		begun, err := s.recordings.do(s.part(i, true), func() (copies, error) {
			return s.runChunk(i, g, in)
		})
		if begun.state != nil {
			waitState, copied = begun.state, true
		}
		if err != nil {
			waitState()
			return 0, err
		}
		s.staged = begun.gradients
	}
	lossSum = s.loss.Sum()
	waitState() // no further wait: Sum has waited for the same work
	s.states[0], s.states[end] = s.states[end], s.states[0]
	s.swapped, s.hostCurrent = !s.swapped, copied
	s.recordings.end(now)
	return lossSum, nil
}

// part identifies chunk i's work in a run.
func (s *Segment) part(i int, both bool) part {
	outer := i == 0 || i == len(s.states)-2 // it uses the state before or after the segment
	return part{chunk: i, both: both, swapped: s.swapped && outer}
}

// load loads chunk i's part of in into its graph.
func (s *Segment) load(i int, in SegmentInput) *graph {
	g := s.chunk
	if s.rest != nil && i == len(s.states)-2 {
		g = s.rest
	}
	g.load(in, i*s.chunk.T)
	return g
}

// runChunk runs both passes over chunk i, which g has loaded. Chunks run from the last to the
// first. The last chunk queues the copy of the state behind its loss. The first chunk, which runs
// last, calls Behind and stages what is not staged yet.
func (s *Segment) runChunk(i int, g *graph, in SegmentInput) (begun copies, err error) {
	last := i == len(s.states)-2
	var dafter, dbefore state
	var between func() error
	if last {
		between = in.BeforeBackward
	} else {
		dafter = s.dstates[(i+1)%2]
	}
	if i > 0 {
		dbefore = s.dstates[i%2]
	}
	if g.embedding != nil {
		g.embedding.adds = !last
	}
	stage := func(end int) {
		begun.gradients = append(begun.gradients, s.model.stage(in.Stage, begun.gradients, end))
	}
	g.finished = func(gradients int) {
		if last && begun.state == nil && s.stager != nil {
			begun.state = s.stager.StartDownload(s.host, s.states[i+1].flat)
		}
		if in.Stage != nil && s.chunkGrads == nil && in.Behind == nil {
			stage(gradients)
		}
		if i == 0 && in.Finished != nil {
			s.accumulate(gradients, last)
			in.Finished(gradients)
		}
	}
	s.added = 0
	err = g.run(s.states[i], s.states[i+1], dafter, dbefore, between)
	if err != nil {
		return begun, err
	}
	s.accumulate(len(s.chunkGrads), last)
	if i > 0 {
		return begun, nil
	}
	if in.Behind != nil {
		in.Behind(&s.loss)
	}
	if in.Stage != nil && len(begun.gradients) == 0 {
		stage(len(s.model.params))
	}
	return begun, nil
}

// accumulate adds a chunk's gradients up to end to the sum over the chunks. The last chunk, which
// runs first, starts the sum.
func (s *Segment) accumulate(end int, last bool) {
	if end = min(end, len(s.chunkGrads)); end <= s.added {
		return
	}
	sum, part := s.model.grads[s.added:end], s.chunkGrads[s.added:end]
	if last {
		s.model.dev.Zero(sum)
	}
	s.model.dev.Add(sum, part)
	s.added = end
}

// check returns an error for input that does not fit the segment.
func (s *Segment) check(in SegmentInput) error {
	if n := s.T * s.B; len(in.Inputs) != n || len(in.Targets) != n {
		return fmt.Errorf("model: a segment of %d steps and %d lanes takes %d inputs and targets,"+
			" not %d and %d", s.T, s.B, n, len(in.Inputs), len(in.Targets))
	}
	if err := checkLanes(s.model.config, in.Lanes, s.B, true); err != nil {
		return err
	}
	if err := s.model.checkHooks(in.Hooks); err != nil {
		return err
	}
	if err := s.model.checkIDs("input", in.Inputs, 0); err != nil {
		return err
	}
	return s.model.checkIDs("target", in.Targets, -1)
}

// Staged returns the last run's staged gradients, in the order of their copies.
func (s *Segment) Staged() []compute.Staged { return s.staged }

// DropoutKey is the key of a lane's dropout mask after a layer at a step: a chain of SplitMix64
// hashes (Steele, Lea and Flood 2014) over all four values. Layers count from 0; -1 is the
// embedding.
func DropoutKey(seed uint64, step int64, layer, lane int) uint64 {
	key := seed
	for _, x := range [...]uint64{uint64(step), uint64(layer), uint64(lane)} {
		key += (x + 1) * 0x9E3779B97F4A7C15
		key = (key ^ key>>30) * 0xBF58476D1CE4E5B9
		key = (key ^ key>>27) * 0x94D049BB133111EB
		key ^= key >> 31
	}
	return key
}

// ZeroState sets the state of all lanes to zero.
func (s *Segment) ZeroState() {
	s.hostCurrent = false
	s.states[0].zero()
}

// State copies the state after the last run to dst, host memory of B * StateSize floats. The layout
// is lane by lane, [B, L, States, H]: dst[b*StateSize:][:StateSize] is lane b's whole state, and
// may be moved to another lane, segment or machine. With a compute.Stager the run has already
// copied it.
func (s *Segment) State(dst []float32) error {
	if err := s.states[0].check(dst); err != nil {
		return err
	}
	if !s.hostCurrent {
		s.model.dev.Download(s.host, s.states[0].flat)
		s.hostCurrent = true
	}
	s.states[0].toLanes(dst, s.host)
	return nil
}

// SetState sets the state that the next run starts from. src is laid out as in State.
func (s *Segment) SetState(src []float32) error {
	if err := s.states[0].check(src); err != nil {
		return err
	}
	s.states[0].fromLanes(s.host, src)
	s.model.dev.Upload(s.states[0].flat, s.host)
	s.hostCurrent = true
	return nil
}

// Evaluate runs the forward pass, without dropout, on T steps of B lanes: see Evaluator.Evaluate.
// It has its own state, distinct from Run's.
func (s *Segment) Evaluate(inputs, targets []int32) (lossSum float64, count int, err error) {
	if s.evaluator == nil {
		if s.evaluator, err = s.model.NewEvaluator(s.T, s.B); err != nil {
			return 0, 0, err
		}
	}
	return s.evaluator.Evaluate(inputs, targets)
}

// ZeroEvaluationState starts the next Evaluate from a zero state.
func (s *Segment) ZeroEvaluationState() {
	if s.evaluator != nil {
		s.evaluator.ZeroState()
	}
}

// Close frees the segment's memory, not the model's.
func (s *Segment) Close() {
	s.recordings.close()
	for _, g := range []*graph{s.chunk, s.rest} {
		if g != nil {
			g.close()
		}
	}
	s.memory.close()
	s.model.dev.Free(s.chunkGrads)
	for i := range s.states {
		s.states[i].close()
	}
	for i := range s.dstates {
		s.dstates[i].close()
	}
	if s.evaluator != nil {
		s.evaluator.Close()
	}
	if s.stager != nil && s.host != nil {
		s.stager.FreeHost(s.host)
	}
	s.chunk, s.rest, s.chunkGrads, s.states, s.evaluator = nil, nil, nil, nil, nil
	s.stager, s.host = nil, nil
}
