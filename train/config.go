package train

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config is a job as one rank sees it. It is the same on all ranks, but for Rank, Saver, Sample
// and Observer.
type Config struct {
	Rank     int
	LaneEnds []int // rank r holds the lanes [LaneEnds[r-1], LaneEnds[r]) of the G lanes
	BPTT     int   // T
	Steps    int64 // of the whole job, those done before included

	Optimizer Optimizer
	Schedule  Schedule
	Clip      Clip
	// NonfiniteLimit is how many steps in a row may be not finite: the last of so many ends the
	// job. At least 1.
	NonfiniteLimit int64

	// Evaluation is the text to evaluate on; nil: none. It happens every EvalEvery steps (0: at
	// each epoch's end), and after the last step.
	Evaluation Evaluation
	EvalEvery  int64

	// Save says that rank 0's Saver gets a snapshot every SaveEvery steps (0: never), and after
	// the last step, which may be where the job was asked to stop.
	Save      bool
	SaveEvery int64
	Saver     Saver
	// SaveTimeout bounds each wait for the Saver; 0: DefaultSaveTimeout.
	SaveTimeout time.Duration

	// Sample, on rank 0, writes text with the model every SampleEvery steps (0: never), and after
	// the last step of a job that was not stopped; nil: none. The other ranks meet rank 0 again
	// in the ring only, so it must be short beside the ring's timeout.
	Sample      func(ctx context.Context, step int64) (string, error)
	SampleEvery int64

	Observer Observer // nil: nobody

	// HostMemory says that the device's memory is the host's, as a CPU's is. The gradient is then
	// summed over the ranks where it lies, and is copied otherwise.
	HostMemory bool

	Now func() time.Time // nil: time.Now
}

// DefaultSaveTimeout bounds a wait for the Saver unless Config says otherwise.
const DefaultSaveTimeout = 10 * time.Minute

// lanes returns the rank's lanes [first, first+count), and G.
func (c *Config) lanes() (first, count, all int) {
	if c.Rank > 0 {
		first = c.LaneEnds[c.Rank-1]
	}
	return first, c.LaneEnds[c.Rank] - first, c.LaneEnds[len(c.LaneEnds)-1]
}

// complete checks c and fills in what was left out.
func (c *Config) complete(stepsPerEpoch int64) error {
	for _, check := range []func() error{
		c.validateRing, c.validateIntervals, c.Optimizer.validate, c.Schedule.validate,
		c.Clip.validate,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if stepsPerEpoch < 1 {
		return fmt.Errorf("train: an epoch of %d steps", stepsPerEpoch)
	}
	if c.Schedule.Every == 0 {
		c.Schedule.Every = stepsPerEpoch
	}
	if c.EvalEvery == 0 {
		c.EvalEvery = stepsPerEpoch
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

func (c *Config) validateRing() error {
	if n := len(c.LaneEnds); n < 1 || n > maxRanks || c.Rank < 0 || c.Rank >= n {
		return fmt.Errorf("train: rank %d of %d: want 0 to N-1 of at most %d", c.Rank, n, maxRanks)
	}
	end := 0
	for rank, next := range c.LaneEnds {
		if next <= end {
			return fmt.Errorf("train: rank %d's lanes end at %d, not after %d: each rank needs "+
				"a lane", rank, next, end)
		}
		end = next
	}
	if c.BPTT < 1 {
		return fmt.Errorf("--bptt %d: must be at least 1", c.BPTT)
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
		{"--sample-every", c.SampleEvery},
	} {
		if every.steps < 0 {
			return fmt.Errorf("%s %d: must be at least 0", every.flag, every.steps)
		}
	}
	if c.SaveTimeout < 0 {
		return fmt.Errorf("train: a save timeout of %v", c.SaveTimeout)
	}
	if c.Save && c.Rank == 0 && c.Saver == nil {
		return errors.New("train: rank 0 is to save, and has no Saver")
	}
	return nil
}
