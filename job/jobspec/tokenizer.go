package jobspec

import (
	"slices"
	"strings"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// TokenizerFile returns the tokenizer.json, or SentencePiece's .model, that --tokenizer names;
// empty: it names none.
func TokenizerFile(spec *rondov1.JobSpec) string {
	name, _, _ := strings.Cut(strings.ToLower(spec.Tokenizer), "?") // the options of a URL
	if strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".model") {
		return spec.Tokenizer
	}
	return ""
}

func checkTokenizer(value string) error {
	named := []string{"char", "word", "bpe"}
	if slices.Contains(named, value) ||
		TokenizerFile(&rondov1.JobSpec{Tokenizer: value}) != "" {
		return nil
	}
	return usagef("--tokenizer %q is not one of %s, and no name of a .json or a .model", value,
		strings.Join(named, ", "))
}

// validateTokenizer refuses subwords for a task whose examples have words or characters.
func validateTokenizer(spec *rondov1.JobSpec) error {
	named := spec.Tokenizer == "char" || spec.Tokenizer == "word"
	subwords := []string{task.LM, task.Classify, task.NGram, task.HMM, task.MLP}
	if named || slices.Contains(subwords, spec.Task) ||
		!slices.Contains(tasksOf("tokenizer"), spec.Task) {
		return nil
	}
	others := "char or word"
	switch spec.Task {
	case task.Tag, task.Tree, task.Answer: // they do not split words
		others = "word"
	}
	return usagef("--tokenizer %s is for --task %s, and the task is %s: give %s", spec.Tokenizer,
		strings.Join(subwords, " or "), spec.Task, others)
}

// keepTokenizer adds the fields of how texts are read that must not change within a job. A file may
// move: the data's fingerprint has its content.
func keepTokenizer(lasts, spec *rondov1.JobSpec) {
	if spec.Eos != "none" { // older jobs lack it
		lasts.Eos = spec.Eos
	}
	lasts.ShuffleDocuments = spec.ShuffleDocuments
	if spec.Tokenizer == "bpe" {
		lasts.VocabularySize = spec.VocabularySize
	} else if TokenizerFile(spec) != "" {
		lasts.Tokenizer = "a tokenizer.json"
	}
}
