package job

import (
	"context"
	"fmt"
	"strings"

	"rondo/corpus/examples"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/classify"
	"rondo/task/label"
	"rondo/task/tag"
	"rondo/telemetry"
)

// entry is this package's part of a task.
type entry struct {
	command string // of rondo, which uses the task's networks
	// open opens the job's data.
	open func(context.Context, *rondov1.JobSpec) (Data, error)
	// network is the network of a job whose data have this extent.
	network func(*rondov1.JobSpec, Extent) (Network, error)
	// evaluate measures a trained network on other data.
	evaluate func(ctx context.Context, t *Trained, source string, how Search) (telemetry.Eval,
		error)
	examples examples.Kind // "": the lanes read no examples
	// counter makes the counter of a task of labels for an evaluation.
	counter func(labels []string) label.Counter
}

// tasks is the list of tasks. Nothing else in this package depends on a task's name.
func tasks() map[string]entry {
	return map[string]entry{
		task.LM: {command: "generate", open: openText, network: languageNetwork,
			evaluate: evaluateText},
		task.Classify: {command: "classify", open: openLabelled, network: labellerNetwork,
			evaluate: evaluateLabels, examples: examples.Labelled,
			counter: func(labels []string) label.Counter {
				return classify.Counter{Labels: len(labels)}
			}},
		task.Tag: {command: "tag", open: openLabelled, network: labellerNetwork,
			evaluate: evaluateLabels, examples: examples.Tagged,
			counter: func(labels []string) label.Counter { return tag.NewCounter(labels) }},
		task.Fill: {command: "fill", open: openHidden, network: hiddenNetwork,
			evaluate: evaluateHidden},
		task.Translate: {command: "translate", open: openTranslated, network: translatorNetwork,
			evaluate: evaluateTranslations, examples: examples.Pairs},
		task.Describe: {command: "describe", open: openDescribed, network: describerNetwork,
			evaluate: evaluateDescriptions, examples: examples.Described},
		task.Regress: {command: "predict", open: openSeries, network: seriesNetwork,
			evaluate: evaluateSeries},
		task.Reservoir: {command: "predict", open: openReservoir, network: reservoirNetwork,
			evaluate: evaluateSeries},
		task.Answer: {command: "answer", open: openStories, network: answerNetwork,
			evaluate: evaluateAnswers, examples: examples.Stories},
		task.Turing: {command: "eval", open: openGenerated, network: turingNetwork,
			evaluate: evaluateTuring},
		task.Tree: {command: "classify", open: openTrees, network: treeNetwork,
			evaluate: evaluateTrees, examples: examples.Trees},
		task.NGram: {command: "generate", open: openCounted, network: countedNetwork,
			evaluate: evaluateCounted},
		task.MLP: {command: "generate", open: openWindows, network: windowNetwork,
			evaluate: evaluateWindows},
		task.HMM: {command: "generate", open: openMarkov, network: markovNetwork,
			evaluate: evaluateMarkov},
	}
}

// taskOf returns the entry of a job's task.
func taskOf(spec *rondov1.JobSpec) (entry, error) {
	e, known := tasks()[spec.Task]
	if spec.Task == task.LM && spec.Bidirectional { // it has the network and the lanes of fill
		e = tasks()[task.Fill]
		e.command = "generate"
	}
	if spec.Task == task.Tree && spec.Tree == balancedTree {
		e.examples = examples.Labelled
	}
	if !known {
		return e, app.Usage(fmt.Errorf("--task %q is not one of %s", spec.Task,
			strings.Join(task.Names(), ", ")))
	}
	return e, nil
}
