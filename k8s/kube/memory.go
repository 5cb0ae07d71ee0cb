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

// Assumed sizes of a vocabulary if the text cannot be read from here.
const (
	charactersAssumed = 512
	wordsAssumed      = 100_000
)

// memoryStep is the unit to which sizes are rounded up, for readability.
const memoryStep = 64 << 20

// learn measures the training data if the text is a file of this machine or built in.
func (s *Submission) learn(ctx context.Context, spec *rondov1.JobSpec) error {
	builtin := strings.HasPrefix(spec.Corpus, "builtin:")
	if !builtin && !isLocal(spec.Corpus) || spec.Vectors != "" && !isLocal(spec.Vectors) {
		return nil
	}
	readable := proto.CloneOf(spec)
	readable.Corpus = strings.TrimPrefix(spec.Corpus, "file://")
	readable.Vectors = strings.TrimPrefix(spec.Vectors, "file://")
	data, err := job.Measure(ctx, readable)
	var wrong *app.UsageError
	if errors.As(err, &wrong) {
		return err
	} else if err != nil {
		return nil // this machine has no room for it; the workers will read it
	}
	s.Extent = data
	return nil
}

// fewest returns the number of workers for which their memory is sized. The remaining workers of a
// job take over the lanes of the others.
func fewest(spec *rondov1.JobSpec) int {
	return int(max(spec.MinWorkers, (spec.Workers+1)/2))
}

// extent returns the known or assumed extent of the training data.
func (s *Submission) extent(spec *rondov1.JobSpec) (data job.Extent, assumed bool) {
	switch {
	case s.Tokens != 0 && s.Outputs != 0:
		return s.Extent, false
	case s.Tokens != 0: // also what an older version stored, which measured no outputs
		return job.Assume(spec, s.Tokens), false
	case spec.Tokenizer == "bpe":
		return job.Assume(spec, int(spec.VocabularySize)), true
	case spec.Tokenizer != "char":
		return job.Assume(spec, wordsAssumed), true
	}
	return job.Assume(spec, charactersAssumed), true
}

// Parts of a worker's grace period, beside the step in flight.
const (
	leastGrace     = time.Minute
	handOver       = 20 * time.Second // up to three new rings, and answers of the store
	checkpointRate = 32 << 20         // bytes a second
	graceStep      = 10               // seconds; the sum is rounded up to a multiple
)

// grace returns a worker's grace period in seconds: time for its step, and for a checkpoint in case
// it is the last worker. 0: the manifests' value. On preemptible nodes the cloud sets the limit.
func (s *Submission) grace(spec *rondov1.JobSpec) (int64, error) {
	if s.GracePeriod != "" {
		given, err := time.ParseDuration(s.GracePeriod)
		return int64(math.Ceil(given.Seconds())), err
	}
	if s.Spot {
		return 0, nil
	}
	data, _ := s.extent(spec)
	estimate, err := job.Memory(spec, data, int(spec.Workers))
	if err != nil {
		return 0, err
	}
	// A worker reads a checkpoint or more to recover, so that is an upper bound.
	upload := time.Duration(estimate.Recovery/checkpointRate) * time.Second
	whole := max(leastGrace, spec.StepTimeout.AsDuration()+handOver+upload)
	return (int64(math.Ceil(whole.Seconds())) + graceStep - 1) / graceStep * graceStep, nil
}

// gpuMemory is the host memory of a worker with a GPU in the manifests.
const gpuMemory = 8 << 30

// size returns a worker's memory: what a person has set, or enough for the job's model and batch
// after half of the workers are lost. An empty size is the manifests' value.
func (s *Submission) size(spec *rondov1.JobSpec) (size, note string, err error) {
	if s.MemoryPerWorker != "" {
		return s.MemoryPerWorker, "", nil
	}
	data, assumed := s.extent(spec)
	if s.GPUsPerWorker > 0 {
		bytes, err := job.BesideGPU(spec, data)
		if err != nil || bytes <= gpuMemory {
			return "", "", err
		}
		return roomFor(bytes), "", nil
	}
	estimate, err := job.Memory(spec, data, fewest(spec))
	if err != nil {
		return "", "", err
	}
	size = roomFor(estimate.Total())
	if assumed && spec.Tokenizer != "char" && spec.Tokenizer != "bpe" {
		note = fmt.Sprintf("each worker gets %s of memory, as for %d different tokens: the text "+
			"cannot be read from here; --memory-per-worker says otherwise", size, wordsAssumed)
	}
	return size, note, nil
}

// roomFor returns a memory request for an estimate: a quarter more, rounded up.
func roomFor(bytes int64) string {
	steps := (bytes*5/4 + memoryStep - 1) / memoryStep
	return resource.NewQuantity(steps*memoryStep, resource.BinarySI).String()
}
