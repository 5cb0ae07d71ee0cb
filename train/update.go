package train

import (
	"context"

	"rondo/compute"
)

// ending is how gradients become an update of the parameters: who clips what, and when. A ring has
// one, chosen when it is joined. The device decides by the norm and the loss whether to update.
// This rank decides by the same numbers afterwards, so that nobody waits in between.
type ending interface {
	// mean is of which share of all lanes a pass's gradient is the mean.
	mean() float64
	// weight is what a gradient is multiplied by when it is clipped.
	weight() float64
	// backward runs a pass.
	backward(ctx context.Context, in Pass) (lossSum float64, err error)
	// endGroup ends the passes of a lane group, and endPasses all passes of this rank in a step.
	endGroup(own *tally)
	endPasses(own *tally)
	// stages says that the last pass leaves the gradient as it is to be summed.
	stages() bool
	// update clips the summed gradient, unless it has been, and updates by it. It returns the norm.
	update(ctx context.Context, index int64, all tally) (norm float64, err error)
}

// newEnding chooses the ending for the ring that is joined. A device that records is asked to clip
// with the pass, which spares a wait. It is not if a Rehearsal hears of the phases one by one, nor
// if the gradients of several passes are added up first.
func (b *batch) newEnding() ending {
	alone := b.exchange.sum == (noSum{}) || b.cfg.Local.on()
	behind := b.records && b.cfg.Rehearsal == nil && b.passes() == 1
	b.onlyPasses = alone && b.passes() == 1 // enter and outerUpdate zero the ranks' sums
	b.mayStage = !alone && b.cfg.Rehearsal == nil && b.passes() == 1
	lanes := float64(b.count) / float64(b.cfg.Lanes)
	var e ending
	switch parts := (clipsParts{u: b.updater, lanes: lanes, share: lanes, behind: behind}); {
	case b.cfg.Local.on(): // a round's steps are by this rank's lanes alone
		parts.share = 1
		e = parts
	case !b.cfg.Clip.beforeRing():
		e = clipsSum{b.updater}
	case b.cfg.Clip.Scope == ScopeGroup:
		parts.lanes = 1 / float64(b.cfg.LaneGroups)
		parts.share, parts.groups = parts.lanes, true
		e = parts
	default:
		e = parts
	}
	switch sum, updates := b.exchange.sum.(Updater); {
	case alone && behind:
		return updatesBehind{e, b.updater}
	case updates:
		return updatesInSum{e, b.updater, sum}
	}
	return e
}

// clipsSum clips the summed gradient: what one process with the whole batch does.
type clipsSum struct{ u *updater }

func (clipsSum) mean() float64    { return 1 }
func (clipsSum) weight() float64  { return 1 }
func (clipsSum) endGroup(*tally)  {}
func (clipsSum) endPasses(*tally) {}
func (clipsSum) stages() bool     { return true }

func (c clipsSum) backward(_ context.Context, in Pass) (float64, error) {
	return c.u.seat.Backward(in)
}

func (c clipsSum) update(ctx context.Context, index int64, all tally) (norm float64, err error) {
	if err := c.u.beginUpdate(ctx, index); err != nil {
		return 0, err
	}
	c.u.clipper.Clip(c.u.grads, &c.u.clip, nil)
	c.u.laps.end("clip")
	c.u.updateBySum(all)
	return c.u.clipper.Norm(), nil
}

// clipsParts clips before the ranks sum: the mean gradient of this rank's lanes, or of each of its
// lane groups.
type clipsParts struct {
	u      *updater
	lanes  float64 // of all, that are clipped together: a share
	share  float64 // what they count in the sum
	groups bool    // it clips each lane group
	behind bool    // clipping is asked for with the pass
}

func (c clipsParts) mean() float64   { return c.lanes }
func (c clipsParts) weight() float64 { return c.share }
func (c clipsParts) stages() bool    { return c.behind }

func (c clipsParts) backward(_ context.Context, in Pass) (float64, error) {
	if c.behind {
		in.Behind = c.u.clipBehind
	}
	return c.u.seat.Backward(in)
}

func (c clipsParts) endGroup(own *tally) {
	if c.groups {
		c.clip(own)
	}
}

func (c clipsParts) endPasses(own *tally) {
	if !c.groups {
		c.clip(own)
	}
	if !isFinite(own.norm.value()) {
		own.nonfinite = 1
	}
}

// clip clips a part, unless that was asked for with the pass.
func (c clipsParts) clip(own *tally) {
	if !c.behind {
		c.u.clipper.Clip(c.u.grads, &c.u.clip, nil)
	}
	c.u.addNorm(own)
}

func (c clipsParts) update(ctx context.Context, index int64, all tally) (float64, error) {
	if err := c.u.beginUpdate(ctx, index); err != nil {
		return 0, err
	}
	c.u.updateBySum(all)
	return all.norm.value(), nil
}

// updatesBehind has clipping and the update follow the backward pass on the device, for a rank
// whose own gradient is the sum. It knows the loss and the norm when all is done.
type updatesBehind struct {
	ending
	u *updater
}

// backward looks before the pass whether this rank is to do nothing more, as beginUpdate does.
// Where ctx ends while it runs, the step is committed all the same: it has been read and updated
// by, as its Ledger is told. If the others have gone on without this rank, they have joined a later
// ring, whose word counts, and the step is one that was thrown away; if they have not, the job goes
// on from it. Nothing that is due after it is done here.
func (u updatesBehind) backward(ctx context.Context, in Pass) (float64, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	u.u.tear()
	in.Behind = u.u.updateBehind
	return u.u.seat.Backward(in)
}

func (u updatesBehind) endPasses(own *tally) {
	u.u.addNorm(own)
	if _, parts := u.ending.(clipsParts); parts && !isFinite(own.norm.value()) {
		own.nonfinite = 1
	}
}

func (updatesBehind) endGroup(*tally) {}

func (updatesBehind) update(_ context.Context, _ int64, all tally) (float64, error) {
	return all.norm.value(), nil
}

// updatesInSum takes the parameters that the Sum has updated.
type updatesInSum struct {
	ending
	u   *updater
	sum Updater
}

func (u updatesInSum) update(_ context.Context, _ int64, all tally) (norm float64, err error) {
	norm = u.sum.Norm()
	if all.nonfinite == 0 && isFinite(norm) {
		u.u.tear()
		u.sum.Update()
	}
	if u.u.cfg.Clip.beforeRing() && isFinite(norm) {
		return all.norm.value(), nil
	}
	return norm, nil
}

// updater asks the device for what it is to do with a gradient.
type updater struct {
	*core
	ending     ending
	onlyPasses bool // Pass.OnlyPasses
	mayStage   bool // the gradient may be copied to the host while it is computed

	// The device reads clip and next anew in each step.
	clipper compute.Clipper
	clip    compute.Clip
	next    compute.Update
	// momentumGone says that the next update has no momentum, though the optimizer has.
	momentumGone bool
	// clipBehind and updateBehind ask for what comes behind a pass. They are made once: what a
	// device has recorded has them.
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

// plan says what the device is to do in a step, which may be a later one of the round that is next,
// and returns the step's learning rate.
func (u *updater) plan(index int64) (rate float64) {
	rate = u.cfg.Schedule.at(index, u.cfg.Steps, u.progress.Plateau.Reductions)
	lossLimit := exactLimit * float64(u.targets()) // of the sum over all targets
	u.clip = u.cfg.Clip.by(u.ending.weight(), lossLimit)
	plain := u.cfg.Optimizer.update(u.progress.Updates+1+index-u.progress.Step, rate)
	plain.Held = u.progress.Held
	u.next = plain
	if !u.cfg.Local.on() {
		u.next = u.exchange.sum.Rule(index+1, plain)
	}
	u.momentumGone = u.next.Momentum != plain.Momentum || u.next.Beta1 != plain.Beta1
	return rate
}

// addNorm adds the norm of a part of the lanes, which was clipped, to this rank's.
func (u *updater) addNorm(own *tally) {
	norm := u.clip.Share * u.clipper.Norm()
	if isFinite(norm) {
		norm = min(norm, exactLimit/2) // it is clipped all the same
	}
	own.norm.add(norm)
	u.laps.end("clip")
}

// beginUpdate begins the last phase of a step. It looks at ctx, since a rank alone waits for nobody
// who would.
func (u *updater) beginUpdate(ctx context.Context, index int64) error {
	if err := u.at(ctx, PhaseUpdate, index+1); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// updateBySum updates by a sum that was clipped.
func (u *updater) updateBySum(all tally) {
	if all.nonfinite > 0 {
		return
	}
	u.tear()
	u.update()
	if u.momentumGone { // so that nobody goes on with it as the momentum
		u.dev.Zero(u.ownSlots()[0])
	}
	u.laps.end("update")
}

// tear notes that the parameters are about to change. Until the step is committed nobody knows
// which step they are of: the device may fail at any time, and may have updated some of them.
func (c *core) tear() { c.touched, c.torn = true, true }

// forgetTorn drops a state that a step has torn and not committed, when the step ends: a failed
// device's panic passes through here too.
func (c *core) forgetTorn() {
	if c.torn {
		c.torn = false
		c.Forget()
	}
}

// update asks for the optimizer's update by the gradient, as the last Clip lets it.
func (u *updater) update() {
	slots := u.ownSlots()
	u.clipper.Update(&u.next, u.task.Params(), u.grads, slots[0], slots[1])
}
