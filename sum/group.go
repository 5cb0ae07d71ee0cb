package sum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rondo/compute"
)

// GroupError is returned on all ranks if the Group of some rank has not summed the gradient. No
// rank has completed the step. The ring is sound: the ranks may go on in it without a Group.
type GroupError struct {
	Ranks  int   // number of ranks whose Group has not summed
	Faulty int   // ranks whose own part failed; 0: all came, but some too late
	Own    error // failure of this rank's own part; nil: none
}

func (e *GroupError) Error() string {
	text := fmt.Sprintf("the devices of %d ranks did not sum the gradient", e.Ranks)
	switch {
	case e.Own != nil:
		text += ": " + e.Own.Error()
	case e.Faulty == 0:
		text += ", because they waited too long for each other"
	}
	return text
}

// Unwrap returns the failure of this rank's part, if any.
func (e *GroupError) Unwrap() error { return e.Own }

// UnmetError is returned by a Group's AllReduce that gave up before the other ranks came to it. It
// does not mean that this rank's own part failed.
type UnmetError struct{ Err error }

func (e *UnmetError) Error() string { return e.Err.Error() }

// Unwrap returns why it gave up.
func (e *UnmetError) Unwrap() error { return e.Err }

// NoOverlap is the part of train.Sum for sums that start only after backward.
type NoOverlap struct{}

// Touch implements train.Sum.
func (NoOverlap) Touch([]int32) {}

// Early implements train.Sum.
func (NoOverlap) Early() bool { return false }

// Ready implements train.Sum.
func (NoOverlap) Ready(context.Context, int) {}

// Begun implements train.Sum.
func (NoOverlap) Begun() int { return 0 }

// Layout of what Group adds behind the step's tail. Each value is summed over the ranks.
const (
	unsummed  = iota // ranks whose Group has not summed
	faulty           // ranks whose own part has failed
	groupTail        // length
)

// Group sums the gradient between the ranks' devices, where it lies.
//
// The tail then goes around the ring. When a rank completes the tail, either every rank has the
// sum, or all learn that some rank has not. So no failure leaves a step completed on some ranks
// only. If a Group fails because the ring does, the ring's error is returned. If one rank's Group
// fails, the others must leave theirs before the failed rank's ring timeout.
type Group struct {
	NoOverlap
	ring     Ring
	group    compute.Group
	gradient *compute.Mirror
	failed   error     // error of the last sum
	tail     []float32 // reused
}

// NewGroup returns the sum by a group. The group must end its wait when the ring fails.
func NewGroup(gradient *compute.Mirror, ring Ring, group compute.Group) *Group {
	return &Group{ring: ring, group: group, gradient: gradient,
		tail: make([]float32, len(gradient.Behind())+groupTail)}
}

// Begin implements train.Sum.
func (g *Group) Begin(context.Context, int64, float64) (bool, error) { return false, nil }

// Resume implements train.Sum.
func (g *Group) Resume(int64, int64, bool) {}

// Rule implements train.Sum.
func (g *Group) Rule(_ int64, u compute.Update) compute.Update { return u }

// Stage implements train.Sum.
func (g *Group) Stage() []float32 { return nil }

// Load implements train.Sum.
func (g *Group) Load(context.Context) {}

// Sum implements train.Sum. Finish reports a failure, on all ranks.
func (g *Group) Sum(ctx context.Context) (busy time.Duration, err error) {
	g.failed = g.group.AllReduce(ctx, g.gradient.Device)
	return 0, nil
}

// Finish implements train.Sum.
func (g *Group) Finish(ctx context.Context, out, in [][]float32) error {
	behind := g.gradient.Behind()
	said := g.tail[copy(g.tail, behind):]
	clear(said)
	var own error
	if g.failed != nil {
		said[unsummed] = 1
		if _, unmet := errors.AsType[*UnmetError](g.failed); !unmet {
			own, said[faulty] = g.failed, 1
		}
	}
	if err := g.ring.AllReduceCarry(ctx, g.tail, out, in); err != nil {
		return err
	}
	copy(behind, g.tail)
	if ranks := int(said[unsummed]); ranks > 0 {
		return &GroupError{ranks, int(said[faulty]), own}
	}
	return nil
}
