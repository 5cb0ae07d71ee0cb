package train

import (
	"context"
	"math"
	"time"
)

// verdictFloats are what each rank says of the sum of its range: its sum of squares, as four whole
// numbers of 16 bits, and whether the rank's own loss or gradient is not finite.
const verdictFloats = 5

// shardedSum is the Sum of ranks that share out the optimizer: before the tail they exchange their
// updates. It leaves the parameters after the step in the gradient's place, on all ranks.
type shardedSum struct {
	noSum
	t    *batch
	ring Scatterer
	step int64 // from 1
}

// Begin implements Sum.
func (x *shardedSum) Begin(_ context.Context, step int64, _ float64) (met bool, err error) {
	x.step = step
	return false, nil
}

// Stage implements Sum.
func (x *shardedSum) Stage() []float32 { return x.t.exchange.gradient.Stage() }

// Load implements Sum.
func (x *shardedSum) Load(ctx context.Context) { x.t.exchange.gradient.Download(ctx, nil) }

// Finish implements Sum.
func (x *shardedSum) Finish(ctx context.Context, out, in []float32) error {
	return x.ring.AllReduceCarry(ctx, x.t.exchange.gradient.Behind(), out, in)
}

// Sum implements Sum.
func (x *shardedSum) Sum(ctx context.Context) (busy time.Duration, err error) {
	t, s, gradient := x.t, x.t.shards, x.t.exchange.gradient
	s.next = version{}
	wire := gradient.Gradient()
	if err := x.ring.ReduceScatter(ctx, wire, s.ends); err != nil {
		return 0, err
	}
	h := &s.held[0]
	g := t.grads[h.first:h.end]
	if !gradient.InPlace {
		t.dev.Upload(g, wire[h.first:h.end])
	}
	nonfinite, err := x.verdict(ctx, g)
	if err != nil {
		return 0, err
	}
	s.rule, s.skipped = t.next, nonfinite || !isFinite(s.norm)
	if s.skipped {
		s.next = version{Step: x.step, Ring: t.ring.Generation}
		t.dev.Zero(t.grads) // in whose padding may be anything, which no gradient overwrites
		return 0, nil
	}
	if err := t.at(ctx, PhaseUpdate, x.step); err != nil {
		return 0, err
	}
	began := t.cfg.Now()
	t.updateShard(x.step, h, g)
	if !gradient.InPlace {
		t.dev.Download(wire[h.first:h.end], g)
	}
	busy = t.cfg.Now().Sub(began)
	t.laps.end("update of the own range")
	return busy, x.ring.AllGather(ctx, wire, s.ends)
}

// verdict has the ranks tell each other of the sums of their ranges, of which g is this rank's, so
// that all know the norm, as the same bits, and whether the step is skipped. To its successor each
// rank sends the gradient itself, if that is to keep its slots too.
func (x *shardedSum) verdict(ctx context.Context, g []float32) (nonfinite bool, err error) {
	t, s, gradient := x.t, x.t.shards, x.t.exchange.gradient
	clear(s.verdict)
	said := s.verdict[verdictFloats*t.ring.Rank:][:verdictFloats]
	squares := math.Float64bits(t.dev.SumSquares(g))
	for i := range verdictFloats - 1 {
		said[i] = float32(squares >> (16 * i) & 0xffff)
	}
	said[verdictFloats-1] = float32(t.exchange.own.nonfinite)
	var out, in []float32
	if s.logs() && len(s.held) > 1 {
		out, in = gradient.Host[s.held[0].first:s.held[0].end], s.incoming
		if gradient.InPlace {
			in = s.held[1].log
		}
	}
	if err := x.ring.AllReduceCarry(ctx, s.verdict, out, in); err != nil {
		return false, err
	}
	if !gradient.InPlace && len(in) > 0 {
		t.dev.Upload(s.held[1].log, in)
	}
	sum := 0.0
	for said := s.verdict; len(said) > 0; said = said[verdictFloats:] {
		bits := uint64(0)
		for i, part := range said[:verdictFloats-1] {
			bits |= uint64(part) << (16 * i)
		}
		sum += math.Float64frombits(bits)
		nonfinite = nonfinite || said[verdictFloats-1] > 0
	}
	s.norm = math.Sqrt(sum)
	return nonfinite, nil
}

// updateShard clips the sum of this rank's range, unless each rank has clipped its own gradient,
// and puts the parameters in its place that the update makes. What it logs is clipped, too.
func (t *batch) updateShard(step int64, h *holding, g []float32) {
	s := t.shards
	next := version{Step: step, Ring: t.ring.Generation}
	clipped := t.cfg.Clip.beforeRing()
	if !clipped {
		t.limit(g)
	}
	if !s.logs() {
		t.tear()
		t.updateRange(h, g, true, true)
		s.at, s.next, t.torn = next, next, false
		return
	}
	for _, behind := range s.held[1:] {
		if !clipped {
			t.limit(behind.log)
		}
	}
	t.copyWithin(h.log, g)
	t.updateRange(h, g, false, true)
	s.next = next
}

// limit clips a part of the summed gradient, whose norm is known.
func (t *batch) limit(part []float32) {
	switch factor := t.clip.Factor(t.shards.norm); {
	case len(part) == 0:
	case t.clip.ByValue && t.clip.Limit > 0:
		t.clipper.Clip(part, &t.clip, nil)
	case factor != 1:
		t.dev.Scale(part, factor)
	}
}

// updateRange updates a range by its gradient g: the slots if they are to change, and otherwise
// copies of them; and copies of the parameters, which it leaves in g if that is wanted.
func (t *batch) updateRange(h *holding, g []float32, slotsToo, wanted bool) {
	s := t.shards
	for at := 0; at < len(g); at += s.block {
		end := min(len(g), at+s.block)
		params := s.scratch[0][:end-at]
		t.copyWithin(params, t.task.Params()[h.first+at:h.first+end])
		var slots [2][]float32
		for i, x := range h.slots {
			if slots[i] = x[at:end]; !slotsToo {
				slots[i] = s.scratch[1+i][:end-at]
				t.copyWithin(slots[i], x[at:end])
			}
		}
		t.dev.Update(s.rule, params, g[at:end], slots[0], slots[1])
		if wanted {
			t.copyWithin(g[at:end], params)
		}
	}
}

// replayLog does to the slots what the log says.
func (t *batch) replayLog() {
	for i := range t.shards.held {
		h := &t.shards.held[i]
		t.updateRange(h, h.log, true, false)
	}
}

// takeShards is the end of a step that all ranks have summed: it makes what was gathered the
// parameters, and does what was logged. It returns the norm.
func (t *batch) takeShards(all tally) (norm float64) {
	s, gradient := t.shards, t.exchange.gradient
	if all.nonfinite == 0 && !s.skipped {
		t.tear()
		if s.logs() {
			t.replayLog()
		}
		if gradient.InPlace {
			t.copyWithin(t.task.Params(), t.grads)
		} else {
			t.dev.Upload(t.task.Params(), gradient.Gradient())
		}
		t.laps.end("update")
	}
	if t.cfg.Clip.beforeRing() && isFinite(s.norm) {
		return all.norm.value()
	}
	return s.norm
}

// catchUp does to this rank's slots what the log says, where the ranks go on from a version that
// this rank has not heard to be committed, but that it has prepared. It needs the parameters before
// that; a rank that gets as far as here is given those after it next.
func (t *batch) catchUp(to version) {
	s := t.shards
	if s == nil || !t.hasState || s.at != t.version() || s.next != to || s.at == to {
		return
	}
	if s.at = (version{}); !s.skipped {
		t.replayLog()
	}
	s.at, s.next = to, version{}
}

// committedShards notes that a step was committed.
func (t *batch) committedShards() {
	if s := t.shards; s != nil {
		s.at, s.next, s.whole = t.version(), version{}, nil
	}
}
