package train

// standing is what a rank says of its state when a ring begins. Its size is fixed.
type standing struct {
	Has     bool // all else says nothing otherwise
	Found   bool // it is of a snapshot that was asked for
	Looking bool // this rank still looks for a snapshot: nothing else counts
	Pending bool // what is due after the step was broken off
	Stopped bool // the job is to end here

	Joined    int64 // the last ring that this rank joined with it
	Committed int64 // the ring that the step was completed in
	Progress  Progress
}

func (t *Trainer) standing() standing {
	if !t.hasState {
		return standing{}
	}
	return standing{Has: true, Pending: t.pending, Stopped: t.stopped, Joined: t.joined,
		Committed: t.committed, Progress: t.progress}
}

// same says whether two ranks have the same parameters, to the last bit: all ranks that complete a
// step in a ring do.
func (s standing) same(o standing) bool {
	return s.Has && o.Has && s.Progress.Step == o.Progress.Step && s.Committed == o.Committed
}

// before says whether o is to be gone on from rather than s. A later ring has decided where the job
// is, so what a rank did in an earlier one that others left does not count any more.
func (s standing) before(o standing) bool {
	switch {
	case s.Has != o.Has:
		return o.Has
	case s.Joined != o.Joined:
		return s.Joined < o.Joined
	case s.Progress.Step != o.Progress.Step:
		return s.Progress.Step < o.Progress.Step
	}
	return s.Committed < o.Committed
}

// elect returns the rank whose state all go on from: the lowest of those that are the furthest and
// of which something is pending, so that this is done; otherwise the lowest of the furthest. -1:
// no rank has a state.
func elect(all []standing) int {
	furthest := 0
	for rank := range all {
		if all[furthest].before(all[rank]) {
			furthest = rank
		}
	}
	if !all[furthest].Has {
		return -1
	}
	for rank, s := range all {
		if s.Pending && s.same(all[furthest]) {
			return rank
		}
	}
	return furthest
}
