// Package task is the list of task names. Each task is a package in a folder here and implements
// train.Task. The list does not import them, so that programs that do not train can read it. It may
// import nothing of this module.
package task

import "slices"

// The tasks.
const (
	LM       = "lm"       // the language model of task/lm, the default and that of old checkpoints
	Classify = "classify" // task/classify: a label for a text
	Tag      = "tag"      // task/tag: a label for each token
	// Fill fills blanks in a text: task/fill.
	Fill = "fill"
	// Translate turns a text into another: task/translate.
	Translate = "translate"
	// Describe turns a vector into a text: task/describe.
	Describe = "describe"
	// Regress predicts a time series: task/regress.
	Regress = "regress"
	// Reservoir predicts a time series by an echo state network: task/reservoir.
	Reservoir = "reservoir"
	// NGram counts n-grams: task/ngram.
	NGram = "ngram"
	// MLP predicts a token from the tokens before it by a perceptron: task/mlp.
	MLP = "mlp"
	// HMM is a hidden Markov model of a text: task/hmm.
	HMM = "hmm"
	// Answer answers questions about stories by a memory network: task/answer.
	Answer = "answer"
	// Turing learns algorithms by a neural Turing machine: task/turing.
	Turing = "turing"
	// Tree labels the nodes of trees by a recursive network: task/tree.
	Tree = "tree"
)

// Segments reports whether a task's lanes read segments of --bptt tokens. The other tasks' lanes
// read whole examples.
func Segments(name string) bool {
	return slices.Contains([]string{LM, Fill, Regress, MLP}, name) ||
		!slices.Contains(Networks(), name)
}

// Texts reports whether a task reads any number of texts, as a whole or as documents. The others'
// data are rows of one file.
func Texts(name string) bool {
	return name == LM || name == Fill || name == NGram || name == HMM || name == MLP
}

// Networks returns the names of the tasks that train a network by its gradient. The others sum up
// their data.
func Networks() []string {
	return slices.DeleteFunc(Names(), func(name string) bool {
		return Once(name) || name == HMM
	})
}

// Layered returns the names of the tasks whose networks have layers of a recurrent cell.
func Layered() []string {
	return slices.DeleteFunc(Networks(), func(name string) bool {
		return name == Answer || name == Turing || name == MLP || name == Tree
	})
}

// OnHost reports whether a task computes on the CPU alone, in float32.
func OnHost(name string) bool { return name != "" && !slices.Contains(Layered(), name) }

// Once reports whether a task reads its data once: a second pass would add the same sums.
func Once(name string) bool { return name == NGram || name == Reservoir }

// SquaredError reports whether a task's loss is a mean squared error. The others' are mean
// cross-entropies, which have a perplexity.
func SquaredError(name string) bool { return name == Regress || name == Reservoir }

// Names returns the valid names for --task, a JobSpec and a checkpoint's manifest.
func Names() []string {
	return []string{
		LM,
		Classify,
		Tag,
		Fill,
		Translate,
		Describe,
		Regress,
		Reservoir,
		NGram,
		HMM,
		MLP,
		Answer,
		Turing,
		Tree,
	}
}
