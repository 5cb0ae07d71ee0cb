// Package jobspec has the defaults, flags, YAML file and checks of the JobSpec message. It reads
// them from the message's descriptor (option rondo.v1.flag), so a field, its flag and its YAML key
// cannot disagree. It does not act on the values. It may import proto, compute for the table of
// cells, task for the names of tasks, job/recipe, and rehearsal for the grammar of --inject.
package jobspec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"rondo/compute"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// A UsageError is a user's mistake in a flag, a key of the YAML file, or their combination.
// Commands exit with code 2 for it.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

func usagef(format string, a ...any) error {
	return &UsageError{text: fmt.Sprintf(format, a...)}
}

// NoCheckpoints is the --checkpoint-dir of a job that keeps no model.
const NoCheckpoints = "none"

// KeepsModel reports whether a submitted job has a folder for checkpoints. `rondo train` fills in
// the folder before it submits a job; other jobs without one keep no model.
func KeepsModel(spec *rondov1.JobSpec) bool {
	return spec.CheckpointDir != "" && spec.CheckpointDir != NoCheckpoints
}

// ValidateFields checks every field against its choices and bounds. The error is a *UsageError that
// names the flag.
func ValidateFields(spec *rondov1.JobSpec) error {
	for _, f := range fields() {
		if err := f.check(spec.ProtoReflect().Get(f.desc)); err != nil {
			return err
		}
	}
	return nil
}

// Validate is ValidateFields, and checks the fields against each other.
func Validate(spec *rondov1.JobSpec) error {
	if err := ValidateFields(spec); err != nil {
		return err
	}
	for _, validate := range []func(*rondov1.JobSpec) error{validateTask, validateModel,
		validateRun, validateSync, validateBuckets, validateDevice, validateCompress,
		validateReduction, validateShards, validateWorkers, validateDeadlines, validateRehearsal} {
		if err := validate(spec); err != nil {
			return err
		}
	}
	return nil
}

// validateTask refuses flags that the task does not read, unless they have their defaults.
func validateTask(spec *rondov1.JobSpec) error {
	defaults := unresolved().ProtoReflect()
	for _, f := range fields() {
		tasks := tasksOf(f.desc.Name())
		if tasks == nil || slices.Contains(tasks, spec.Task) ||
			spec.ProtoReflect().Get(f.desc).Equal(defaults.Get(f.desc)) {
			continue
		}
		return usagef("--%s is for --task %s, and the task is %s: leave it out", f.flagName(),
			strings.Join(tasks, " or "), spec.Task)
	}
	if device, err := ParseDevice(spec.Device); task.OnHost(spec.Task) &&
		(err != nil || device != (Device{})) {
		return usagef("--device %s: --task %s computes on the CPU: leave it out", spec.Device,
			spec.Task)
	}
	if task.Once(spec.Task) && spec.Epochs != 1 {
		return usagef("--epochs %d: --task %s reads the data once: leave it out", spec.Epochs,
			spec.Task)
	}
	if spec.Task == task.Describe && spec.Vectors == "" {
		return usagef("--task describe needs --vectors, a file with a vector in each row")
	}
	return validateTokenizer(spec)
}

func validateModel(spec *rondov1.JobSpec) error {
	if spec.Task == task.LM && spec.Bidirectional {
		if err := validateBothWays(spec); err != nil {
			return err
		}
	}
	if spec.TieWeights && spec.Embed == 0 {
		return usagef("--tie-weights needs an embedding: set --embed, for example --embed %d",
			spec.Hidden)
	}
	if err := validateAdaptive(spec); err != nil {
		return err
	}
	if can := compute.ForgetCellNames(); spec.ForgetBias != 0 && !slices.Contains(can, spec.Cell) {
		return usagef("--forget-bias is for --cell %s, and the cell is %s",
			strings.Join(can, " or "), spec.Cell)
	}
	if err := validateMemory(spec); err != nil {
		return err
	}
	if err := validateOmega(spec); err != nil {
		return err
	}
	if spec.SkipConnections && spec.Layers < 2 {
		return usagef("--skip-connections begin at the second layer: set --layers of at least 2")
	}
	if spec.TeacherForcingSteps > 0 && spec.TeacherForcing == 1 {
		return usagef("--teacher-forcing-steps %d is for a --teacher-forcing below 1: give one",
			spec.TeacherForcingSteps)
	}
	if spec.TeacherForcingChoice == "sample" && spec.TeacherForcing == 1 {
		return usagef("--teacher-forcing-choice sample is for a --teacher-forcing below 1: give " +
			"one")
	}
	if spec.TeacherForcing < 1 && spec.Ends == "length" {
		return usagef("--teacher-forcing %g: with --ends length the right tokens have the right "+
			"length, and others would not: leave it out", spec.TeacherForcing)
	}
	if spec.DeepInput > 0 && spec.Embed == 0 && spec.Task != task.Regress {
		return usagef("--deep-input %d reads the embedding: set --embed, for example --embed %d",
			spec.DeepInput, spec.Hidden)
	}
	if spec.TeacherForcing < 1 && spec.Feedback == "hidden" {
		return usagef("--teacher-forcing %g chooses the tokens that feed back, and with "+
			"--feedback hidden none does: leave it out", spec.TeacherForcing)
	}
	if err := validateRegularisers(spec); err != nil {
		return err
	}
	if spec.HiddenBackward > 0 && !spec.Bidirectional {
		return usagef("--hidden-backward %d is for --bidirectional: give it", spec.HiddenBackward)
	}
	if spec.IKnow && !spec.Bidirectional {
		return usagef("--i-know is for --bidirectional: give it, or leave --i-know out")
	}
	return nil
}

// validateAdaptive checks a job with an adaptive softmax.
func validateAdaptive(spec *rondov1.JobSpec) error {
	if _, err := compute.ParseCutoffs(spec.AdaptiveSoftmax); err != nil {
		return usagef("--adaptive-softmax %v", err)
	}
	if spec.AdaptiveSoftmax != "" && (spec.TieWeights || spec.LabelSmoothing > 0 ||
		spec.Bidirectional) {
		return usagef("--adaptive-softmax goes without --tie-weights, --label-smoothing and " +
			"--bidirectional: leave them out")
	}
	return nil
}

// validateOmega checks a job with a regulariser of gradients.
func validateOmega(spec *rondov1.JobSpec) error {
	if spec.Omega == 0 {
		return nil
	}
	if spec.Cell != compute.RNNTanh.String() || spec.DeepTransition > 0 || spec.Recompute > 0 ||
		spec.Bidirectional || spec.SkipThroughTime > 0 {
		return usagef("--omega is for --cell rnn, without --deep-transition, " +
			"--skip-through-time, --recompute and --bidirectional")
	}
	if device, err := ParseDevice(spec.Device); err != nil || device != (Device{}) {
		return usagef("--device %s: --omega computes on the CPU: leave it out", spec.Device)
	}
	return nil
}

// validateBothWays checks a language model that reads in both directions.
func validateBothWays(spec *rondov1.JobSpec) error {
	if !spec.IKnow {
		return usagef("--task lm --bidirectional: a network that reads in both directions sees " +
			"the next token, which it is asked to predict; give --task fill, which hides some " +
			"tokens, or --i-know to train it all the same")
	}
	if spec.TieWeights || spec.Recompute > 0 || spec.SparseRows == "always" {
		return usagef("--task lm --bidirectional goes without --tie-weights, --recompute and " +
			"--sparse-rows always: leave them out")
	}
	return nil
}

func validateRun(spec *rondov1.JobSpec) error {
	if spec.BpttRandom && (spec.Sampling != "sequential" || spec.Bidirectional) {
		return usagef("--bptt-random is for lanes that carry their state: leave out --sampling " +
			"random and --bidirectional, or --bptt-random")
	}
	if spec.Job == "" || strings.Contains(spec.Job, "/") {
		return usagef("--job %q: a name must not be empty or contain a slash", spec.Job)
	}
	if spec.Epochs == 0 && spec.Steps == 0 {
		return usagef("--epochs and --steps are both 0: set one, so that the job has an end")
	}
	if spec.LrMin > spec.Lr {
		return usagef("--lr-min %g is above --lr %g", spec.LrMin, spec.Lr)
	}
	if spec.EvalCorpus != "" && spec.ValidationFraction > 0 {
		return usagef("--eval-corpus and --validation-fraction both set the evaluation text: " +
			"set one")
	}
	if spec.EvalEvery > 0 && !evaluates(spec) {
		return usagef("--eval-every needs something to evaluate on: set --eval-corpus or " +
			"--validation-fraction")
	}
	if spec.EarlyStop > 0 && !evaluates(spec) {
		return usagef("--early-stop needs something to evaluate on: set --eval-corpus or " +
			"--validation-fraction")
	}
	if spec.CheckpointEvery > 0 && spec.CheckpointDir == NoCheckpoints {
		return usagef("--checkpoint-every %d needs a folder, and --checkpoint-dir is none: leave "+
			"out one of the two", spec.CheckpointEvery)
	}
	if err := validateNonfinite(spec); err != nil {
		return err
	}
	if err := validateAverage(spec); err != nil {
		return err
	}
	switch spec.Resume {
	case "auto", "never":
	default:
		step, err := ParseResumeStep(spec.Resume)
		if err != nil {
			return err
		}
		if !KeepsModel(spec) {
			return usagef("--resume %d needs the --checkpoint-dir that holds that step", step)
		}
	}
	return nil
}

// validateNonfinite checks a job that takes random steps.
func validateNonfinite(spec *rondov1.JobSpec) error {
	if spec.Nonfinite != "step" {
		return nil
	}
	if spec.Clip == 0 || spec.ClipBy != "norm" {
		return usagef("--nonfinite step takes a step of the norm --clip: give --clip above 0 and " +
			"--clip-by norm")
	}
	if spec.SyncEvery > 1 || spec.ShardOptimizer {
		return usagef("--nonfinite step is for updates of all parameters on each worker, step by " +
			"step: leave out --sync-every and --shard-optimizer, or --nonfinite")
	}
	return nil
}

// evaluates reports whether a job has text to evaluate on.
func evaluates(spec *rondov1.JobSpec) bool {
	return spec.EvalCorpus != "" || spec.ValidationFraction > 0
}

func validateSync(spec *rondov1.JobSpec) error {
	if spec.SyncEvery <= 1 {
		return nil
	}
	if spec.Clip > 0 && spec.ClipScope != "worker" {
		return usagef("--clip-scope %s needs the workers' gradients of each step, and with "+
			"--sync-every %d each has only its own: give --clip-scope worker, --clip 0 or "+
			"--sync-every 1", spec.ClipScope, spec.SyncEvery)
	}
	if LaneGroups(spec) > 0 {
		by := "--clip-scope group"
		if Canonical(spec) {
			by = "--reduce canonical"
		}
		return usagef("%s cuts the batch into groups of lanes, and with --sync-every %d each "+
			"worker trains all of its lanes together: leave it out, or give --sync-every 1", by,
			spec.SyncEvery)
	}
	if spec.SparseRows == "always" {
		return usagef("--sparse-rows always is for gradients, and --sync-every %d sums parameter "+
			"changes, also of rows that were not read: give --sparse-rows never",
			spec.SyncEvery)
	}
	if spec.OuterLr == 0 && spec.OuterOptimizer != "average" {
		return usagef("--outer-lr 0 would train nothing: give a rate above 0")
	}
	return nil
}

// Identity is a fingerprint of the settings that a job and its checkpoints must share: the tokens,
// with corpus as their fingerprint, the model, the optimizer, and the order of the data. Specs with
// the same identity may differ in the number of workers, the learning rate or the length of the
// run.
func Identity(spec *rondov1.JobSpec, corpus string) string {
	lasts := lasting(spec)
	if lasts.Task == task.LM { // older jobs lack these fields, and must keep their identity
		lasts.Task = ""
	}
	if lasts.Accumulate == 1 {
		lasts.Accumulate = 0
	}
	if lasts.Feedback == "both" {
		lasts.Feedback = ""
	}
	if lasts.Ends == "eos" {
		lasts.Ends = ""
	}
	if lasts.VectorAs == "both" {
		lasts.VectorAs = ""
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(lasts)
	if err != nil {
		panic(fmt.Sprintf("jobspec: marshal of a plain message: %v", err))
	}
	sum := sha256.Sum256(fmt.Appendf(bytes, "\ncorpus %s", corpus))
	return hex.EncodeToString(sum[:8])
}

// Differences lists the flags whose difference keeps one spec from continuing the other, such as
// "--hidden 256 instead of 128".
func Differences(spec, other *rondov1.JobSpec) []string {
	if spec.Task != other.Task { // the rest follows from it
		return []string{fmt.Sprintf("--task %s instead of %s", spec.Task, other.Task)}
	}
	var out []string
	a, b := lasting(spec).ProtoReflect(), lasting(other).ProtoReflect()
	for _, f := range fields() {
		if x, y := f.format(a.Get(f.desc)), f.format(b.Get(f.desc)); x != y {
			out = append(out, fmt.Sprintf("--%s %s instead of %s", f.flagName(),
				cmp.Or(x, "none"), cmp.Or(y, "none")))
		}
	}
	return out
}

// lasting returns a spec with only the fields that must not change within a job.
func lasting(spec *rondov1.JobSpec) *rondov1.JobSpec {
	lasts := &rondov1.JobSpec{
		Job: spec.Job, Task: spec.Task, Tokenizer: spec.Tokenizer, Normalize: spec.Normalize,
		MinFrequency: spec.MinFrequency, MaxTokens: spec.MaxTokens,
		ValidationFraction: spec.ValidationFraction,
		Cell:               spec.Cell, Hidden: spec.Hidden, Layers: spec.Layers, Embed: spec.Embed,
		TieWeights: spec.TieWeights, AdaptiveSoftmax: spec.AdaptiveSoftmax,
		Optimizer:      spec.Optimizer,
		HiddenBackward: spec.HiddenBackward,
		LayerNorm:      spec.LayerNorm, SkipConnections: spec.SkipConnections,
		DeepInput: spec.DeepInput, DeepTransition: spec.DeepTransition, DeepOutput: spec.DeepOutput,
		SkipThroughTime: spec.SkipThroughTime,
		Batch:           spec.Batch, Bptt: spec.Bptt, Sampling: spec.Sampling, Seed: spec.Seed,
		Accumulate: max(1, spec.Accumulate), BpttRandom: spec.BpttRandom,
	}
	switch spec.Task {
	case task.LM:
		lasts.Bidirectional = spec.Bidirectional
	case task.Fill:
		lasts.Bidirectional, lasts.Blanks = spec.Bidirectional, spec.Blanks
	case task.Regress:
		lasts.Target, lasts.Sequences = spec.Target, spec.Sequences
	case task.NGram, task.MLP:
		lasts.Order = spec.Order
	case task.HMM:
		lasts.States = spec.States
	case task.Reservoir:
		lasts.Target, lasts.SpectralRadius = spec.Target, spec.SpectralRadius
		lasts.Leak, lasts.InputScale, lasts.Washout = spec.Leak, spec.InputScale, spec.Washout
	case task.Turing:
		lasts.Bptt, lasts.Sampling = 0, ""
		lasts.MemoryRows, lasts.MemoryWidth, lasts.Heads = spec.MemoryRows, spec.MemoryWidth,
			spec.Heads
		lasts.Shift, lasts.Controller = spec.Shift, spec.Controller
	default:
		lasts.Bptt, lasts.Sampling = 0, ""
		lasts.Bidirectional, lasts.MaxExamples = spec.Bidirectional, spec.MaxExamples
		lasts.Pool, lasts.MaxLength = spec.Pool, spec.MaxLength
		lasts.DecoderContext, lasts.Attention = spec.DecoderContext, spec.Attention
		lasts.Feedback, lasts.VectorAs, lasts.Ends = spec.Feedback, spec.VectorAs, spec.Ends
	}
	keepTokenizer(lasts, spec)
	if spec.Average != "none" { // older jobs lack it
		lasts.Average = spec.Average
	}
	if spec.Task == task.Answer {
		lasts.MemoryRows, lasts.Hops, lasts.Tying = spec.MemoryRows, spec.Hops, spec.Tying
		lasts.PositionEncoding = spec.PositionEncoding
		lasts.TemporalEncoding, lasts.HardAttention = spec.TemporalEncoding, spec.HardAttention
	}
	if spec.Task == task.Tree {
		lasts.Tree, lasts.TreeCell = spec.Tree, spec.TreeCell
	}
	switch spec.Cell {
	case compute.Leaky.String():
		lasts.Leak = spec.Leak
	case compute.Clockwork.String():
		lasts.Periods = spec.Periods
	}
	if spec.SyncEvery > 1 && spec.OuterOptimizer == "nesterov" { // checkpoints hold its momentum
		lasts.OuterOptimizer = spec.OuterOptimizer
	}
	return lasts
}

// field is a field of JobSpec with its flag option.
type field struct {
	desc protoreflect.FieldDescriptor
	flag *rondov1.Flag
}

func fields() []field {
	all := (&rondov1.JobSpec{}).ProtoReflect().Descriptor().Fields()
	var out []field
	for i := range all.Len() {
		desc := all.Get(i)
		flag, _ := proto.GetExtension(desc.Options(), rondov1.E_Flag).(*rondov1.Flag)
		if flag != nil { // a field without the option has no flag
			out = append(out, field{desc: desc, flag: flag})
		}
	}
	return out
}

func (f field) flagName() string {
	return strings.ReplaceAll(string(f.desc.Name()), "_", "-")
}
