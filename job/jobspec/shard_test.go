package jobspec

import (
	"testing"

	rondov1 "rondo/proto/rondo/v1"
)

func TestShardsAtRisk(t *testing.T) {
	alone := func(*rondov1.JobSpec) {}
	for name, c := range map[string]struct {
		change func(*rondov1.JobSpec)
		want   bool
	}{
		"one copy":   {alone, true},
		"two copies": {func(s *rondov1.JobSpec) { s.ShardCopies = 2 }, false},
		"checkpoints": {func(s *rondov1.JobSpec) {
			s.CheckpointDir, s.CheckpointEvery = "d", 10
		}, false},
		"no folder": {func(s *rondov1.JobSpec) {
			s.CheckpointDir, s.EvalCorpus = NoCheckpoints, "t"
		}, true},
		"evaluated": {func(s *rondov1.JobSpec) { s.EvalCorpus = "t" }, true},
		"best are saved": {func(s *rondov1.JobSpec) {
			s.CheckpointDir, s.EvalCorpus = "d", "t"
		}, false},
		"nothing kept":   {func(s *rondov1.JobSpec) { s.Optimizer = "sgd" }, false},
		"one worker":     {func(s *rondov1.JobSpec) { s.Workers = 1 }, false},
		"not shared out": {func(s *rondov1.JobSpec) { s.ShardOptimizer = false }, false},
	} {
		spec := &rondov1.JobSpec{
			ShardOptimizer: true, ShardCopies: 1, Workers: 2, Optimizer: "adam"}
		c.change(spec)
		if got := ShardsAtRisk(spec); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
