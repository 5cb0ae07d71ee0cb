package train

import "rondo/compute"

// A step clips and updates where the gradient is. The device decides by itself, from the norm and
// the loss, whether to update: it has the very numbers that this rank decides by afterwards, and
// nobody waits for them in between.

// alone says whether this rank is the whole ring, whose gradient is the sum.
func (t *Trainer) alone() bool { return t.exchange.reducer == nil }

// updatesAlone says whether a step's update is by this rank's gradient alone.
func (t *Trainer) updatesAlone() bool { return t.alone() || t.cfg.Local.on() }

// clipsEach says whether each rank clips its own gradient, the mean over its own lanes.
func (t *Trainer) clipsEach() bool { return t.cfg.Clip.beforeRing() || t.cfg.Local.on() }

// clipsOwn says whether the gradient is clipped before the loss is known. Only of a device that
// records does that spare a wait, a Rehearsal is to meet the phases one by one, and what several
// passes leave is added up first.
func (t *Trainer) clipsOwn() bool {
	return t.records && t.cfg.Rehearsal == nil && t.single() && (t.alone() || t.clipsEach())
}

// updatesOwn says whether the update, too, is asked for before the loss is known.
func (t *Trainer) updatesOwn() bool { return t.updatesAlone() && t.clipsOwn() }

// plan says what the device is to do in a step, which may be a later one of the round that is next,
// and returns the step's learning rate.
func (t *Trainer) plan(index int64) (rate float64) {
	share := 1.0 // a round's steps are by this rank's lanes alone
	if t.cfg.Clip.beforeRing() && !t.cfg.Local.on() {
		share = t.share() * t.scale()
	}
	rate = t.cfg.Schedule.at(index, t.cfg.Steps, t.progress.Plateau.Reductions)
	lossLimit := exactLimit * float64(t.targets()) // of the sum over all targets
	t.clip = t.cfg.Clip.by(share, lossLimit)
	rule := t.cfg.Optimizer
	if t.sumsMomenta(index) {
		rule = rule.withoutMomentum()
	}
	t.next = rule.update(t.progress.Updates+1+index-t.progress.Step, rate)
	t.next.Held = t.held(index)
	return rate
}

// held is what compute.Update.Held is in a step. A rank alone does not begin to hold, since its
// gradient is as it is; nor does it go on to take in what has been held, which would be corrected
// for the bias of another number of updates than it is of.
func (t *Trainer) held(index int64) int64 {
	after := t.cfg.Optimizer.HoldAfter
	if t.progress.Held > 0 || t.updatesAlone() || after == 0 || index < after {
		return t.progress.Held
	}
	return t.progress.Updates
}

// sumsMomenta says whether what the ranks sum in a step is momenta.
func (t *Trainer) sumsMomenta(index int64) bool {
	after := t.cfg.Optimizer.MomentumAfter
	return after > 0 && index >= after && !t.updatesAlone()
}

// scale is what a gradient is multiplied by while the ranks sum it. A rank alone sends none.
func (t *Trainer) scale() float64 {
	if t.alone() || t.cfg.GradientScale == 0 {
		return 1
	}
	return t.cfg.GradientScale
}

// share is what part of all lanes is clipped together before the ring.
func (t *Trainer) share() float64 {
	if t.cfg.Clip.Scope == ScopeGroup {
		return 1 / float64(t.cfg.LaneGroups)
	}
	return float64(t.count) / float64(t.cfg.Lanes)
}

// behindBackward asks for what comes behind the backward pass of a rank that clipsOwn.
func (t *Trainer) behindBackward(loss *compute.Loss) {
	t.clipper.Clip(t.grads, &t.clip, loss)
	if t.updatesAlone() {
		t.update()
	}
}

// applySum clips the summed gradient, unless each rank has clipped its own, updates by it, and
// returns the norm.
func (t *Trainer) applySum(all tally) (norm float64) {
	each := t.clipsEach()
	if !each {
		t.clipper.Clip(t.grads, &t.clip, nil)
		t.laps.end("clip")
	}
	if all.nonfinite == 0 {
		if scale := t.scale(); scale != 1 {
			t.dev.Scale(t.grads, float32(1/scale))
		}
		t.tear()
		t.update()
		if t.sumsMomenta(t.progress.Step) { // so that nobody goes on with it as the momentum
			t.dev.Zero(t.ownSlots()[0])
		}
		t.laps.end("update")
	}
	if each {
		return all.norm.value()
	}
	return t.clipper.Norm()
}

// tear notes that the parameters are about to change. Until the step is committed nobody knows
// which step they are of: the device may fail at any time, and may have updated some of them.
func (t *Trainer) tear() { t.touched, t.torn = true, true }

// forgetTorn drops a state that a step has torn and not committed, when the step ends: a failed
// device's panic passes through here too.
func (t *Trainer) forgetTorn() {
	if t.torn {
		t.torn = false
		t.Forget()
	}
}

// update asks for the optimizer's update by the gradient, as the last Clip lets it.
func (t *Trainer) update() {
	slots := t.ownSlots()
	t.clipper.Update(&t.next, t.task.Params(), t.grads, slots[0], slots[1])
}
