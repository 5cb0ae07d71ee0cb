package train

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config is a job. What it says is the same on all ranks; what it asks for (Saver, Observer and
// the like) is each rank's own.
type Config struct {
	Lanes int   // G
	Steps int64 // of the whole job, those done before included

	// Accumulate is how many segments of each lane a step reads, one after the other, before it
	// updates by the mean gradient over all of their targets: K. 0: 1.
	Accumulate int
	// LaneGroups is into how many groups of consecutive lanes the batch is cut, which are computed
	// one by one, all in the same shape whoever has them: each rank has whole groups. It divides
	// Lanes. 0: each rank computes all of its lanes together.
	LaneGroups int
	// Canonical says that the groups' gradients are added up in one order, whoever has them: the
	// same bits on any number of ranks. Each Ring's Sum is of a tree then.
	Canonical bool

	Optimizer Optimizer
	Schedule  Schedule
	Clip      Clip
	Local     Local
	// NonfiniteLimit is how many steps in a row may be not finite: the last of so many ends the
	// job. At least 1.
	NonfiniteLimit int64

	// NewSlots makes this rank's part of the slots, if the ranks share them out. Each Ring's Sum is
	// an Updater then. Nil: each rank keeps all slots.
	NewSlots func(SlotsConfig) (Slots, error)

	// EvalEvery is how many steps lie between two evaluations, where the Task has something to
	// evaluate on; 0: one is at each epoch's end. Another is after the last step.
	EvalEvery int64

	// EarlyStop ends the job when so many evaluations in a row that were due by EvalEvery have not
	// improved on the best of them; 0: never.
	EarlyStop int64

	// Save says that the Saver of whoever is rank 0 gets a snapshot every SaveEvery steps (0:
	// never), and after the last step, which may be where the job was asked to stop.
	Save      bool
	SaveEvery int64
	// SaveBest says that it also gets one after each evaluation due by EvalEvery that is the best
	// so far.
	SaveBest bool
	Saver    Saver
	// SaveTimeout bounds each wait for the Saver; 0: DefaultSaveTimeout.
	SaveTimeout time.Duration

	// Sample, that of rank 0, shows what was learned every SampleEvery steps (0: never), and after
	// the last step of a job that was not stopped; nil: none. The other ranks meet rank 0
	// again in the ring only, so it must be short beside the ring's timeout.
	Sample      func(ctx context.Context, step int64) (string, error)
	SampleEvery int64

	// CheckEvery is how many steps lie between two roll calls, in which the ranks compare what they
	// have and how fast they are; 0: never.
	CheckEvery int64
	// EvictStragglers is how many times slower than the others a rank must be, for a few roll calls
	// in a row, to end the ring with an agree.StragglerError; 0: that never happens.
	EvictStragglers float64

	Observer  Observer  // nil: nobody
	Ledger    Ledger    // nil: none
	Rehearsal Rehearsal // nil: nothing goes wrong on purpose
	Tracer    Tracer    // nil: none
	Beat      func()    // called when a phase of a step begins: a sign of life; nil: nobody looks

	// HostMemory says that the device's memory is the host's, as a CPU's is. The gradient is then
	// summed over the ranks where it lies, and is copied otherwise.
	HostMemory bool

	Now func() time.Time // nil: time.Now
}

// maxAccumulate bounds Config.Accumulate.
const maxAccumulate = 1 << 20

// DefaultSaveTimeout bounds a wait for the Saver unless Config says otherwise.
const DefaultSaveTimeout = 10 * time.Minute

// complete checks c and fills in what was left out.
func (c *Config) complete(segmentsPerEpoch int64, evaluates bool) error {
	if c.Accumulate == 0 {
		c.Accumulate = 1
	}
	for _, check := range []func() error{
		c.validateShape, c.validatePasses, c.validateIntervals, c.validateRollCall,
		c.Optimizer.validate, c.Schedule.validate, c.Clip.validate,
		func() error { return c.Local.validate(c.Clip) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.EarlyStop > 0 && !evaluates {
		return fmt.Errorf("--early-stop %d: there is nothing to evaluate on", c.EarlyStop)
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
		c.Observer = silence{}
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
	byGroup := c.Clip.Scope == ScopeGroup
	switch {
	case c.Accumulate < 1 || c.Accumulate > maxAccumulate:
		return fmt.Errorf("--accumulate %d: must be 1 to %d", c.Accumulate, maxAccumulate)
	case c.LaneGroups < 0 || c.LaneGroups > 0 && c.Lanes%c.LaneGroups != 0:
		return fmt.Errorf("--lane-groups %d: must divide --batch %d", c.LaneGroups, c.Lanes)
	case c.LaneGroups == 0 && (c.Canonical || byGroup):
		return errors.New("train: --reduce canonical and --clip-scope group need lane groups")
	case c.Local.on() && c.LaneGroups > 0:
		return errors.New("--sync-every has each worker train its lanes together: it is not for " +
			"--lane-groups, --reduce canonical and --clip-scope group")
	case c.NewSlots != nil && (c.Canonical || c.Local.on()):
		return errors.New("--shard-optimizer is not for --reduce canonical and --sync-every: " +
			"each worker has the sum of its own range only, of each step's gradient")
	case c.Canonical && c.Clip.beforeRing() && !byGroup:
		return errors.New("--reduce canonical gives the same bits on any number of workers, and " +
			"--clip-scope worker clips by worker: give --clip-scope group, global, or --clip 0")
	}
	return nil
}

// Overlaps says whether the ranks may begin to sum a gradient while backward goes on: none of them
// has to know its norm before, nor to add up those of its lane groups.
func (c *Config) Overlaps() bool {
	return !c.Clip.beforeRing() && !c.Local.on() && c.LaneGroups == 0
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
		return errors.New("train: the job is to be saved, and there is no Saver")
	}
	return nil
}
