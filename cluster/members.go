package cluster

import (
	"fmt"
	"slices"
	"time"
)

func joined(s State, members []Member, now time.Time) (State, []Action) {
	there, ring := idsOf(members), idsOf(s.plan.Members)
	rest := slices.DeleteFunc(slices.Clone(s.members), func(m Member) bool { return there[m.ID] })
	s.members = RingOrder(append(rest, members...))
	newcomers := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return ring[m.ID] })
	if len(newcomers) == 0 {
		return s, nil
	}
	return admit(s, newcomers, now)
}

// admit handles members that have appeared and are in no ring. A leader that takes over also calls
// it without any.
func admit(s State, newcomers []Member, now time.Time) (State, []Action) {
	if !s.begun && !s.resuming() && slices.ContainsFunc(newcomers, s.plan.isBefore) {
		return resume(s, now)
	}
	s, refusals := s.refuse(newcomers)
	s, actions := s.receive(newcomers, now)
	written := slices.ContainsFunc(actions, func(a Action) bool {
		_, is := a.(WritePlan)
		return is
	})
	if len(refusals) > 0 && !written {
		if s.plan.Reason == "" {
			s.plan.Reason = "workers join"
		}
		var write []Action
		s, write = s.write()
		actions = append(write, actions...)
	}
	return s, append(actions, refusals...)
}

// receive applies the phase's response to new members.
func (s State) receive(newcomers []Member, now time.Time) (State, []Action) {
	switch {
	case s.plan.Phase == Forming:
		return start(s)
	case s.plan.Phase == Paused:
		return goOn(s, now)
	case s.plan.Phase == Running && len(s.done) == 0 && s.ringWouldChange():
		if s.settled.IsZero() {
			s.settled = now.Add(settleTime)
		}
		return s, nil
	}
	return s, s.waitAsSpares(newcomers)
}

// refuse evicts newcomers that do not fit the job or that are distrusted, and notifies them.
func (s State) refuse(newcomers []Member) (State, []Action) {
	var told []Action
	evictions, veterans := s.plan.evictions(), idsOf(s.plan.veterans())
	for _, m := range newcomers {
		if _, evicted := evictions[m.ID]; evicted || veterans[m.ID] {
			continue
		}
		reason, remedy := s.misfit(m), Leave
		switch {
		case reason != "":
			reason = " is refused: " + reason
		case s.begun && m.Served > s.plan.Generation:
			reason, remedy = " comes back too late: the store had forgotten its ring, and the job "+
				"has gone on without its state", Resync
		case s.evictions.distrusts(m):
			reason, remedy = " comes back"+s.evictions.history(m), Wait
		default:
			continue
		}
		reason = s.describe(m.ID) + reason
		s = s.evict(Eviction{ID: m.ID, Reason: reason, Remedy: remedy})
		told = append(told, Notify{ID: m.ID, Text: reason})
	}
	return s, told
}

// misfit returns why a newcomer does not fit the job; empty: it fits. The ring's version and the
// first ring's identity count.
func (s State) misfit(m Member) string {
	version := s.job.Version
	if ring := s.plan.veterans(); len(ring) > 0 {
		version = ring[0].Version
	}
	switch {
	case m.Version != version:
		return fmt.Sprintf("it is of version %q, and the job's workers are of %q: run the same "+
			"build of rondo everywhere", m.Version, version)
	case s.plan.Identity != "" && m.Identity != s.plan.Identity:
		return "it reads another text or spec than the ring: give all workers the same --corpus"
	}
	return ""
}

func (s State) evict(e Eviction) State {
	s.plan.Evicted = append(slices.Clone(s.plan.Evicted), e)
	return s
}

// waitAsSpares notifies the newcomers that are spares.
func (s State) waitAsSpares(newcomers []Member) []Action {
	are := idsOf(newcomers)
	return slices.DeleteFunc(s.spares(), func(a Action) bool { return !are[a.(Notify).ID] })
}

// start reports how many workers have joined, and starts the job when they are enough.
func start(s State) (State, []Action) {
	there := s.choose(1)
	for _, m := range there {
		if m.Identity != there[0].Identity {
			return fail(s, fmt.Sprintf("%s reads another text or spec than %s: give all of them "+
				"the same --corpus", s.describe(m.ID), s.describe(there[0].ID)), true)
		}
	}
	text := s.counted() + " have joined"
	told := Notify{Text: text}
	if len(there) < s.wanted() {
		return s, []Action{told}
	}
	s, actions := s.formRing(there, text)
	return s, append([]Action{told}, actions...)
}

// startWithFewer starts the job when the join timeout ends before all workers have joined.
func startWithFewer(s State) (State, []Action) {
	there := s.choose(s.job.MinWorkers)
	text := fmt.Sprintf("%s have joined within %v (--join-timeout); see the logs of those that "+
		"are missing", s.counted(), s.job.JoinTimeout)
	if len(there) < s.job.MinWorkers {
		if s.plan.Reason != "" { // such as a worker's failure
			text += "; the last of it: " + s.plan.Reason
		}
		return fail(s, text, false)
	}
	s, actions := s.formRing(there, text)
	return s, append(actions, Notify{Text: text + "; the job starts without them"})
}

// goOn forms a ring in a paused job if no other member is expected, and otherwise waits for more.
func goOn(s State, now time.Time) (State, []Action) {
	there := s.choose(s.job.MinWorkers)
	switch {
	case s.resuming():
		if s.settled.IsZero() {
			s.settled, s.awaitsState = now.Add(resumeTime), true
		}
	case s.complete(there):
		return s.formRing(there, s.counted()+" are there again")
	case !s.plan.ranking().allNew(there):
		s.settled, s.awaitsState = now.Add(settleTime), false
	case s.settled.IsZero(): // more newcomers do not extend the wait for members with the state
		s.settled, s.awaitsState = now.Add(returnTime), true
	}
	text := fmt.Sprintf("paused: %d of at least %d workers are there", len(there),
		s.job.MinWorkers)
	if short := s.job.MinWorkers - len(there); short > 0 {
		text += fmt.Sprintf("; waiting for %d more", short)
	}
	return s, []Action{Notify{Text: text}}
}

// goOnOrFail ends a pause at its timeout: the job goes on if enough members are there.
func goOnOrFail(s State) (State, []Action) {
	there := s.choose(s.job.MinWorkers)
	if len(there) >= s.job.MinWorkers {
		return s.formRing(there, fmt.Sprintf("%s are there, and nobody else has come within %v "+
			"(--pause-timeout)", s.counted(), s.job.PauseTimeout))
	}
	return fail(s, fmt.Sprintf("%s; too few have come for %v", s.plan.Reason,
		s.job.PauseTimeout)+resumeHint, false)
}

// complete reports whether a paused job need not wait: the ring is full, and all members were in
// the last one. A newcomer may stand in for a member that is on its way back with its state.
func (s State) complete(there []Member) bool {
	return len(there) >= s.job.Limit(s.plan) && !slices.ContainsFunc(there, s.plan.ranking().isNew)
}

// settle applies the changes that waited for settled.
func settle(s State, now time.Time) (State, []Action) {
	s.settled = time.Time{}
	there := s.choose(s.job.MinWorkers)
	switch {
	case s.plan.Phase == Running && len(s.asked) > 0:
		return depart(s, now)
	case s.plan.Phase == Running && len(s.done) == 0 && s.ringWouldChange():
		return regroup(s, "more workers have appeared", now)
	case s.plan.Phase == Paused && s.plan.ranking().allNew(there) && !s.awaitsState:
		// The veterans left again.
		s.settled, s.awaitsState = now.Add(returnTime), true
	case s.plan.Phase == Paused && len(there) >= s.job.MinWorkers:
		return s.formRing(there, s.counted()+" are there again")
	}
	return s, nil
}

func left(s State, ids []string, now time.Time) (State, []Action) {
	s.suspicions = s.suspicions.left(ids, now)
	s.members = without(s.members, ids...)
	gone, inRing, done := setOf(ids), idsOf(s.plan.Members), setOf(s.done)
	isGone := func(id string) bool { return gone[id] }
	s.asked = slices.DeleteFunc(slices.Clone(s.asked), isGone)
	s.leaving = slices.DeleteFunc(slices.Clone(s.leaving), isGone)
	var lost []string
	for _, id := range ids {
		if inRing[id] && !done[id] {
			lost = append(lost, id)
		}
	}
	if len(lost) == 0 {
		return s, nil
	}
	return lose(s, lost, "not registered any more: killed, cut off, or stuck", now)
}

// leaving plans a ring without a worker that was asked to leave. It first waits for other such
// workers, because a drained host or a suspended job asks many at once. If the job is about to end,
// the worker leaves with the others. If no other member has its state, successors first join a ring
// with it; the worker asks again in that ring. A request from another ring is stale.
func leaving(s State, e Leaving, now time.Time) (State, []Action) {
	stale := e.Generation != 0 && e.Generation != s.plan.Generation
	if stale || !s.registered(e.ID) || slices.Contains(s.leaving, e.ID) ||
		slices.Contains(s.asked, e.ID) {
		return s, nil
	}
	if e.Generation != 0 { // it reports from a ring that has begun
		s.plan.Last = nil
	}
	without := s.release([]string{e.ID})
	rank, inRing := s.plan.Rank(e.ID)
	if !inRing || s.plan.Phase != Running || len(s.done) > 0 {
		return without, nil
	}
	heirs := without.choose(s.job.MinWorkers)
	if len(heirs) > 0 && s.job.Lanes > 1 && s.plan.ranking().allNew(heirs) {
		room := min(max(s.job.Limit(s.plan), 2), s.job.Lanes) - 1
		heirs = append(slices.Clip(heirs[:min(len(heirs), room)]), s.plan.Members[rank])
		why := s.describe(e.ID) + " hands over before it leaves, as it was asked to"
		return s.formRing(heirs, why)
	}
	s.asked = append(slices.Clone(s.asked), e.ID)
	if len(s.plan.Members) == 1 { // no other member can ask to leave
		return depart(s, now)
	}
	if s.settled.IsZero() {
		s.settled = now.Add(settleTime)
	}
	return s, nil
}

// depart plans a ring without as many asked workers as possible. One member with the job's state
// stays, and --min-workers members if there are as many. A ring that ends for a plan has told all
// members the states of all lanes, so any of them may continue. The asked workers that stay ask
// again in the next ring. If even one cannot be spared, it leaves, and the job pauses.
func depart(s State, now time.Time) (State, []Action) {
	if len(s.done) > 0 { // the others are about to leave too
		return s.release(s.asked), nil
	}
	spared := func(ids []string) bool {
		rest := s.release(ids).choose(s.job.MinWorkers)
		return len(rest) >= s.job.MinWorkers &&
			slices.ContainsFunc(rest, s.plan.ranking().isVeteran)
	}
	all, asked := spared(s.asked), setOf(s.asked)
	var going []string
	for _, m := range slices.Backward(s.plan.Members) { // the most senior stay
		if asked[m.ID] &&
			(all || len(going) == 0 || spared(append(slices.Clone(going), m.ID))) {
			going = append(going, m.ID)
		}
	}
	slices.Reverse(going)
	verb := " leaves, as it was asked to"
	if len(going) > 1 {
		verb = " leave, as they were asked to"
	}
	return regroup(s.release(going), s.describe(going...)+verb, now)
}

// release excludes workers that were asked to leave from later rings.
func (s State) release(ids []string) State {
	s.leaving = append(slices.Clone(s.leaving), ids...)
	going := setOf(ids)
	s.asked = slices.DeleteFunc(slices.Clone(s.asked), func(id string) bool { return going[id] })
	return s
}
