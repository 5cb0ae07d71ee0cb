package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"rondo/train/agree"
	"rondo/train/optim"
)

// Config is a job's training configuration. The values are the same on all ranks; the interfaces
// (Saver, Observer and others) are each rank's own.
type Config struct {
	Lanes int   // G
	Steps int64 // of the whole job, including those already done

	// Accumulate is gradient accumulation: segments per lane and update, K. The update uses the
	// mean gradient over all their targets. 0: 1.
	Accumulate int
	// LaneGroups is the number of groups of consecutive lanes. Each group is computed by itself, so
	// its shape does not depend on the rank; each rank has whole groups. It divides Lanes. 0: each
	// rank computes all its lanes together.
	LaneGroups int
	// Canonical sums the groups' gradients in one fixed order, so that the bits do not depend on
	// the number of ranks. Each Ring's Sum must then be a tree sum.
	Canonical bool

	Optimizer optim.Optimizer
	Schedule  optim.Schedule
	// RateScale, if set, multiplies the learning rate of a step, from 0. It must depend on the step
	// alone.
	RateScale func(step int64) float64
	Clip      optim.Clip
	Local     optim.Local
	// Average is the average of the parameters that is evaluated, sampled and saved.
	Average optim.Averaging
	// NonfiniteLimit is how many non-finite steps in a row end the job. At least 1.
	NonfiniteLimit int64
	// RandomStep takes a random step in the place of one that is not finite. It is drawn by Seed.
	RandomStep bool
	Seed       uint64

	// NewSlots makes this rank's slots if the ranks share them out. Each Ring's Sum must then be an
	// Updater. Nil: each rank keeps all slots.
	NewSlots func(agree.SlotsConfig) (Slots, error)

	// EvalEvery is the number of steps between evaluations, if the Task has evaluation data; 0:
	// evaluate at each epoch's end. The job also evaluates after the last step.
	EvalEvery int64

	// EarlyStop ends the job after this many evaluations in a row, of those due by EvalEvery,
	// without a new best loss; 0: never.
	EarlyStop int64

	// Save gives rank 0's Saver a snapshot every SaveEvery steps (0: never) and after the last
	// step, also when the job is stopped.
	Save      bool
	SaveEvery int64
	// SaveBest also saves after each evaluation due by EvalEvery that is the best so far.
	SaveBest bool
	Saver    Saver
	// SaveTimeout bounds each wait for the Saver; 0: DefaultSaveTimeout.
	SaveTimeout time.Duration

	// Sample generates a text on rank 0 every SampleEvery steps (0: never), and after the last step
	// of a job that was not stopped; nil: none. The other ranks wait in the ring meanwhile, so it
	// must take much less than the ring's timeout.
	Sample      func(ctx context.Context, step int64) (string, error)
	SampleEvery int64

	// CheckEvery is the number of steps between roll calls, in which the ranks compare digests and
	// speed; 0: never.
	CheckEvery int64
	// EvictStragglers ends the ring with an agree.StragglerError when a rank is this many times
	// slower than the others for several roll calls in a row; 0: never.
	EvictStragglers float64

	Observer Observer // nil: no reports
	Ledger   Ledger   // nil: none
	// Record is told on rank 0 of each completed step, after the work that is due then. The record
	// has a digest if the ranks have compared theirs. Nil: nobody is told.
	Record    func(agree.Record)
	Rehearsal Rehearsal // nil: no faults are injected
	Tracer    Tracer    // nil: none
	Beat      func()    // called at each phase of a step, as a sign of life; nil: none

	// HostMemory: device memory is host memory, as on a CPU. The gradient is then summed in place;
	// otherwise it is copied to the host.
	HostMemory bool

	Now func() time.Time // nil: time.Now
}

// maxAccumulate bounds Config.Accumulate.
const maxAccumulate = 1 << 20

// DefaultSaveTimeout bounds a wait for the Saver unless Config says otherwise.
const DefaultSaveTimeout = 10 * time.Minute

// rate is the learning rate of a step, from 0, after some reductions of a plateau.
func (c *Config) rate(step, reductions int64) float64 {
	rate := c.Schedule.At(step, c.Steps, reductions)
	if c.RateScale != nil {
		rate *= c.RateScale(step)
	}
	return rate
}

// complete validates c and sets defaults.
func (c *Config) complete(segmentsPerEpoch int64, evaluates bool) error {
	if c.Accumulate == 0 {
		c.Accumulate = 1
	}
	for _, check := range []func() error{
		c.validateShape, c.validatePasses, c.validateIntervals, c.validateRollCall,
		c.Optimizer.Validate, c.Schedule.Validate, c.Clip.Validate, c.validateRandom,
		func() error { return c.Local.Validate(c.Clip) }, c.Average.Validate,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.EarlyStop > 0 && !evaluates {
		return fmt.Errorf("--early-stop %d: there is nothing to evaluate on", c.EarlyStop)
	}
	if c.Average.Kind == optim.NonMonotone && !evaluates {
		return errors.New("--average nt: there is nothing to evaluate on")
	}
	if segmentsPerEpoch < 1 {
		return fmt.Errorf("train: an epoch of %d segments", segmentsPerEpoch)
	}
	if c.Schedule.Every == 0 {
		each := int64(c.Accumulate)
		c.Schedule.Every = (segmentsPerEpoch + each - 1) / each
	}
	if c.SaveTimeout == 0 {
		c.SaveTimeout = DefaultSaveTimeout
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

func (c *Config) validateShape() error {
	if c.Lanes < 1 {
		return fmt.Errorf("--batch %d: must be at least 1", c.Lanes)
	}
	return nil
}

func (c *Config) validatePasses() error {
	byGroup := c.Clip.Scope == optim.ScopeGroup
	switch {
	case c.Accumulate < 1 || c.Accumulate > maxAccumulate:
		return fmt.Errorf("--accumulate %d: must be 1 to %d", c.Accumulate, maxAccumulate)
	case c.LaneGroups < 0 || c.LaneGroups > 0 && c.Lanes%c.LaneGroups != 0:
		return fmt.Errorf("--lane-groups %d: must divide --batch %d", c.LaneGroups, c.Lanes)
	case c.LaneGroups == 0 && (c.Canonical || byGroup):
		return errors.New("train: --reduce canonical and --clip-scope group need lane groups")
	case c.Local.On() && c.LaneGroups > 0:
		return errors.New("--sync-every cannot be used with --lane-groups, --reduce canonical " +
			"or --clip-scope group: each worker trains its lanes together")
	case c.NewSlots != nil && (c.Canonical || c.Local.On()):
		return errors.New("--shard-optimizer cannot be used with --reduce canonical or " +
			"--sync-every: each worker has only its own range of each step's summed gradient")
	case c.Average.On() && (c.NewSlots != nil || c.Local.On()):
		return errors.New("--average cannot be used with --shard-optimizer or --sync-every: each " +
			"worker averages all parameters after each step")
	case c.Canonical && c.Clip.BeforeSum() && !byGroup:
		return errors.New("--reduce canonical gives the same bits on any number of workers, and " +
			"--clip-scope worker clips by worker: give --clip-scope group, global, or --clip 0")
	}
	return nil
}

// Overlaps reports whether the ranks may begin to sum a gradient during the backward pass: no rank
// needs its norm first, and none adds up lane groups.
func (c *Config) Overlaps() bool {
	return !c.Clip.BeforeSum() && !c.Local.On() && c.LaneGroups == 0
}

func (c *Config) validateRollCall() error {
	if c.CheckEvery < 0 {
		return fmt.Errorf("--check-every %d: must be at least 0", c.CheckEvery)
	}
	if f := c.EvictStragglers; f != 0 && !(f > 1 && isFinite(f)) {
		return fmt.Errorf("--evict-stragglers %v: must be 0 (never), or above 1", f)
	}
	return nil
}

func (c *Config) validateIntervals() error {
	if c.Steps < 1 {
		return errors.New("there is no step to do: give --epochs or --steps")
	}
	if c.NonfiniteLimit < 1 {
		return fmt.Errorf("--nonfinite-limit %d: must be at least 1", c.NonfiniteLimit)
	}
	for _, every := range []struct {
		flag  string
		steps int64
	}{
		{"--eval-every", c.EvalEvery}, {"--checkpoint-every", c.SaveEvery},
		{"--sample-every", c.SampleEvery}, {"--early-stop", c.EarlyStop},
	} {
		if every.steps < 0 {
			return fmt.Errorf("%s %d: must be at least 0", every.flag, every.steps)
		}
	}
	if c.SaveTimeout < 0 {
		return fmt.Errorf("train: a save timeout of %v", c.SaveTimeout)
	}
	if c.Save && c.Saver == nil {
		return errors.New("train: Config.Save needs a Saver, and there is no Saver")
	}
	return nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
