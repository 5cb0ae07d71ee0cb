// Package budget chooses the size of a language model and the number of its steps for a time to
// train. It measures nothing itself: its caller knows the machine. It may import internal/app and
// the messages.
package budget

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// TokensPerParameter is how many tokens a model reads for each of its parameters: with fewer a
	// smaller model reaches a lower loss in the same time (Hoffmann et al. 2022, arXiv:2203.15556,
	// table 3, for transformers).
	TokensPerParameter = 20
	// maxEpochs is the most passes over a text: the default of --epochs, whose dropout is the
	// strongest of dropouts.
	maxEpochs = 30
	// reserve is the share of the time for the start, evaluations and checkpoints.
	reserve = 0.1
)

// dropoutOf is the dropout for this many passes over a text. A model that sees each token once
// cannot learn the text by heart; the default of 0.4 is for 30 passes.
func dropoutOf(epochs float64) (dropout float64) {
	dropouts := []struct{ epochs, dropout float64 }{{1, 0}, {4, 0.1}, {10, 0.2}, {20, 0.3},
		{maxEpochs, 0.4}}
	for _, d := range dropouts {
		if dropout = d.dropout; epochs <= d.epochs {
			break
		}
	}
	return dropout
}

// ErrTooLarge is the error of a job that the machine has no memory for.
var ErrTooLarge = errors.New("the model does not fit in memory")

// Machine knows what the choice depends on. Both functions take the whole job.
type Machine struct {
	// Parameters is the number of a job's parameters.
	Parameters func(*rondov1.JobSpec) (int64, error)
	// Speed measures the tokens per second of a job's training. It may return ErrTooLarge.
	Speed func(*rondov1.JobSpec) (float64, error)
}

// Choice is a job for a time, and the reason in words.
type Choice struct {
	Spec *rondov1.JobSpec
	Why  []string
}

// Choose sets --hidden, --embed, --dropout and --steps of a job of a language model, unless they
// are given, for a time to train on a text of so many tokens. The width is the largest with which
// the time suffices for TokensPerParameter tokens for each parameter and the memory for training,
// and the least otherwise.
func Choose(
	job *rondov1.JobSpec, given func(flag string) bool, tokens int64, limit time.Duration,
	on Machine,
) (*Choice, error) {
	for _, flag := range []string{"steps", "epochs"} {
		if given(flag) {
			return nil, app.Usagef("--time chooses the number of steps: leave out --%s, or "+
				"--time", flag)
		}
	}
	if job.Task != "lm" {
		return nil, app.Usagef("--time is for --task lm, and the task is %s: give --epochs or "+
			"--steps instead", job.Task)
	}
	seconds := limit.Seconds() * (1 - reserve)
	if !(seconds > 0) {
		return nil, app.Usagef("--time %v: must be above 0", limit)
	}
	try := []int64{64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536}
	if given("hidden") {
		try = []int64{job.Hidden}
	}
	var best *trial
	for _, width := range try {
		t, err := measure(job, given, width, on)
		if best != nil && errors.Is(err, ErrTooLarge) {
			break
		}
		if err != nil {
			return nil, err
		}
		t.reads = min(t.speed*seconds, maxEpochs*float64(tokens))
		if best != nil && t.reads < float64(TokensPerParameter*t.parameters) {
			break // and a larger one reads less
		}
		best = t
	}
	return best.choose(given, tokens, limit), nil
}

// trial is a job of one width.
type trial struct {
	spec       *rondov1.JobSpec
	parameters int64
	speed      float64 // tokens per second
	reads      float64 // tokens in the time
}

func measure(
	job *rondov1.JobSpec, given func(string) bool, width int64, on Machine,
) (t *trial, err error) {
	t = &trial{spec: proto.CloneOf(job)}
	t.spec.Hidden = width
	if !given("embed") && job.Tokenizer != "char" { // one-hot, each token is a row of weights
		t.spec.Embed = width
	}
	if t.parameters, err = on.Parameters(t.spec); err != nil {
		return nil, err
	}
	if t.speed, err = on.Speed(t.spec); err != nil {
		return nil, err
	}
	if !(t.speed > 0) {
		return nil, fmt.Errorf("--time: training was measured at %v tokens/s", t.speed)
	}
	return t, nil
}

// choose sets the number of steps and the dropout of the width that was chosen.
func (t *trial) choose(given func(string) bool, tokens int64, limit time.Duration) *Choice {
	spec, reads := t.spec, t.reads
	epochs := reads / float64(tokens)
	each := spec.Batch * spec.Bptt * max(1, spec.Accumulate)
	spec.Epochs, spec.Steps = 0, max(1, int64(reads)/each)
	if !given("dropout") {
		spec.Dropout = dropoutOf(epochs)
	}
	c := &Choice{Spec: spec}
	c.Why = append(c.Why, fmt.Sprintf("--time %v: --hidden %d --embed %d --layers %d --dropout %g "+
		"--steps %d", limit, spec.Hidden, spec.Embed, spec.Layers, spec.Dropout, spec.Steps))
	c.Why = append(c.Why, fmt.Sprintf("this machine trains it at %.0f tokens/s, measured just "+
		"now; so it reads %.3g tokens in %v, %.1f times the text of %d, and %.1f for each of its "+
		"%d parameters", t.speed, reads, time.Duration(reads/t.speed*float64(time.Second)).
		Round(time.Second), epochs, tokens, reads/float64(t.parameters), t.parameters))
	return c
}
