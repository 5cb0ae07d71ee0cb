package jobspec

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// Default returns the spec of a job without any flag.
func Default() *rondov1.JobSpec {
	spec := unresolved()
	resolve(spec, nil)
	return spec
}

// Textbook returns the textbooks' job: one layer, plain SGD with a constant rate of 1, no dropout,
// 10 epochs over the whole text, no evaluation, and defaults otherwise.
func Textbook() *rondov1.JobSpec {
	spec := Default()
	spec.Layers, spec.Dropout, spec.Bptt = 1, 0, 35
	spec.Optimizer, spec.Lr, spec.LrSchedule = "sgd", 1, "constant"
	spec.Epochs, spec.ValidationFraction = 10, 0
	return spec
}

// unresolved returns a spec with the defaults in the flags' help.
func unresolved() *rondov1.JobSpec {
	spec := &rondov1.JobSpec{}
	for _, f := range fields() {
		text := f.flag.GetDefault()
		if text == "" {
			continue
		}
		value, err := f.parse(text)
		if err != nil {
			panic("jobspec: default of " + f.flagName() + ": " + err.Error())
		}
		spec.ProtoReflect().Set(f.desc, value)
	}
	return spec
}

// resolve sets the defaults that depend on other fields. Fields in given, which a flag or the YAML
// file sets, stay; only a learning rate of 0 becomes the optimizer's own. Every spec that leaves
// this package has been through resolve.
func resolve(spec *rondov1.JobSpec, given map[protoreflect.Name]bool) {
	if !slices.Contains(task.Networks(), spec.Task) && spec.Task != "" {
		resolveSums(spec, given)
	}
	if task.Once(spec.Task) {
		if !given["epochs"] {
			spec.Epochs = 1
		}
	} else if spec.Steps > 0 && !given["epochs"] {
		spec.Epochs = 0
	}
	if spec.Omega > 0 && !given["device"] {
		spec.Device = "cpu"
	}
	if spec.EvalCorpus != "" && !given["validation_fraction"] {
		spec.ValidationFraction = 0
	}
	if task.OnHost(spec.Task) && !given["device"] {
		spec.Device = "cpu"
	}
	if spec.Task == task.Turing && !given["corpus"] {
		spec.Corpus = "builtin:copy"
	}
	if !task.Segments(spec.Task) && spec.Task != task.Turing && !given["tokenizer"] {
		spec.Tokenizer = "word"
	}
	if spec.Sequences && !given["sampling"] {
		spec.Sampling = "random"
	}
	if spec.Task == task.Fill && !given["bidirectional"] {
		spec.Bidirectional = true
	}
	if spec.Task == task.Translate || spec.Task == task.Describe {
		if !given["normalize"] {
			spec.Normalize = "punctuation"
		}
		if !given["embed"] {
			spec.Embed = spec.Hidden
		}
	}
	if (spec.Task == task.MLP || spec.Task == task.Tree) && !given["embed"] {
		spec.Embed = spec.Hidden
	}
	if isBag(spec) && spec.Embed > 0 && !given["hidden"] {
		spec.Hidden = spec.Embed
	}
	if spec.Lr == 0 && slices.Contains(task.Networks(), spec.Task) {
		spec.Lr = ownRate(spec.Optimizer)
	}
}

// isBag reports whether a job's network has no hidden width but that of its embedding.
func isBag(spec *rondov1.JobSpec) bool { return spec.Task == task.Tree && spec.TreeCell == "bag" }

// --bptt of tasks that sum up their data: few steps, because each sends all sums.
const (
	countedTokens = 65536
	summedRows    = 16384
)

// resolveSums sets the defaults of a task that sums up its data.
func resolveSums(spec *rondov1.JobSpec, given map[protoreflect.Name]bool) {
	if !given["bptt"] {
		spec.Bptt = countedTokens
		if spec.Task == task.Reservoir {
			spec.Bptt = summedRows
		}
	}
}

// ownRate is an optimizer's default learning rate. SGD's is the textbooks', for recurrent networks
// with clipped gradients. Momentum 0.9 multiplies a step by ten, so its rate is a tenth of that.
// The others divide by the gradient's size: their rate is about a parameter's change in a step, and
// adagrad's change shrinks from there.
func ownRate(optimizer string) float64 {
	switch optimizer {
	case "sgd":
		return 1
	case "momentum", "nesterov":
		return 0.1
	case "adam", "adamw":
		return 0.003
	case "rmsprop":
		return 0.001
	case "adagrad":
		return 0.03
	}
	return 0 // Validate reports an unknown optimizer
}
