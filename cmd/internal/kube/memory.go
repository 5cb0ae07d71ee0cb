package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/job"
	"rondo/internal/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// How large a vocabulary is taken for where the text cannot be read from here.
const (
	charactersAssumed = 512
	wordsAssumed      = 100_000
)

// memoryStep is what sizes are rounded up to, so that a person can read them.
const memoryStep = 64 << 20

// learn counts the tokens of the job's vocabulary if its text can be read from here: a file of
// this machine, or what is built in.
func (s *Submission) learn(ctx context.Context, spec *rondov1.JobSpec) error {
	builtin := strings.HasPrefix(spec.Corpus, "builtin:")
	if !builtin && !isLocal(spec.Corpus) {
		return nil
	}
	readable := jobspec.Default()
	readable.Corpus = strings.TrimPrefix(spec.Corpus, "file://")
	readable.Tokenizer, readable.Normalize = spec.Tokenizer, spec.Normalize
	readable.MinFrequency, readable.MaxTokens = spec.MinFrequency, spec.MaxTokens
	text, err := job.OpenCorpus(ctx, readable, nil)
	var wrong *app.UsageError
	if errors.As(err, &wrong) {
		return err
	} else if err != nil {
		return nil // this machine has no room for it; the workers read it themselves
	}
	s.Vocabulary = text.Vocabulary().Len()
	return text.Close()
}

// memory sizes a worker by the job's model and batch: for as few workers as may be left when half
// of them are lost, since those have the lanes of the others.
func (s *Submission) memory(spec *rondov1.JobSpec) (size resource.Quantity, assumed bool,
	err error) {
	tokens := s.Vocabulary
	if assumed = tokens == 0; assumed {
		tokens = charactersAssumed
		if spec.Tokenizer == "word" {
			tokens = wordsAssumed
		}
	}
	fewest := max(spec.MinWorkers, (spec.Workers+1)/2)
	estimate, err := job.Memory(spec, tokens, int(fewest))
	if err != nil {
		return size, assumed, err
	}
	bytes := (estimate.Total()*5/4 + memoryStep - 1) / memoryStep * memoryStep
	return *resource.NewQuantity(bytes, resource.BinarySI), assumed, nil
}

// size settles how much memory a worker asks for, unless a person has said it or a GPU does the
// work, whose memory this is not.
func (s *Submission) size(spec *rondov1.JobSpec) (size, note string, err error) {
	if s.MemoryPerWorker != "" || s.GPUsPerWorker > 0 {
		return s.MemoryPerWorker, "", nil
	}
	memory, assumed, err := s.memory(spec)
	if err != nil {
		return "", "", err
	}
	if assumed && spec.Tokenizer == "word" {
		note = fmt.Sprintf("each worker gets %s of memory, as for %d different words: the text "+
			"cannot be read from here; --memory-per-worker says otherwise", memory.String(),
			wordsAssumed)
	}
	return memory.String(), note, nil
}
