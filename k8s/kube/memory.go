package kube

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/resource"

	"rondo/internal/app"
	"rondo/job"
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
	readable := proto.CloneOf(spec)
	readable.Corpus = strings.TrimPrefix(spec.Corpus, "file://")
	tokens, err := job.CountVocabulary(ctx, readable)
	var wrong *app.UsageError
	if errors.As(err, &wrong) {
		return err
	} else if err != nil {
		return nil // this machine has no room for it; the workers read it themselves
	}
	s.Vocabulary = tokens
	return nil
}

// fewest is how few workers the memory of each is sized for: those that are left have the lanes of
// the others.
func fewest(spec *rondov1.JobSpec) int {
	return int(max(spec.MinWorkers, (spec.Workers+1)/2))
}

// vocabulary is how many tokens the text has, or is taken to have.
func (s *Submission) vocabulary(spec *rondov1.JobSpec) (tokens int, assumed bool) {
	switch {
	case s.Vocabulary != 0:
		return s.Vocabulary, false
	case spec.Tokenizer == "word":
		return wordsAssumed, true
	}
	return charactersAssumed, true
}

// memory sizes a worker by the job's model and batch, for when half of the workers are lost.
func (s *Submission) memory(spec *rondov1.JobSpec) (
	resource.Quantity, bool, error) {
	tokens, assumed := s.vocabulary(spec)
	estimate, err := job.Memory(spec, tokens, fewest(spec))
	if err != nil {
		return resource.Quantity{}, assumed, err
	}
	return *resource.NewQuantity(upToStep(estimate.Total()), resource.BinarySI), assumed, nil
}

// What a worker that is asked to leave may take, beside the step in flight.
const (
	leastGrace     = time.Minute
	handOver       = 20 * time.Second // rings that are formed, up to three, and the store's answers
	checkpointRate = 32 << 20         // bytes a second
	graceStep      = 10               // seconds that it is rounded up to
)

// grace settles how many seconds a worker has to leave: for its step, and for a checkpoint if it is
// the last one; 0: as the manifests say. On preemptible nodes the cloud sets the limit.
func (s *Submission) grace(spec *rondov1.JobSpec) (int64, error) {
	if s.GracePeriod != "" {
		given, err := time.ParseDuration(s.GracePeriod)
		return int64(math.Ceil(given.Seconds())), err
	}
	if s.Spot {
		return 0, nil
	}
	tokens, _ := s.vocabulary(spec)
	estimate, err := job.Memory(spec, tokens, int(spec.Workers))
	if err != nil {
		return 0, err
	}
	// What a worker reads to recover is a checkpoint, or more.
	upload := time.Duration(estimate.Recovery/checkpointRate) * time.Second
	whole := max(leastGrace, spec.StepTimeout.AsDuration()+handOver+upload)
	return (int64(math.Ceil(whole.Seconds())) + graceStep - 1) / graceStep * graceStep, nil
}

// gpuMemory is what the manifests give a worker beside its GPU.
const gpuMemory = 8 << 30

// besideGPU is what a worker asks for beside its GPU; empty: what the manifests give is enough.
func (s *Submission) besideGPU(spec *rondov1.JobSpec) (string, error) {
	tokens, _ := s.vocabulary(spec)
	bytes, err := job.BesideGPU(spec, tokens)
	if err != nil || bytes <= gpuMemory {
		return "", err
	}
	return resource.NewQuantity(upToStep(bytes), resource.BinarySI).String(), nil
}

// upToStep is so many bytes and a quarter, rounded up.
func upToStep(bytes int64) int64 { return (bytes*5/4 + memoryStep - 1) / memoryStep * memoryStep }

// size settles how much memory a worker asks for, unless a person has said it.
func (s *Submission) size(spec *rondov1.JobSpec) (size, note string, err error) {
	if s.MemoryPerWorker != "" {
		return s.MemoryPerWorker, "", nil
	}
	if s.GPUsPerWorker > 0 {
		size, err = s.besideGPU(spec)
		return size, "", err
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
