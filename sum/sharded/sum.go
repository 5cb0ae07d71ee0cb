package sharded

import (
	"context"
	"math"
	"time"

	"rondo/compute"
	"rondo/sum"
	"rondo/train/agree"
)

// Ring is the part of a rank's ring that Sum needs: see sum.Ring.
type Ring interface {
	AllReduceCarry(ctx context.Context, buf []float32, out, in [][]float32) error
	AllGather(ctx context.Context, buf []float32, ends []int) error
	ReduceScatter(ctx context.Context, buf []float32, ends []int) error
}

// A rank's report on the sum of its range: the sum of squares, a float64 as four whole numbers of
// 16 bits, and whether the rank's own loss or gradient is not finite.
const (
	squaresFloats = 4
	reportFloats  = squaresFloats + 1
)

// Sum sums a gradient in a ring, and updates the parameters. After Finish all ranks have the new
// parameters in the gradient's memory. It implements train.Updater.
type Sum struct {
	sum.NoOverlap
	slots   *Slots
	ring    Ring
	step    int64 // from 1
	rule    compute.Update
	norm    float64   // of the summed gradient, before it is clipped
	reports []float32 // of all ranks
}

// NewSum returns the sum in the ring of the last Enter.
func (s *Slots) NewSum(ring Ring) *Sum {
	return &Sum{slots: s, ring: ring, reports: make([]float32, reportFloats*len(s.ends))}
}

// Resume implements train.Sum. It frees the slots that a snapshot was made of.
func (x *Sum) Resume(int64, int64, bool) { x.slots.whole = nil }

// Rule implements train.Sum.
func (x *Sum) Rule(_ int64, u compute.Update) compute.Update {
	x.rule = u
	return u
}

// Begin implements train.Sum.
func (x *Sum) Begin(_ context.Context, step int64, _ float64) (measured bool, err error) {
	x.step = step
	return false, nil
}

// Stage implements train.Sum.
func (x *Sum) Stage() []float32 { return x.slots.Gradient.Stage() }

// Load implements train.Sum.
func (x *Sum) Load(ctx context.Context) { x.slots.Gradient.Download(ctx, nil) }

// Sum implements train.Sum. It leaves the new parameters in the gradient's host memory.
func (x *Sum) Sum(ctx context.Context) (busy time.Duration, err error) {
	s, mirror := x.slots, x.slots.Gradient
	s.next = agree.Version{}
	wire := mirror.Gradient()
	if err := x.ring.ReduceScatter(ctx, wire, s.ends); err != nil {
		return 0, err
	}
	h := s.held[0]
	own := mirror.Device[h.first:h.end]
	if !mirror.InPlace {
		s.Device.Upload(own, wire[h.first:h.end])
	}
	nonfinite, err := x.report(ctx, own)
	if err != nil {
		return 0, err
	}
	version := agree.Version{Step: x.step, Ring: s.ranks.Generation}
	if nonfinite || math.IsNaN(x.norm) || math.IsInf(x.norm, 0) {
		s.next, s.skipped = version, true
		s.Device.Zero(mirror.Device) // backward does not overwrite its padding
		return 0, nil
	}
	if err := s.Updating(ctx, x.step); err != nil {
		return 0, err
	}
	began := s.Now()
	s.rule, s.skipped = x.rule, false
	x.update(h, own, version)
	if !mirror.InPlace {
		s.Device.Download(wire[h.first:h.end], own)
	}
	busy = s.Now().Sub(began)
	s.Lap("update of the own range")
	return busy, x.ring.AllGather(ctx, wire, s.ends)
}

// report exchanges the sums of squares of the ranks' ranges, so that all ranks compute the same
// norm and decide alike whether to skip the step. With two copies each rank also sends its range of
// the summed gradient to its successor, which logs it.
func (x *Sum) report(ctx context.Context, own []float32) (nonfinite bool, err error) {
	s, mirror := x.slots, x.slots.Gradient
	clear(x.reports)
	report := x.reports[reportFloats*s.ranks.Rank:][:reportFloats]
	squares := math.Float64bits(s.Device.SumSquares(own))
	for i := range squaresFloats {
		report[i] = float32(squares >> (16 * i) & 0xffff)
	}
	if s.Nonfinite() {
		report[squaresFloats] = 1
	}
	var out, in []float32
	if s.logs() && len(s.held) > 1 {
		out, in = mirror.Host[s.held[0].first:s.held[0].end], s.incoming
		if mirror.InPlace {
			in = s.held[1].log
		}
	}
	err = x.ring.AllReduceCarry(ctx, x.reports, [][]float32{out}, [][]float32{in})
	if err != nil {
		return false, err
	}
	if !mirror.InPlace && len(in) > 0 {
		s.Device.Upload(s.held[1].log, in)
	}
	total := 0.0
	for all := x.reports; len(all) > 0; all = all[reportFloats:] {
		bits := uint64(0)
		for i, part := range all[:squaresFloats] {
			bits |= uint64(part) << (16 * i)
		}
		total += math.Float64frombits(bits)
		nonfinite = nonfinite || all[squaresFloats] > 0
	}
	x.norm = math.Sqrt(total)
	return nonfinite, nil
}

// update clips the summed gradient of this rank's range and replaces it by the new parameters. With
// a log the slots do not change, and the log is clipped too.
func (x *Sum) update(h holding, own []float32, version agree.Version) {
	s := x.slots
	x.clip(own)
	if !s.logs() {
		s.at = agree.Version{} // while some of the slots have changed
		s.update(h, own, true, true)
		s.at = version
		return
	}
	for _, other := range s.held[1:] {
		x.clip(other.log)
	}
	s.Copy(h.log, own)
	s.update(h, own, false, true)
	s.next = version
}

func (x *Sum) clip(part []float32) {
	s := x.slots
	switch factor := s.Clip.Factor(x.norm); {
	case len(part) == 0:
	case s.Clip.ByValue && s.Clip.Limit > 0:
		s.Clipper.Clip(part, &s.Clip, nil)
	case factor != 1:
		s.Device.Scale(part, factor)
	}
}

// Finish implements train.Sum.
func (x *Sum) Finish(ctx context.Context, out, in [][]float32) error {
	return x.ring.AllReduceCarry(ctx, x.slots.Gradient.Behind(), out, in)
}

// Norm implements train.Updater.
func (x *Sum) Norm() float64 { return x.norm }

// Update implements train.Updater.
func (x *Sum) Update() {
	s := x.slots
	if s.logs() {
		s.apply()
	}
	if s.Gradient.InPlace {
		s.Copy(s.Params, s.Gradient.Device)
	} else {
		s.Device.Upload(s.Params, s.Gradient.Gradient())
	}
	s.Lap("update")
}
