package agree

import "fmt"

// Version names the state of a job: the number of completed steps, and the generation of the ring
// that completed the last one. Ranks that complete a step in one ring have the same parameters, to
// the last bit.
type Version struct{ Step, Ring int64 }

// Standing describes a rank's state when a ring begins. P is the job's progress, a value of fixed
// size. The ranks copy it from the one whose state they go on from.
type Standing[P any] struct {
	Has     bool // this rank has a state; if not, the rest is zero but Split
	Found   bool // the state is that of the snapshot that rank 0 looked for
	Looking bool // rank 0 still looks for a snapshot; the rest is zero
	Pending bool // work that is due after the step was broken off
	Stopped bool // the job ends after the step

	Joined   int64 // the generation of the last ring that this rank joined with the state
	Version  Version
	Digest   uint64 // of the parameters
	Record   Record // from rank 0 alone
	Progress P

	// Split: no more than half of the ranks agreed on the state of this version, so this rank has
	// dropped its own. The zero Version: there was no such split. It may be set without a state.
	Split Version
}

// Record is what the job's store has of the furthest state that a ring has completed. The zero
// Record says nothing.
type Record struct {
	Version
	Digest uint64 // of the parameters; 0: nobody has compared it
}

// refutes says whether the record shows that a rank's parameters are wrong.
func (r Record) refutes(has bool, v Version, digest uint64) bool {
	return has && r.Digest != 0 && v == r.Version && digest != r.Digest
}

// beyond says whether the record is of a later step, or of a later ring's step, than a state.
func (r Record) beyond(v Version) bool {
	return r.Ring > v.Ring || r.Ring == v.Ring && r.Step > v.Step
}

// check returns an error for an impossible standing.
func (s Standing[P]) check() error {
	if v := s.Version; v.Step < 0 || v.Ring < 0 || s.Joined < 0 || s.Record.Step < 0 ||
		s.Record.Ring < 0 || s.Split.Step < 0 || s.Split.Ring < 0 {
		return fmt.Errorf("that it has step %d of ring %d, and joined ring %d", v.Step, v.Ring,
			s.Joined)
	}
	return nil
}

// same reports whether two ranks have the same parameters.
func (s Standing[P]) same(o Standing[P]) bool { return s.Has && o.Has && s.Version == o.Version }

// before reports whether the ranks go on from o rather than from s. The ring with the higher
// generation decides, so steps that a rank did in a ring that the others had left do not count.
func (s Standing[P]) before(o Standing[P]) bool {
	switch {
	case s.Has != o.Has:
		return o.Has
	case s.Joined != o.Joined:
		return s.Joined < o.Joined
	case s.Version.Step != o.Version.Step:
		return s.Version.Step < o.Version.Step
	}
	return s.Version.Ring < o.Version.Ring
}

// elect returns the rank whose state all go on from: the lowest of the furthest ranks, or the
// lowest of them that has work pending, so that all do that work. -1: no rank has a state.
func elect[P any](all []Standing[P]) int {
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
