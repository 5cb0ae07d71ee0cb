package model

import (
	"fmt"
	"unsafe"

	"rondo/compute"
)

// Segment is the training graph of a model for T steps of B lanes, and the state of those lanes.
// Segments of other shapes share the model's parameters and gradients.
//
// With Config.Recompute K, the graph is of K steps. A run first carries the state over the T steps
// and keeps it at every K-th; then, from the last K steps to the first, the graph runs with the
// state that was kept, and hands the gradient of the state to the steps before: the gradients
// are those of the whole segment (Chen et al. 2016, arXiv:1604.06174; Gruslys et al. 2016,
// arXiv:1606.03401). Activations then take K steps, and T/K states; the weights' gradients, but an
// untied embedding's, are summed over the chunks from a second place as large. Each step's
// recurrent layers are computed forward twice. When K does not divide T, the kernels of a
// second, smaller graph come on top.
type Segment struct {
	model *Model
	T, B  int

	memory *activations
	chunk  *graph    // of K steps
	rest   *graph    // of the last steps, when they are fewer; or nil
	partly []float32 // where a chunk's gradients go, to be added up; nil when there is one chunk
	added  int       // how many of a chunk's have been
	states []state   // before each chunk, and after the last
	// dstates[i%2] is the gradient of states[i], while chunk i's gradient is computed; of one
	// chunk, there are none.
	dstates [2]state

	recordings recordings
	turned     bool // the first and the last of states have changed places, as in every run
	staged     []compute.Staged
	loss       compute.Loss // of the run

	stager compute.Stager // the device, where it is one, or nil
	host   []float32      // [L, States, B, H]: a state on its way; AllocHost's of a stager
	held   bool           // the first of states is in host

	evaluator *Evaluator
}

// SegmentInput is what one step reads.
type SegmentInput struct {
	Inputs  []int32 // [T, B]: token ids
	Targets []int32 // [T, B]: the token after each; one that is -1 does not count
	// Scale multiplies the loss before it is differentiated: 1/(G*T) for the mean over G lanes,
	// of which this segment may have a part.
	Scale float32
	// OnlySegments says that since the model was made, or its gradients were last zeroed, only its
	// segments have written to them; scaling, limiting and zeroing do not count. Then only those
	// rows of an embedding's gradient are zeroed that the runs before have written, unless the
	// device records: a recording zeroes the same each time.
	OnlySegments bool
	// Step and Lanes (each lane's number in the global batch, [B]) determine dropout masks with
	// the model's seed. Without dropout they may be left out.
	Step  int64
	Lanes []int
	// Stage, if set, is host memory of the device, a compute.Stager, as long as Gradients: they are
	// copied to it while the backward pass goes on. Staged says how far that is.
	Stage []float32
	// Finished, if set, is called from the goroutine of Run whenever the gradients up to end are
	// what the run leaves them as, while the backward pass goes on: they may then be read and
	// written by others, beside it. The ends are among those of Finishes; the last is all of the
	// gradients. The device's work must be done when its calls return, so that it is no Recorder
	// and no Stager, and there is nothing Behind.
	Finished func(end int)
	// BeforeBackward, if set, is called once, when the first loss is known and no backward pass has
	// begun. Its error ends the run, which then leaves the state as it was.
	BeforeBackward func() error
	// Behind, if set, is called when all of the backward pass has been asked for, and the loss has
	// not been waited for: what it asks the device to do with the gradients is done before Run
	// returns, and before they are staged. Where runs are recorded, so is that: the runs of a
	// segment that have it are to have the same one, which reads nothing back.
	Behind func(loss *compute.Loss)
}

// NewSegment builds the graph for T steps of B lanes, with a state of zeros. It fails if the device
// has no memory for it. Close frees it.
func (m *Model) NewSegment(T, B int) (*Segment, error) {
	if T < 1 || B < 1 {
		return nil, fmt.Errorf("model: a segment of %d steps and %d lanes; each must be at least 1",
			T, B)
	}
	s := &Segment{model: m, T: T, B: B, memory: &activations{dev: m.dev},
		recordings: newRecordings(m)}
	if err := s.build(m.config.chunk(T)); err != nil {
		s.Close()
		return nil, fmt.Errorf("model: a segment of %d steps and %d lanes of %s: %w", T, B,
			m.config.shape(), err)
	}
	return s, nil
}

// build makes all that a segment has, in chunks of k steps. Of what fails, all is there so far.
func (s *Segment) build(k int) (err error) {
	defer compute.Catch(&err)
	m, T, B := s.model, s.T, s.B
	var ok bool
	if s.stager, ok = m.dev.(compute.Stager); ok {
		s.host = s.stager.AllocHost(B * m.config.StateSize())
	} else {
		s.host = make([]float32, B*m.config.StateSize())
	}
	s.memory.allocate(m.config, m.dev.Alloc, k, B)
	grads := m.grads
	if k < T {
		s.partly = m.dev.Alloc(m.config.summed())
		grads = s.partly
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

// chunk is how many steps of a segment of T have activations at a time.
func (c Config) chunk(T int) int {
	if c.Recompute == 0 {
		return T
	}
	return min(c.Recompute, T)
}

// summed is how many of the gradients come from each chunk anew: all but an embedding's, whose
// rows the chunks add to, unless the output layer writes them too.
func (c Config) summed() int {
	if c.Embed > 0 && !c.TieWeights {
		return find(Layout(c), embeddingWeight).Offset
	}
	return Span(Layout(c))
}

// Run runs the graph once: it overwrites the model's gradients with those of Scale times the
// summed cross-entropy, carries the state on, and returns the sum, not scaled, in nats. A loss
// that is not finite is returned as it is. It fails on input that does not fit the segment.
func (s *Segment) Run(in SegmentInput) (lossSum float64, err error) {
	if err := s.check(in); err != nil {
		return 0, err
	}
	defer compute.Catch(&err) // kernels may make room when they first run
	_, records := s.model.dev.(compute.Recorder)
	s.model.rows.alone = in.OnlySegments && !records
	now := setting{scale: in.Scale, stage: unsafe.SliceData(in.Stage), more: in.Behind != nil}
	s.recordings.begin(now, in.BeforeBackward != nil)
	s.held = false
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
	arrive, brought := func() {}, false // the state after the segment in host
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
			arrive, brought = begun.state, true
		}
		if err != nil {
			arrive()
			return 0, err
		}
		s.staged = begun.gradients
	}
	lossSum = s.loss.Sum()
	arrive() // there is nothing left to wait for but what Sum has waited for
	s.states[0], s.states[end] = s.states[end], s.states[0]
	s.turned, s.held = !s.turned, brought
	s.recordings.end(now)
	return lossSum, nil
}

// part names chunk i's share of a run.
func (s *Segment) part(i int, both bool) part {
	outer := i == 0 || i == len(s.states)-2 // it touches the state before or after the segment
	return part{chunk: i, both: both, turned: s.turned && outer}
}

// load has the graph of chunk i read its part of in.
func (s *Segment) load(i int, in SegmentInput) *graph {
	g := s.chunk
	if s.rest != nil && i == len(s.states)-2 {
		g = s.rest
	}
	g.load(in, i*s.chunk.T)
	return g
}

// runChunk runs both passes over chunk i, which g has loaded, after those of the chunks behind it.
// The last, which is the first to run, has the state copied behind its loss; behind the first comes
// what the input wants behind it, and the gradients are staged.
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
		if in.Stage != nil && s.partly == nil && in.Behind == nil {
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
	s.accumulate(len(s.partly), last)
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

// accumulate adds a chunk's gradients up to end to the sum over the chunks, which begins with the
// last of them.
func (s *Segment) accumulate(end int, last bool) {
	if end = min(end, len(s.partly)); end <= s.added {
		return
	}
	sum, part := s.model.grads[s.added:end], s.partly[s.added:end]
	if last {
		s.model.dev.Zero(sum)
	}
	s.model.dev.Add(sum, part)
	s.added = end
}

// check says what does not fit in in.
func (s *Segment) check(in SegmentInput) error {
	if n := s.T * s.B; len(in.Inputs) != n || len(in.Targets) != n {
		return fmt.Errorf("model: a segment of %d steps and %d lanes takes %d inputs and targets,"+
			" not %d and %d", s.T, s.B, n, len(in.Inputs), len(in.Targets))
	}
	if len(s.chunk.dropouts) > 0 && len(in.Lanes) != s.B {
		return fmt.Errorf("model: a segment of %d lanes was given the numbers of %d",
			s.B, len(in.Lanes))
	}
	if _, ok := s.model.dev.(compute.Stager); in.Stage != nil && !(ok &&
		len(in.Stage) == len(s.model.params)) {
		return fmt.Errorf("model: %d gradients cannot be staged in %d floats by %s",
			len(s.model.params), len(in.Stage), s.model.dev.Name())
	}
	if in.Finished != nil && (s.recordings.dev != nil || s.stager != nil || in.Behind != nil) {
		return fmt.Errorf("model: nobody can be told while %s computes that gradients are finished",
			s.model.dev.Name())
	}
	if err := s.model.checkIDs("input", in.Inputs, 0); err != nil {
		return err
	}
	return s.model.checkIDs("target", in.Targets, -1)
}

// Staged are the parts of the last run's gradients, in the order in which they come.
func (s *Segment) Staged() []compute.Staged { return s.staged }

// stage begins to copy the gradients up to end to host memory, after those that are on their way.
func (m *Model) stage(host []float32, before []compute.Staged, end int) compute.Staged {
	first := 0
	if n := len(before); n > 0 {
		first = before[n-1].End
	}
	return compute.Staged{End: end,
		Wait: m.dev.(compute.Stager).StartDownload(host[first:end], m.grads[first:end])}
}

// DropoutKey is the key of a lane's dropout mask after a layer at a step: a chain of SplitMix64
// hashes (Steele, Lea and Flood 2014) over all four. The first layer is 0; -1 is the embedding.
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
	s.held = false
	s.states[0].zero()
}

// State copies the state after the last run to dst, host memory of B * StateSize floats: lane by
// lane [B, L, States, H], so that dst[b*StateSize:][:StateSize] is all that lane b carries and
// may be moved to another lane, segment or machine. Of a compute.Stager, a run has brought it.
func (s *Segment) State(dst []float32) error {
	if err := s.states[0].check(dst); err != nil {
		return err
	}
	if !s.held {
		s.model.dev.Download(s.host, s.states[0].flat)
		s.held = true
	}
	s.states[0].toLanes(dst, s.host)
	return nil
}

// SetState sets the state that the next run starts from; src is laid out as in State.
func (s *Segment) SetState(src []float32) error {
	if err := s.states[0].check(src); err != nil {
		return err
	}
	s.states[0].fromLanes(s.host, src)
	s.model.dev.Upload(s.states[0].flat, s.host)
	s.held = true
	return nil
}

// Evaluate runs the forward pass alone, without dropout, on T steps of B lanes: see
// Evaluator.Evaluate. Its state is its own, not the one that Run carries.
func (s *Segment) Evaluate(inputs, targets []int32) (lossSum float64, count int, err error) {
	if s.evaluator == nil {
		if s.evaluator, err = s.model.NewEvaluator(s.T, s.B); err != nil {
			return 0, 0, err
		}
	}
	return s.evaluator.Evaluate(inputs, targets)
}

// ZeroEvaluationState makes the next Evaluate start from a state of zeros.
func (s *Segment) ZeroEvaluationState() {
	if s.evaluator != nil {
		s.evaluator.ZeroState()
	}
}

// Close frees the segment's memory; the model stays.
func (s *Segment) Close() {
	s.recordings.close()
	for _, g := range []*graph{s.chunk, s.rest} {
		if g != nil {
			g.close()
		}
	}
	s.memory.close()
	s.model.dev.Free(s.partly)
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
	s.chunk, s.rest, s.partly, s.states, s.evaluator = nil, nil, nil, nil, nil
	s.stager, s.host = nil, nil
}
