package job

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"rondo/job/jobspec"
	"rondo/model"
	"rondo/train/optim"
)

// unread is data with epochs of no segments.
type unread struct{ Data }

func (unread) SegmentsPerEpoch() int64 { return 0 }

// TestRegularisersReachTheModel: each flag has its own field of the network's configuration, and no
// flag another's.
func TestRegularisersReachTheModel(t *testing.T) {
	const vocabulary = 9
	config := func(args ...string) model.Config {
		c, err := ModelConfig(parsed(t, append([]string{"rondo", "train", "--embed", "8",
			"--dropout", "0.1"}, args...)), vocabulary)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for flag, set := range map[string]func(*model.Config){
		"--dropout-input":  func(c *model.Config) { c.DropoutInput = 0.3 },
		"--dropout-output": func(c *model.Config) { p := 0.3; c.DropoutOutput = &p },
		"--dropout-words":  func(c *model.Config) { c.DropoutWords = 0.3 },
		"--weight-drop":    func(c *model.Config) { c.WeightDrop = 0.3 },
		"--activation-l2":  func(c *model.Config) { c.ActivationL2 = 0.3 },
		"--temporal-l2":    func(c *model.Config) { c.TemporalL2 = 0.3 },
	} {
		want := config()
		set(&want)
		if got := config(flag, "0.3"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", flag, got, want)
		}
	}
}

// TestAverageRanges: what --average takes and refuses at the ends of its ranges, optim does too.
func TestAverageRanges(t *testing.T) {
	for text, want := range map[string]struct {
		optim.Averaging
		takes bool
	}{
		"none":     {optim.Averaging{}, true},
		"polyak:0": {optim.Averaging{Kind: optim.Polyak}, true},
		fmt.Sprint("polyak:", math.MaxInt64): {optim.Averaging{Kind: optim.Polyak,
			From: math.MaxInt64}, true},
		"polyak:-1": {optim.Averaging{Kind: optim.Polyak, From: -1}, false},
		"ema:0":     {optim.Averaging{Kind: optim.EMA}, true},
		"ema:-1e-9": {optim.Averaging{Kind: optim.EMA, Decay: -1e-9}, false},
		fmt.Sprint("ema:", optim.MaxDecay): {optim.Averaging{Kind: optim.EMA,
			Decay: optim.MaxDecay}, true},
		fmt.Sprint("ema:", math.Nextafter(optim.MaxDecay, 1)): {optim.Averaging{Kind: optim.EMA,
			Decay: math.Nextafter(optim.MaxDecay, 1)}, false},
		"nt:1": {optim.Averaging{Kind: optim.NonMonotone, Patience: 1}, true},
		"nt:0": {optim.Averaging{Kind: optim.NonMonotone}, false},
		fmt.Sprint("nt:", optim.MaxPatience): {optim.Averaging{Kind: optim.NonMonotone,
			Patience: optim.MaxPatience}, true},
		fmt.Sprint("nt:", optim.MaxPatience+1): {optim.Averaging{Kind: optim.NonMonotone,
			Patience: optim.MaxPatience + 1}, false},
	} {
		_, err := jobspec.ParseAverage(text)
		if (err == nil) != want.takes || (want.Validate() == nil) != want.takes {
			t.Errorf("--average %s: %v, and %v; taken: %v", text, err, want.Validate(), want.takes)
		}
		if !want.takes {
			continue
		}
		spec := parsed(t, []string{"rondo", "train", "--average", text, "--steps", "5"})
		if c, err := TrainConfig(spec, unread{}); err != nil || c.Average != want.Averaging {
			t.Errorf("--average %s: %+v, %v", text, c.Average, err)
		}
	}
}

// TestWarmupEnds: the learning rate of a job reaches --lr.
func TestWarmupEnds(t *testing.T) {
	for warmup, reached := range map[string]bool{"5": true, "6": false} {
		spec := parsed(t, []string{"rondo", "train", "--warmup-steps", warmup, "--steps", "5"})
		if _, err := TrainConfig(spec, unread{}); (err == nil) != reached {
			t.Errorf("--warmup-steps %s of 5 steps: %v", warmup, err)
		}
	}
}
