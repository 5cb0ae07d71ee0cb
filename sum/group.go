package sum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rondo/compute"
)

// GroupError is what all ranks end a step with when the Group of some has not summed the gradient,
// and the ring is sound: they may go on in it without a Group. No rank has completed the step.
type GroupError struct {
	Ranks  int   // whose Group has not summed
	Faulty int   // those of them whose own part has failed; 0: all came, but too late for others
	Own    error // how this rank's own part has failed; nil: it has not
}

func (e *GroupError) Error() string {
	text := fmt.Sprintf("the gradient was not summed between the devices, by %d of the ranks",
		e.Ranks)
	switch {
	case e.Own != nil:
		text += ": " + e.Own.Error()
	case e.Faulty == 0:
		text += ", which have waited for others in vain"
	}
	return text
}

// Unwrap returns how this rank's part has failed, if it has.
func (e *GroupError) Unwrap() error { return e.Own }

// UnmetError is what a Group's AllReduce fails with when it gave up before the others came to it.
// It says nothing of this rank's own part.
type UnmetError struct{ Err error }

func (e *UnmetError) Error() string { return e.Err.Error() }

// Unwrap returns why it gave up.
func (e *UnmetError) Unwrap() error { return e.Err }

// What Group's tail has behind the step's, each summed over the ranks.
const (
	unsummed  = iota // ranks whose Group has not summed the gradient
	faulty           // those of them whose own part has failed
	groupTail        // how many there are
)

// Group sums the gradient between the ranks' devices, where it lies.
//
// The tail follows around the ring. When any rank completes that, every rank has the sum, or all
// hear that one has not. So a step that is completed is complete on all, whoever fails when. If a
// Group fails because the ring does, the ring says why. If one rank's Group fails, the others must
// leave theirs before the failed rank's ring timeout.
type Group struct {
	ring     Ring
	group    compute.Group
	gradient *compute.Mirror
	failed   error     // how the last sum has
	tail     []float32 // used again
}

// NewGroup returns the sum by a group. It ends a wait when the ring fails.
func NewGroup(gradient *compute.Mirror, ring Ring, group compute.Group) *Group {
	return &Group{ring: ring, group: group, gradient: gradient,
		tail: make([]float32, len(gradient.Behind())+groupTail)}
}

// Begin implements train.Sum.
func (g *Group) Begin(context.Context, int64, float64) (met bool, err error) { return false, nil }

// Resume implements train.Sum.
func (g *Group) Resume(int64, int64, bool) {}

// Early implements train.Sum.
func (g *Group) Early() bool { return false }

// Touch implements train.Sum.
func (g *Group) Touch([]int32) {}

// Rule implements train.Sum.
func (g *Group) Rule(_ int64, u compute.Update) compute.Update { return u }

// Stage implements train.Sum.
func (g *Group) Stage() []float32 { return nil }

// Ready implements train.Sum.
func (g *Group) Ready(context.Context, int) {}

// Begun implements train.Sum.
func (g *Group) Begun() int { return 0 }

// Load implements train.Sum.
func (g *Group) Load(context.Context) {}

// Sum implements train.Sum. A failure is told by Finish, on all ranks.
func (g *Group) Sum(ctx context.Context) (busy time.Duration, err error) {
	g.failed = g.group.AllReduce(ctx, g.gradient.Device)
	return 0, nil
}

// Finish implements train.Sum.
func (g *Group) Finish(ctx context.Context, out, in []float32) error {
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
