package jobspec

import (
	"strconv"
	"strings"

	rondov1 "rondo/proto/rondo/v1"
)

// Average is a value of --average; none: the zero value. optim.Averaging has the kinds.
type Average struct {
	Kind     string // polyak, ema or nt
	From     int64  // of polyak: the step after which the first parameters count
	Decay    float64
	Patience int // of nt: evaluations
}

// The defaults of --average's values, and their bounds, which are optim's.
const (
	averageDecay    = 0.999
	mostDecay       = 1 - 1.0/(1<<24)
	averagePatience = 5 // of Merity et al. 2018
	mostPatience    = 16
)

// ParseAverage reads the value of --average: none, polyak[:STEP], ema[:DECAY] or nt[:N].
func ParseAverage(text string) (Average, error) {
	kind, value, given := strings.Cut(text, ":")
	a := Average{Kind: kind}
	var takes string
	var valid bool
	var err error
	switch {
	case text == "none":
		return Average{}, nil
	case kind == "polyak":
		takes = "a step, from 0"
		if given {
			a.From, err = strconv.ParseInt(value, 10, 64)
		}
		valid = a.From >= 0
	case kind == "ema":
		takes = "a decay of 0 to 1-2^-24, such as ema:0.999"
		if a.Decay = averageDecay; given {
			a.Decay, err = strconv.ParseFloat(value, 64)
		}
		valid = a.Decay >= 0 && a.Decay <= mostDecay
	case kind == "nt":
		takes = "a number of evaluations from 1 to " + strconv.Itoa(mostPatience)
		if a.Patience = averagePatience; given {
			a.Patience, err = strconv.Atoi(value)
		}
		valid = a.Patience >= 1 && a.Patience <= mostPatience
	default:
		return Average{}, usagef("--average %q is not none, polyak[:STEP], ema[:DECAY] or nt[:N]",
			text)
	}
	if err != nil || !valid {
		return Average{}, usagef("--average %s: %s: takes %s", text, kind, takes)
	}
	return a, nil
}

// validateAverage checks a job that averages its parameters.
func validateAverage(spec *rondov1.JobSpec) error {
	a, err := ParseAverage(spec.Average)
	if err != nil {
		return err
	}
	if a.Patience > 0 && !evaluates(spec) {
		return usagef("--average nt waits until the validation loss gets no better: set " +
			"--eval-corpus or --validation-fraction")
	}
	if a != (Average{}) && (spec.ShardOptimizer || spec.SyncEvery > 1) {
		return usagef("--average needs all parameters on each worker after each step: leave out " +
			"--shard-optimizer and --sync-every")
	}
	return nil
}
