package train

import (
	"context"

	"rondo/compute"
	"rondo/train/exact"
	"rondo/train/optim"
)

// updatePath turns gradients into an update of the parameters: it decides what is clipped, and
// when. It is chosen once per ring. The device decides by norm and loss whether to update. This
// rank later decides by the same numbers, so nothing waits in between.
type updatePath interface {
	// averaged returns the lanes over whose targets the gradient of a pass over these lanes is
	// averaged.
	averaged(lanes Lanes) Lanes
	// weight multiplies a gradient that is clipped in a step, from 0.
	weight(index int64) float64
	// backward runs a pass.
	backward(ctx context.Context, in Pass) (lossSum float64, err error)
	// endGroup follows a lane group's last pass, and endPasses all passes of a step.
	endGroup(p pass, own *tally)
	endPasses(own *tally)
	// stages reports whether the last pass leaves the gradient ready to be summed.
	stages() bool
	// update clips the summed gradient, unless its parts were clipped, and updates by it. It
	// returns the norm.
	update(ctx context.Context, index int64, all tally) (norm float64, err error)
}

// newUpdatePath chooses the path for the joined ring. A device that records clips as part of the
// pass, which saves a wait. That needs a single pass, and no Rehearsal, which must see the phases
// one by one.
func (b *batch) newUpdatePath() updatePath {
	alone := b.exchange.sum == (noSum{}) || b.cfg.Local.On()
	behind := b.records && b.cfg.Rehearsal == nil && b.passes() == 1
	b.onlyPasses = alone && b.passes() == 1 // enter and round.update zero the ranks' sums
	b.mayStage = !alone && b.cfg.Rehearsal == nil && b.passes() == 1
	var path updatePath
	switch parts := (clipParts{u: b.updater, own: b.ownLanes(), behind: behind}); {
	case b.cfg.Local.On(): // a round's steps use this rank's lanes alone
		parts.whole = true
		path = parts
	case !b.cfg.Clip.BeforeSum():
		path = clipSum{b.updater}
	case b.cfg.Clip.Scope == optim.ScopeGroup:
		parts.groups = true
		path = parts
	default:
		path = parts
	}
	switch sum, updates := b.exchange.sum.(Updater); {
	case alone && behind:
		return updateInPass{path, b.updater}
	case updates:
		return updateInSum{path, b.updater, sum}
	}
	return path
}

// clipSum clips the summed gradient, as one process with the whole batch does.
type clipSum struct{ u *updater }

func (c clipSum) averaged(Lanes) Lanes { return c.u.whole() }
func (clipSum) weight(int64) float64   { return 1 }
func (clipSum) endGroup(pass, *tally)  {}
func (clipSum) endPasses(*tally)       {}
func (clipSum) stages() bool           { return true }

func (c clipSum) backward(_ context.Context, in Pass) (float64, error) {
	return c.u.seat.Backward(in)
}

func (c clipSum) update(ctx context.Context, index int64, all tally) (norm float64, err error) {
	if err := c.u.beginUpdate(ctx, index); err != nil {
		return 0, err
	}
	c.u.clipper.Clip(c.u.grads, &c.u.clip, nil)
	c.u.laps.end("clip")
	c.u.updateBySum(all)
	return c.u.clipper.Norm(), nil
}

// clipParts clips before the ranks sum: this rank's mean gradient, or that of each of its lane
// groups.
type clipParts struct {
	u      *updater
	own    Lanes // this rank's
	whole  bool  // the rank's gradient is not a part of a sum
	groups bool  // clip each lane group
	behind bool  // clip as part of the pass
}

func (c clipParts) stages() bool { return c.behind }

func (c clipParts) averaged(lanes Lanes) Lanes {
	if c.groups {
		return lanes
	}
	return c.own
}

// weight is this rank's share of the step's targets. Where a rank has several groups, endGroup sets
// each one's.
func (c clipParts) weight(index int64) float64 {
	if c.whole {
		return 1
	}
	return c.u.share(index, c.own)
}

func (c clipParts) backward(_ context.Context, in Pass) (float64, error) {
	if c.behind {
		in.Behind = c.u.clipBehind
	}
	return c.u.seat.Backward(in)
}

func (c clipParts) endGroup(p pass, own *tally) {
	if c.groups {
		c.u.clip.Share = c.u.share(p.Step-1, p.Lanes)
		c.clip(own)
	}
}

func (c clipParts) endPasses(own *tally) {
	if !c.groups {
		c.clip(own)
	}
	if !isFinite(own.norm.Value()) {
		own.nonfinite = 1
	}
}

// clip clips a part, unless the pass has clipped it.
func (c clipParts) clip(own *tally) {
	if !c.behind {
		c.u.clipper.Clip(c.u.grads, &c.u.clip, nil)
	}
	c.u.addNorm(own)
}

func (c clipParts) update(ctx context.Context, index int64, all tally) (float64, error) {
	if err := c.u.beginUpdate(ctx, index); err != nil {
		return 0, err
	}
	c.u.updateBySum(all)
	return all.norm.Value(), nil
}

// updateInPass queues clipping and update behind the backward pass on the device. It serves a rank
// whose own gradient is the sum. Loss and norm are known when all of it is done.
type updateInPass struct {
	updatePath
	u *updater
}

// backward checks ctx before the pass, as beginUpdate does. If ctx ends during the pass, the step
// is still committed: the parameters are updated, and the Ledger records it. If the others have
// gone on without this rank, their later ring discards the step; otherwise the job goes on from it.
// The work due after the step is left to the next ring.
func (u updateInPass) backward(ctx context.Context, in Pass) (float64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	u.u.tear()
	in.Behind = u.u.updateBehind
	return u.u.seat.Backward(in)
}

func (u updateInPass) endPasses(own *tally) {
	u.u.addNorm(own)
	if _, parts := u.updatePath.(clipParts); parts && !isFinite(own.norm.Value()) {
		own.nonfinite = 1
	}
}

func (updateInPass) endGroup(pass, *tally) {}

func (updateInPass) update(_ context.Context, _ int64, all tally) (float64, error) {
	return all.norm.Value(), nil
}

// updateInSum takes over the parameters that the Sum has updated.
type updateInSum struct {
	updatePath
	u   *updater
	sum Updater
}

func (u updateInSum) update(_ context.Context, _ int64, all tally) (norm float64, err error) {
	norm = u.sum.Norm()
	if all.nonfinite == 0 && isFinite(norm) {
		u.u.tear()
		u.sum.Update()
	}
	if u.u.cfg.Clip.BeforeSum() && isFinite(norm) {
		return all.norm.Value(), nil
	}
	return norm, nil
}

// updater queues clipping and updates on the device.
type updater struct {
	*core
	path       updatePath
	onlyPasses bool // see Pass.OnlyPasses
	mayStage   bool // the gradient may be copied to the host while it is computed

	// The device reads clip and next anew in each step.
	clipper compute.Clipper
	clip    compute.Clip
	next    compute.Update
	// momentumGone: the next update runs without momentum, though the optimizer has it.
	momentumGone bool
	// clipBehind and updateBehind queue work behind a pass. They are made once, because a device's
	// recordings hold them.
	clipBehind, updateBehind func(*compute.Loss)
}

func newUpdater(c *core) *updater {
	u := &updater{core: c}
	u.clipBehind = func(loss *compute.Loss) { u.clipper.Clip(u.grads, &u.clip, loss) }
	u.updateBehind = func(loss *compute.Loss) {
		u.clipBehind(loss)
		u.update()
	}
	return u
}

// plan sets the device's clip and update arguments for a step, which may be a later step of the
// next round. It returns the step's learning rate.
func (u *updater) plan(index int64) (rate float64) {
	rate = u.cfg.rate(index, u.progress.Plateau.Reductions)
	lossLimit := exact.Limit * float64(u.targets(index, u.whole())) // for the sum over all targets
	u.clip = u.cfg.Clip.Args(u.path.weight(index), lossLimit)
	plain := u.cfg.Optimizer.Update(u.progress.Updates+1+index-u.progress.Step, rate)
	plain.Held = u.progress.Held
	u.next = plain
	if !u.cfg.Local.On() {
		u.next = u.exchange.sum.Rule(index+1, plain)
	}
	u.momentumGone = u.next.Momentum != plain.Momentum || u.next.Beta1 != plain.Beta1
	return rate
}

// addNorm adds the norm of a clipped part to this rank's tally.
func (u *updater) addNorm(own *tally) {
	norm := u.clip.Share * u.clipper.Norm()
	if isFinite(norm) {
		norm = min(norm, exact.Limit/2) // the gradient is clipped anyway
	}
	own.norm.Add(norm)
	u.laps.end("clip")
}

// beginUpdate begins the update phase. It checks ctx, since a single rank has no collective that
// would.
func (u *updater) beginUpdate(ctx context.Context, index int64) error {
	if err := u.beginPhase(ctx, PhaseUpdate, index+1); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// updateBySum updates by a sum that is already clipped.
func (u *updater) updateBySum(all tally) {
	if all.nonfinite > 0 {
		return
	}
	u.tear()
	u.update()
	if u.momentumGone { // so that it is not used as the momentum later
		u.dev.Zero(u.ownSlots()[0])
		if k := u.exchange.keeper(); k != nil && u.exchange.sendsAll {
			if m := k.NewMomentum(); m != nil && allFinite(m) {
				u.dev.Upload(u.ownSlots()[0], m)
			}
		}
	}
	u.laps.end("update")
}

// tear notes that the parameters are about to change. Until the commit their step is unknown: the
// device may fail at any time, and may have updated only some of them.
func (c *core) tear() { c.touched, c.torn = true, true }

// forgetTorn drops the state if the step has changed the parameters and not committed. It is
// deferred, so it also runs when a failed device panics.
func (c *core) forgetTorn() {
	if c.torn {
		c.torn = false
		c.Forget()
	}
}

// update queues the optimizer's update by the gradient. The last Clip decides whether it takes
// effect.
func (u *updater) update() {
	slots := u.ownSlots()
	u.clipper.Update(&u.next, u.task.Params(), u.grads, slots[0], slots[1])
}
