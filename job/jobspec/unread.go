package jobspec

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	rondov1 "rondo/proto/rondo/v1"
)

// checkRead refuses flags on the command line that the job does not read. Keys of --config and of a
// recipe may be there for another value of a flag that overrides them.
func (f *Flags) checkRead(spec *rondov1.JobSpec) error {
	for _, field := range fields() {
		if wanted := unread(spec, field.desc.Name()); wanted != "" &&
			f.set.Changed(field.flagName()) {
			return usagef("--%s is for %s: leave it out", field.flagName(), wanted)
		}
	}
	return nil
}

// unread says which value of another flag a field is for, if the job has another value; empty: the
// job reads the field, or Validate has refused it.
func unread(spec *rondov1.JobSpec, field protoreflect.Name) string {
	switch field {
	case "vocabulary_size":
		return otherThan("tokenizer", spec.Tokenizer, "bpe")
	case "min_frequency":
		if TokenizerFile(spec) != "" {
			return "--tokenizer char, word or bpe, and that is " + spec.Tokenizer
		}
	case "momentum":
		return otherThan("optimizer", spec.Optimizer, "momentum", "nesterov")
	case "beta1", "beta2":
		return otherThan("optimizer", spec.Optimizer, "adam", "adamw")
	case "rho":
		return otherThan("optimizer", spec.Optimizer, "rmsprop")
	case "epsilon":
		return otherThan("optimizer", spec.Optimizer, "adam", "adamw", "rmsprop", "adagrad")
	case "lr_decay":
		return otherThan("lr-schedule", spec.LrSchedule, "step", "plateau")
	case "lr_step_every", "lr_hold":
		return otherThan("lr-schedule", spec.LrSchedule, "step")
	case "lr_patience":
		return otherThan("lr-schedule", spec.LrSchedule, "plateau")
	case "sample_every", "sample_prefix", "sample_temperature":
		if spec.SampleTokens == 0 {
			return "--sample-tokens above 0"
		}
	case "outer_optimizer", "outer_lr", "outer_momentum":
		return unreadOuter(spec, field)
	}
	return ""
}

// unreadOuter is unread for the fields of the outer optimizer.
func unreadOuter(spec *rondov1.JobSpec, field protoreflect.Name) string {
	switch {
	case spec.SyncEvery <= 1:
		return "--sync-every above 1"
	case field == "outer_lr":
		return otherThan("outer-optimizer", spec.OuterOptimizer, "sgd", "nesterov")
	case field == "outer_momentum":
		return otherThan("outer-optimizer", spec.OuterOptimizer, "nesterov")
	}
	return ""
}

// otherThan names the values of a flag, unless it has one of them.
func otherThan(flag, value string, values ...string) string {
	if slices.Contains(values, value) {
		return ""
	}
	return fmt.Sprintf("--%s %s, and that is %s", flag, strings.Join(values, " or "), value)
}
